"""Names of a checkpoint's parameters, from a model or from its file beside the checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from qmaps import capture
from qmaps.capture.naming import Group, Known, Unnamed, fitted, parameter_shape
from qmaps.capture.recorder import write
from qmaps.errors import BadValueError


class Net(nn.Module):
    """Two square matrices of one shape, a norm known only by its type, and a tied head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        self.q = nn.Linear(4, 4)
        self.k = nn.Linear(4, 4)
        self.ln = nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.ln(self.k(self.q(self.embed(x)))))


DECAYING = ["embed.weight", "q.weight", "k.weight"]
EXEMPT = ["q.bias", "k.bias", "ln.weight", "ln.bias"]


def checkpoint(folder: Path, frozen: tuple[str, ...] = (), *, weight_decay: float = 0.1) -> Net:
    """Write optimizer.pt as a Trainer does, with a different exp_avg for each parameter."""
    torch.manual_seed(0)
    net = Net()
    named = dict(net.named_parameters())
    for name in frozen:
        named[name].requires_grad_(False)
    groups = [
        {"params": [named[name] for name in names if name not in frozen], "weight_decay": decay}
        for names, decay in ((DECAYING, weight_decay), (EXEMPT, 0.0))
    ]
    optimizer = torch.optim.AdamW(groups)
    net(torch.arange(7)).square().sum().backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    return net


def assert_right(states: capture.CapturedStates, net: Net, frozen: tuple[str, ...] = ()) -> None:
    named = dict(net.named_parameters())
    assert states.parameters() == [n for n in DECAYING + EXEMPT if n not in frozen]
    for name in states.parameters():
        expected = (named[name].grad.float() * (1 - 0.9)).reshape(named[name].shape)
        assert torch.allclose(states.tensor(name, "exp_avg"), expected), name


def test_the_models_file_of_torch_beside_it_names_them(tmp_path: Path) -> None:
    net = checkpoint(tmp_path)
    torch.save(net.state_dict(), tmp_path / "pytorch_model.bin")
    for path in (tmp_path, tmp_path / "optimizer.pt"):
        states = capture.load(path)
        assert states.naming == "pytorch_model.bin"
        assert_right(states, net)
    assert_right(capture.load(tmp_path, names=tmp_path / "pytorch_model.bin"), net)
    # Also from shards; their index is sorted by name.
    torch.save(dict(list(net.state_dict().items())[:4]), tmp_path / "pytorch_model-1.bin")
    torch.save(dict(list(net.state_dict().items())[4:]), tmp_path / "pytorch_model-2.bin")
    shards = {n: f"pytorch_model-{1 + (i > 3)}.bin" for i, n in enumerate(net.state_dict())}
    (tmp_path / "pytorch_model.bin").unlink()
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": shards}, sort_keys=True))
    assert_right(capture.load(tmp_path, names=index), net)
    index.write_text(json.dumps({"weight_map": {"q.bias": "../elsewhere.bin"}}))
    with pytest.raises(BadValueError, match="is missing, damaged, or no file of a model"):
        capture.load(tmp_path, names=index)
    states = capture.load(tmp_path)
    assert states.parameters()[0] == "group0.param0"
    assert states.naming.startswith("numbers: pytorch_model.bin.index.json is missing, damaged")


def test_a_model_names_them_in_its_order_or_in_the_trainers(tmp_path: Path) -> None:
    net = checkpoint(tmp_path, weight_decay=0.0)
    assert_right(capture.load(tmp_path, names=net), net)
    optimizer = torch.optim.AdamW(net.parameters())
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    states = capture.load(tmp_path, names=net)
    assert states.parameters() == [name for name, _ in net.named_parameters()]
    assert torch.equal(states.tensor("k.bias", "exp_avg"), optimizer.state[net.k.bias]["exp_avg"])
    # A checkpoint's own names count more than those of the model beside it.
    torch.save(net.state_dict(), tmp_path / "pytorch_model.bin")
    prefixed = torch.optim.AdamW([(f"own.{name}", p) for name, p in net.named_parameters()])
    prefixed.step()
    torch.save(prefixed.state_dict(), tmp_path / "optimizer.pt")
    states = capture.load(tmp_path)
    assert (states.naming, states.parameters()[0]) == ("the checkpoint", "own.embed.weight")


