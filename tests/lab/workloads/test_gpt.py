from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from qmaps.errors import BadValueError
from qmaps.lab.workloads.gpt import GPT, GPTShape
from qmaps.nn import StableEmbedding

pytestmark = pytest.mark.slow

SMALL = GPTShape(context=16, width=32, layers=2, heads=4)


def test_a_future_token_changes_no_earlier_logit() -> None:
    net = GPT(SMALL)
    tokens = torch.randint(0, 256, (2, 16))
    changed = tokens.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 256
    before, after = net(tokens), net(changed)
    assert before.shape == (2, 16, 256)
    assert torch.equal(before[:, :9], after[:, :9])
    # Every later one sees it.
    assert (before[:, 9:] != after[:, 9:]).any(dim=-1).all()


def test_attention_is_that_of_a_masked_softmax() -> None:
    block = GPT(SMALL).blocks[0]
    x = torch.randn(2, 5, 32)
    q, k, v = block.qkv(block.norm1(x)).split(32, dim=-1)
    heads = []
    for head in range(4):
        part = slice(8 * head, 8 * head + 8)
        scores = q[..., part] @ k[..., part].transpose(1, 2) / 8**0.5
        scores.masked_fill_(torch.ones(5, 5).triu(1).bool(), -torch.inf)
        heads.append(scores.softmax(-1) @ v[..., part])
    wanted = x + block.proj(torch.cat(heads, dim=-1))
    wanted = wanted + block.down(F.gelu(block.up(block.norm2(wanted))))
    torch.testing.assert_close(block(x), wanted)


def test_positions_matter() -> None:
    logits = GPT(SMALL)(torch.zeros(1, 4, dtype=torch.int64))[0]
    assert len({tuple(row) for row in logits.tolist()}) == 4


def test_initial_weights() -> None:
    net = GPT(GPTShape())
    wanted = {"proj.weight": 0.02 / 8**0.5, "down.weight": 0.02 / 8**0.5}
    for name, parameter in net.named_parameters():
        if parameter.dim() == 2:
            std = wanted.get(name.partition(".")[2].partition(".")[2], 0.02)
            assert float(parameter.std()) == pytest.approx(std, rel=0.05), name
        else:
            assert (parameter == (0 if name.endswith("bias") else 1)).all(), name


def test_a_stable_embedding_keeps_its_own_initialization() -> None:
    torch.manual_seed(0)
    plain = GPT(SMALL)
    torch.manual_seed(0)
    net = GPT(SMALL, stable_embedding=True)
    assert type(plain.tokens) is torch.nn.Embedding
    assert isinstance(net.tokens, StableEmbedding)
    bound = (6 / (256 + 32)) ** 0.5
    assert float(net.tokens.weight.detach().abs().max()) == pytest.approx(bound, rel=1e-2)
    added = {name for name, _ in net.named_parameters()} - {
        name for name, _ in plain.named_parameters()
    }
    assert added == {"tokens.norm.weight", "tokens.norm.bias"}
    assert float(net.positions.weight.detach().std()) == pytest.approx(0.02, rel=0.1)
    # Word embeddings have a variance of one when positions are added.
    assert float(net.tokens(torch.arange(256)).detach().var()) == pytest.approx(1, rel=0.02)


def test_the_head_is_not_tied() -> None:
    net = GPT(SMALL)
    assert net.head.weight is not net.tokens.weight
    assert not torch.equal(net.head.weight, net.tokens.weight)


def test_size() -> None:
    assert sum(p.numel() for p in GPT(GPTShape()).parameters()) == 1_902_720


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 5}, "heads=5 must be a divisor of width=192"),
        ({"layers": 0}, "layers=0 must be an int of at least 1"),
        ({"width": 1.5}, "width=1.5 must be an int of at least 1"),
    ],
)
def test_bad_shapes(options: dict[str, float], message: str) -> None:
    with pytest.raises(BadValueError) as caught:
        GPTShape(**options)
    assert str(caught.value) == message


def test_a_sequence_beyond_the_context() -> None:
    with pytest.raises(BadValueError) as caught:
        GPT(SMALL)(torch.zeros(1, 17, dtype=torch.int64))
    assert str(caught.value) == "length=17 must be at most context=16"
