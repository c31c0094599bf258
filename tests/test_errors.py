"""Messages of errors: one line each, with all allowed values."""

import re

import pytest
import torch

import qmaps
from qmaps.algebra.spec import OTHER_NAMES
from qmaps.capture.monitor.outputs import ADVICE, advice
from qmaps.errors import LONGEST, BadTypeError, BadValueError, SpecError

ALLOWED = ", ".join(f"entry-{number}" for number in range(40))


@pytest.mark.parametrize("length", [10, 100, 1000, 5000])
def test_a_list_of_allowed_values_is_not_cut(length: int) -> None:
    message = str(BadValueError(f"'{'x' * length}' is unknown; allowed are {ALLOWED}"))
    assert len(message) <= LONGEST
    assert message.endswith(f"x' is unknown; allowed are {ALLOWED}")
    assert message.startswith("'xxxx")
    assert (" ... x" in message) == (length > 100)


def test_apostrophes_of_words_are_no_quotation_marks() -> None:
    path = "x" * 1000
    message = str(BadValueError(f"the model's file '{path}' and the user's have {ALLOWED}"))
    assert message.startswith("the model's file 'xxxx")
    assert message.endswith(f"x' and the user's have {ALLOWED}")
    between = "c" * 1000
    message = str(BadValueError(f"'a' is the model's {between} and the users' is 'b'; {ALLOWED}"))
    assert message.startswith(f"'a' is the model's {'c' * 300}")  # cut in its middle


def test_a_message_without_a_long_quotation_is_cut_in_its_middle() -> None:
    message = str(BadValueError("a" * 1000 + "'b'" + "c" * 1000))
    assert re.fullmatch(r"a+ \.\.\. c+", message)
    assert len(message) == LONGEST


@pytest.mark.parametrize("name", ["B128/nope@4", "x" * 100 + "/DE@4s", "B128/" + "y" * 200 + "@4s"])
def test_all_maps_or_normalizers_are_listed(name: str) -> None:
    with pytest.raises(SpecError, match=r"allowed are ") as caught:
        qmaps.quantizer(name)
    assert " ... " not in str(caught.value).partition("allowed are")[2]


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_names_of_number_formats_lead_to_a_spec(name: str) -> None:
    assert qmaps.quantizer(OTHER_NAMES[name]).spec == OTHER_NAMES[name]
    with pytest.raises(SpecError, match=f"; a spec of {name} is {re.escape(OTHER_NAMES[name])}$"):
        qmaps.quantizer(name)


@pytest.mark.parametrize("name", ["bits", "num_bits"])
def test_an_optimizer_with_bits_leads_to_its_class(name: str) -> None:
    message = (
        f"{name}=8 is not an option of AdamW; the width is that of a class, such as AdamW8bit, or "
        "of state_quantizers='8bit'"
    )
    with pytest.raises(BadTypeError, match=f"^{re.escape(message)}$"):
        qmaps.optim.AdamW([torch.zeros(2, requires_grad=True)], **{name: 8})


def test_only_fitted_maps_are_to_be_refitted() -> None:
    assert advice("saturated_share", "B128/DE@4s") == "use smaller blocks"
    assert advice("saturated_share", "B128/mine@4s") == "use smaller blocks"
    refit = "refit the map more often (refit_every), or use smaller blocks"
    assert advice("saturated_share", "B128/quantile@4s") == refit
    assert advice("stalled_share", "B128/quantile@4s") == ADVICE["stalled_share"]