def test_frozen_parameters_are_left_out_or_the_names(tmp_path: Path) -> None:
    net = checkpoint(tmp_path, frozen := ("embed.weight",))
    torch.save(net.state_dict(), tmp_path / "pytorch_model.bin")
    assert_right(capture.load(tmp_path), net, frozen)
    # q and k have one shape, so the frozen one of the two is unknown.
    net = checkpoint(tmp_path, frozen := ("k.weight",))
    states = capture.load(tmp_path)
    reason = (
        "the states fit the parameters in pytorch_model.bin in several orders, and there is no "
        "config.json beside it"
    )
    assert (states.parameters()[1], states.naming) == ("group0.param1", f"numbers: {reason}")
    place = tmp_path / "pytorch_model.bin"
    with pytest.raises(BadValueError) as caught:
        capture.load(tmp_path, names=place)
    assert str(caught.value) == (
        f"names={str(place)!r}: {reason}; give a text file with one name per line in the "
        "optimizer's order"
    )
    assert_right(capture.load(tmp_path, names=net), net, frozen)


def test_safetensors_do_not_tell_the_order_which_is_not_guessed(tmp_path: Path) -> None:
    net = checkpoint(tmp_path)
    tensors = {name: p.detach().clone() for name, p in net.named_parameters()}
    save_file(tensors, tmp_path / "model.safetensors")
    states = capture.load(tmp_path)
    # k comes before q in the file, and has the same shapes.
    assert states.parameters()[0] == "group0.param0"
    assert states.naming == (
        "numbers: model.safetensors keeps no order of parameters, and there is no config.json "
        "beside it"
    )
    (tmp_path / "config.json").write_text('{"architectures": 7}')
    assert capture.load(tmp_path).naming.endswith(
        "config.json does not name the model's architecture"
    )


def test_a_state_dict_under_any_name_has_the_names(tmp_path: Path) -> None:
    net = checkpoint(tmp_path)
    torch.save(net.state_dict(), tmp_path / "net.pt")
    states = capture.load(tmp_path, names=tmp_path / "net.pt")
    assert states.naming == "net.pt"
    assert_right(states, net)
    torch.save({"model": net.state_dict(), "epoch": 3}, tmp_path / "last.ckpt")
    assert_right(capture.load(tmp_path, names=tmp_path / "last.ckpt"), net)
    # Running averages of batch norms have the shape of weights, and are none.
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.randn(3, 4)).square().sum().backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    torch.save(net.state_dict(), tmp_path / "net.pt")
    names = capture.load(tmp_path, names=tmp_path / "net.pt").parameters()
    assert names == ["0.weight", "0.bias", "1.weight", "1.bias"]
    (tmp_path / "latin.txt").write_bytes("é".encode("latin-1"))
    with pytest.raises(BadValueError) as caught:
        capture.load(tmp_path, names=tmp_path / "latin.txt")
    assert str(caught.value) == (
        f"names={str(tmp_path / 'latin.txt')!r} cannot be read (it is not text in UTF-8); "
        "expected a file of a model, or a text file with one name per line"
    )


def test_names_in_a_text_file(tmp_path: Path) -> None:
    net = checkpoint(tmp_path)
    path = tmp_path / "names.txt"
    path.write_text("\n".join([*DECAYING, "", *EXEMPT]) + "\n")
    states = capture.load(tmp_path, names=str(path))
    assert_right(states, net)
    assert states.naming == "names.txt"
    path.write_text("a\nb\n")
    with pytest.raises(BadValueError) as caught:
        capture.load(tmp_path, names=path)
    shown = repr(str(tmp_path / "optimizer.pt"))
    assert str(caught.value) == f"names has 2 entries, but {shown} has 7 parameters"
    with pytest.raises(BadValueError) as caught:
        capture.load(tmp_path, names=tmp_path / "none.txt")
    assert str(caught.value) == (
        f"names={str(tmp_path / 'none.txt')!r} cannot be read (No such file or directory); "
        "expected a file of a model, or a text file with one name per line"
    )
    write(capture.load(tmp_path, names=net), tmp_path / "states")
    assert_right(capture.load(tmp_path / "states"), net)
    with pytest.raises(BadValueError, match="names needs an optimizer checkpoint"):
        capture.load(tmp_path / "states", names=net)


