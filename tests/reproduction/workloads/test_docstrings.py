from __future__ import annotations

import pytest

from qmaps.errors import BadValueError
from reproduction.workloads import docstrings

pytestmark = pytest.mark.slow

SOURCE = '''
class A:
    def method(self, one, two=2, *rest):
        """Do what
        methods do.

        And more.
        """

    async def later(cls):
        """Do it some other time."""

def short():
    """Too short."""

def without(): pass
'''


def test_pairs_of_source() -> None:
    assert sorted(docstrings.pairs_of(SOURCE, "a.b")) == [
        ("a.b.later()", "Do it some other time."),
        ("a.b.method(one, two)", "Do what methods do."),
    ]
    assert list(docstrings.pairs_of("def broken(:", "a")) == []


@pytest.fixture(scope="module")
def pairs() -> docstrings.Pairs:
    return docstrings.load()


def test_no_docstring_is_on_both_sides_or_twice(pairs: docstrings.Pairs) -> None:
    train, validation = (
        [docstring for _, docstring in part] for part in (pairs.train, pairs.validation)
    )
    assert len(train) > 1000
    assert len(set(train) | set(validation)) == len(train) + len(validation)


def test_a_python_without_its_library(
    monkeypatch: pytest.MonkeyPatch, pairs: docstrings.Pairs
) -> None:
    monkeypatch.setattr(docstrings, "files", lambda root: {})
    monkeypatch.setattr(docstrings.sysconfig, "get_path", lambda name: "nowhere")
    with pytest.raises(BadValueError) as caught:
        docstrings.load.__wrapped__()
    assert str(caught.value) == (
        "the standard library in 'nowhere' has docstrings of 0 functions, which is too few; "
        "minilm needs a Python that is installed with the .py files of its library"
    )
