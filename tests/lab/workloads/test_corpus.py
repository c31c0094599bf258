from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from qmaps.errors import BadValueError
from qmaps.lab.workloads import corpus

pytestmark = pytest.mark.slow

EXCLUDED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty standard library."""
    monkeypatch.setattr(sysconfig, "get_path", {"stdlib": str(tmp_path)}.__getitem__)
    corpus.load.cache_clear()
    yield tmp_path
    corpus.load.cache_clear()


def write(root: Path, name: str, data: bytes = b"") -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(data)


def test_only_the_librarys_own_source_counts(tmp_path: Path) -> None:
    for folder in EXCLUDED:
        write(tmp_path, f"{folder}/a.py")
        write(tmp_path, f"json/{folder}/b.py")
    for name in ("os.py", "json/decoder.py", "test.py", "LICENSE.txt", "json/x.pyc"):
        write(tmp_path, name)
    assert list(corpus.files(tmp_path)) == ["json/decoder.py", "os.py", "test.py"]


def test_a_folder_above_the_library_may_have_any_name(tmp_path: Path) -> None:
    write(tmp_path, "test/lib/os.py")
    assert list(corpus.files(tmp_path / "test" / "lib")) == ["os.py"]


def test_the_split_is_by_file_and_does_not_change() -> None:
    names = list(corpus.files(Path(sysconfig.get_path("stdlib"))))
    held_out = [name for name in names if corpus.is_validation(name)]
    assert 0.05 < len(held_out) / len(names) < 0.15
    assert not [name for name in names if EXCLUDED & set(Path(name).parts[:-1])]
    # By the hash of the path: no file changes sides from one installation to the next.
    probes = [f"module{i}.py" for i in range(40)]
    assert [i for i, name in enumerate(probes) if corpus.is_validation(name)] == [
        *(3, 4, 12, 13, 14, 32)
    ]


def test_no_file_is_on_both_sides(library: Path) -> None:
    for i in range(200):
        write(library, f"module{i}.py", f"# {i:04d}\n".encode() * 2000)
    texts = corpus.load()
    train, validation = (
        {line for line in part.tobytes().replace(b"\0", b"").split(b"\n") if line}
        for part in (texts.train, texts.validation)
    )
    assert not train & validation
    assert len(train) + len(validation) == 200
    assert validation == {
        f"# {i:04d}".encode() for i in range(200) if corpus.is_validation(f"module{i}.py")
    }
    # In the order of the paths, for any file system.
    order = sorted(f"module{i}" for i in range(200) if not corpus.is_validation(f"module{i}.py"))
    first = texts.train.tobytes().split(b"\0")
    assert [int(part[2:6]) for part in first] == [int(name[6:]) for name in order]


def test_the_digest_is_that_of_the_data(library: Path) -> None:
    for i in range(200):
        write(library, f"module{i}.py", b"x = 1\n" * 2000)
    before = corpus.load().digest
    assert corpus.load() is corpus.load()
    write(library, "module7.py", b"x = 2\n" + b"x = 1\n" * 1999)
    corpus.load.cache_clear()
    assert corpus.load().digest != before


def test_no_source_is_a_clear_error(library: Path) -> None:
    write(library, "os.py", b"pass\n")
    with pytest.raises(BadValueError) as caught:
        corpus.load()
    # The file is on one side, and the zero bytes between files do not show with one file.
    assert str(caught.value) == (
        f"the standard library in {str(library)!r} holds 5 bytes of source code, which is "
        "too little; stdlib-lm needs a Python that is installed with the .py files of its "
        "library"
    )