SHAPES = {"w": (3, 3), "l.bias": (3,), "gain": (2,), "ln.weight": (3,), "q_norm.weight": (4,)}
DECAY, NO = 0.1, 0.0


@pytest.mark.parametrize(
    ("norms", "groups"),
    [
        # transformers 5: by the module's type, and by name.
        ("ln.weight", [(["w", "gain"], DECAY), (["l.bias", "ln.weight", "q_norm.weight"], NO)]),
        # transformers 4: by the module's type, and biases.
        ("ln.weight", [(["w", "gain", "q_norm.weight"], DECAY), (["l.bias", "ln.weight"], NO)]),
        # By dimensions; the group without weight decay may be the first.
        ("", [(["w"], DECAY), (["l.bias", "gain", "ln.weight", "q_norm.weight"], NO)]),
        ("", [(["l.bias", "gain", "ln.weight", "q_norm.weight"], NO), (["w"], DECAY)]),
        ("", [(["w"], None), (["l.bias", "gain", "ln.weight", "q_norm.weight"], None)]),
        # In the model's order, cut somewhere.
        ("", [(["w", "l.bias", "gain", "ln.weight"], DECAY), (["q_norm.weight"], DECAY)]),
    ],
)
def test_weight_decay_distinguishes_parameters(norms: str, groups: list) -> None:
    model = Known("here", SHAPES, frozenset({norms}))
    actual = fitted(model, [Group([SHAPES[n] for n in names], decay) for names, decay in groups])
    assert actual == [name for names, _ in groups for name in names]


def test_ambiguous_names() -> None:
    def reason(groups: list[Group], norms: str = "") -> str:
        with pytest.raises(Unnamed) as caught:
            fitted(Known("here", alike, frozenset({norms})), groups)
        return str(caught.value)

    shape_of_vectors = (3,)
    alike = {name: shape if len(shape) > 1 else shape_of_vectors for name, shape in SHAPES.items()}
    assert reason([Group([None, None])]) == "no state has the shape of its parameter"
    assert reason([Group([shape_of_vectors] * 6)]) == "here has 5 parameters and the optimizer 6"
    assert reason([Group([shape_of_vectors, (3, 3)])]) == (
        "the states do not have the shapes of the parameters in here"
    )
    several = "the states fit the parameters in here in several orders"
    assert reason([Group([(3, 3), shape_of_vectors])]) == several
    # As transformers 4 has the groups, or in the model's order, cut somewhere.
    assert (
        reason(
            [
                Group([(3, 3), shape_of_vectors, shape_of_vectors], 0.1),
                Group([shape_of_vectors] * 2, 0.0),
            ],
            "ln.weight",
        )
        == several
    )


def test_shapes_of_parameters() -> None:
    def states(**shapes: tuple[int, ...]) -> dict[str, torch.Tensor]:
        return {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}

    assert parameter_shape(states(other=(1,), state2=(5, 6))) == (5, 6)
    factored = states(exp_avg_sq_row=(2, 5), exp_avg_sq_col=(2, 6))
    assert parameter_shape(factored) == (2, 5, 6)
    assert parameter_shape(states(other=(5, 6))) is None


def saved(path: Path, net: nn.Module, wrapper: dict[str, object] | None = None) -> list[str]:
    """Write a step of AdamW over all parameters, and return their names."""
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.arange(7)).square().sum().backward()
    optimizer.step()
    state_dict = optimizer.state_dict()
    if wrapper is not None:
        key = next(key for key, value in wrapper.items() if value is None)
        state_dict = {**wrapper, key: [state_dict] if key.endswith("s") else state_dict}
    torch.save(state_dict, path)
    return [name for name, _ in net.named_parameters()]


