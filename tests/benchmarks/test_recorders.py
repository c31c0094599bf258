"""Optimizers of other packages: rows of classes, and the committed table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from benchmarks import recorders

pytestmark = pytest.mark.slow

REPORT = Path(__file__).parents[2] / "reports" / "recorders.csv"


class Doubled(torch.optim.AdamW):
    """Adam's state names with updates of twice the length."""

    def step(self, closure: Any = None) -> Any:
        before = [p.detach().clone() for group in self.param_groups for p in group["params"]]
        loss = super().step(closure)
        params = (p for group in self.param_groups for p in group["params"])
        with torch.no_grad():
            for p, b in zip(params, before, strict=True):
                p.add_(p - b)
        return loss


class Wrapper(torch.optim.Optimizer):
    """A wrapper with its own hooks."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner, self.defaults = inner, inner.defaults
        self.param_groups, self.state = inner.param_groups, inner.state
        self._optimizer_step_pre_hooks: dict[int, Any] = {}
        self._optimizer_step_post_hooks: dict[int, Any] = {}

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()


class Unmade(torch.optim.Optimizer):
    def __init__(self, params: Any, lr: float = 1.0) -> None:
        raise KeyError("nothing")


ADAM = {
    "states": "exp_avg, exp_avg_sq",
    "recorded": "yes",
    "reloaded": "yes",
    "swept": "yes: exp_avg, exp_avg_sq",
    "paired": "yes: exp_avg, exp_avg_sq",
    "continued": "yes: as AdamW",
}
LONGER = "differs: AdamW by 50.0 % of the largest update; its update is 0.500 times as long"
REFUSED = (
    "refused: optimizer must run the hooks of torch.optim.Optimizer; Wrapper does not, because its "
    "constructor does not call the base class's; give the optimizer inside it, its attribute "
    "'inner'"
)
NOTHING = {
    "states": "",
    "recorded": REFUSED,
    "swept": "nothing was recorded",
    "paired": "nothing was recorded",
}
FAILED = {**dict.fromkeys(ADAM, ""), "recorded": "not constructed: KeyError: 'nothing'"}


@pytest.mark.parametrize(
    ("cls", "expected"),
    [
        (torch.optim.AdamW, ADAM),
        (Doubled, {**ADAM, "continued": LONGER}),
        (Wrapper, {**ADAM, **NOTHING}),
        (Unmade, FAILED),
    ],
)
def test_the_row_of_a_class(cls: type[torch.optim.Optimizer], expected: dict[str, str]) -> None:
    assert recorders.row(cls.__name__, cls) == {"class": cls.__name__, **expected}


def test_a_package_that_is_not_installed_has_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(recorders.PACKAGES, "no-such-package", "no_such_package")
    result = recorders.of_package("no-such-package")
    assert result["rows"] == []
    text = recorders.page([result], "python -m benchmarks.recorders")
    assert "no-such-package was not tried: PackageNotFoundError: " in text


def test_the_committed_table_has_a_text_for_each_class() -> None:
    frame = pd.read_csv(REPORT).fillna("")
    packages = {name.partition(" ")[0] for name in frame["package"]}
    assert packages == set(recorders.PACKAGES)
    constructed = frame[~frame["recorded"].str.startswith("not constructed")]
    assert len(constructed) > 200
    assert (constructed[list(recorders.COLUMNS)] != "").all(axis=None)
    # No plain Python error reaches a user who records an optimizer or sweeps its states.
    assert not constructed["recorded"].str.contains("Error").any()
    assert not constructed["swept"].str.contains("Error").any()
    page = REPORT.with_suffix(".md").read_text("utf-8")
    assert all(f"| `{name}` | " in page for name in frame["class"])
