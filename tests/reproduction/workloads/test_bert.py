from __future__ import annotations

import pytest
import torch

from qmaps.errors import BadValueError
from qmaps.lab.workloads.gpt import GPT, GPTShape
from reproduction.workloads.bert import BertShape, Encoder, from_published

pytestmark = pytest.mark.slow

SMALL = BertShape(vocabulary=50, context=16, width=24, layers=2, heads=3, inner=40)
TOKENS = torch.tensor([[5, 9, 2, 7, 0, 0], [3, 4, 8, 1, 6, 2]])


def test_it_is_the_bert_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    theirs = transformers.BertModel(
        transformers.BertConfig(
            vocab_size=50,
            hidden_size=24,
            num_hidden_layers=2,
            num_attention_heads=3,
            intermediate_size=40,
            max_position_embeddings=16,
            initializer_range=0.2,
        )
    ).eval()
    for parameter in theirs.parameters():  # norms are ones and zeros otherwise
        torch.nn.init.normal_(parameter, std=0.2)
    ours = Encoder(SMALL)
    ours.load_state_dict(from_published(theirs.state_dict()))
    mask = TOKENS != 0
    with torch.no_grad():
        wanted = theirs(TOKENS, attention_mask=mask.long()).last_hidden_state
        assert torch.allclose(ours.hidden(TOKENS)[mask], wanted[mask], atol=1e-5)


def test_vectors_have_length_1_and_padding_does_not_matter() -> None:
    torch.manual_seed(0)
    encoder = Encoder(SMALL)
    with torch.no_grad():
        vectors = encoder(TOKENS)
        assert torch.allclose(vectors.norm(dim=1), torch.ones(2))
        assert torch.allclose(encoder(TOKENS[:1, :4]), vectors[:1], atol=1e-6)
        assert not torch.allclose(encoder(TOKENS[1:, :4]), vectors[1:], atol=1e-3)


def test_a_sequence_that_is_too_long() -> None:
    with pytest.raises(BadValueError) as caught:
        Encoder(SMALL)(torch.ones(1, 17, dtype=torch.int64))
    assert str(caught.value) == "length=17 must be at most context=16"


def test_heads_divide_the_width() -> None:
    with pytest.raises(BadValueError) as caught:
        BertShape(width=25, heads=3)
    assert str(caught.value) == "heads=3 must be a divisor of width=25"


def test_nothing_but_the_pooler_is_left_out() -> None:
    model = GPT(GPTShape(width=24, layers=1, heads=3))  # any weights of other names
    renamed = from_published({**model.state_dict(), "pooler.dense.bias": torch.zeros(3)})
    assert set(renamed) == set(model.state_dict())