@pytest.mark.parametrize("frozen", [("embed.weight",), ("k.weight", "ln.bias"), ("q.bias",)])
def test_frozen_parameters_in_the_optimizer_have_names(
    frozen: tuple[str, ...], tmp_path: Path
) -> None:
    net = Net()
    for name in frozen:
        net.get_parameter(name).requires_grad_(False)
    names = saved(tmp_path / "o.pt", net)
    states = capture.load(tmp_path / "o.pt", names=net)
    assert states.parameters() == [name for name in names if name not in frozen]
    net.requires_grad_(False)  # later, when the states are looked at
    assert capture.load(tmp_path / "o.pt", names=net).parameters() == states.parameters()


@pytest.mark.parametrize(
    "keys",
    [
        ("state_dict", "optimizer_states"),
        ("model_state_dict", "optimizer_state_dict"),
        ("model", "optimizer"),
    ],
)
def test_the_model_in_the_checkpoints_file_names_them(
    keys: tuple[str, str], tmp_path: Path
) -> None:
    net, path = Net(), tmp_path / "last.ckpt"
    names = saved(path, net, {keys[0]: net.state_dict(), keys[1]: None})
    states = capture.load(path)
    assert (states.parameters(), states.naming) == (names, "last.ckpt")
    # The reason names a file that does not fit, unless another one fits.
    saved(path, net, {keys[0]: nn.Linear(2, 2).state_dict(), keys[1]: None})
    reason = "numbers: last.ckpt has 2 parameters and the optimizer 7"
    assert capture.load(path).naming == reason
    torch.save(net.state_dict(), tmp_path / "pytorch_model.bin")
    assert capture.load(path).naming == "pytorch_model.bin"


MATRICES = {"embed.weight": (7, 4), "q.weight": (4, 4), "k.weight": (4, 4)}


@pytest.mark.parametrize(
    "shapes",
    [
        {name: (4 * shape[0],) for name, shape in MATRICES.items()},
        {name: (shape[0], 1) for name, shape in MATRICES.items()},
        {"embed.weight": (7, 2), "q.weight": (2, 4)},
        {"embed.weight": (5,), "q.weight": None},
    ],
    ids=["flat", "rows", "low rank", "some elements"],
)
def test_states_of_other_shapes_have_the_models_names(
    shapes: dict[str, tuple[int, ...] | None], tmp_path: Path
) -> None:
    net, path = Net(), tmp_path / "o.pt"
    names = saved(path, net)
    state_dict = torch.load(path)
    for number, name in enumerate(names):
        if (shape := shapes.get(name, MATRICES.get(name))) is not None:
            state_dict["state"][number]["exp_avg"] = torch.ones(shape)
        elif name in shapes:
            state_dict["state"][number] = {"trace": torch.ones(3, 3, 3)}
    torch.save(state_dict, path)
    assert capture.load(path, names=net).parameters() == names
    # A parameter less, or another size of the same model, is no longer this model.
    with pytest.raises(BadValueError, match=r"^names is a model whose parameters do not tell"):
        capture.load(path, names=nn.Sequential(net, nn.Linear(2, 2)))
    state_dict["state"][0]["exp_avg"] = torch.ones(6, 3)
    torch.save(state_dict, path)
    with pytest.raises(BadValueError, match=r"the states do not have the shapes of the parameters"):
        capture.load(path, names=net)


def test_the_files_of_an_adapter(tmp_path: Path) -> None:
    net = Net()
    names = saved(tmp_path / "optimizer.pt", net)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    reason = (
        "adapter_config.json is of PEFT, and names no order; give the model with its adapter as "
        "names"
    )
    assert capture.load(tmp_path).naming == f"numbers: {reason}"
    weights = tmp_path / "adapter_model.safetensors"
    save_file({name: p.detach().clone() for name, p in net.named_parameters()}, weights)
    with pytest.raises(BadValueError) as caught:
        capture.load(tmp_path, names=weights)
    assert f"adapter_model.safetensors keeps no order of parameters, and {reason}" in str(
        caught.value
    )
    torch.save(dict(net.named_parameters()), tmp_path / "adapter_model.bin")  # of earlier versions
    assert capture.load(tmp_path).parameters() == names
