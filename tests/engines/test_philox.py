from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import qmaps
from qmaps.engines.philox import RoundingKey, philox4x32, uniform, words


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000",
         "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
         "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
         "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)  # fmt: skip
def test_known_answers_of_random123(counter: str, key: str, expected: str) -> None:
    block = torch.tensor([int(word, 16) for word in counter.split()])
    k0, k1 = (int(word, 16) for word in key.split())
    found = philox4x32(block, (k0, k1)).tolist()
    assert " ".join(f"{word:08x}" for word in found) == expected


def philox_by_hand(counter: list[int], key: list[int]) -> list[int]:
    """Ten rounds in Python integers, as the paper writes them."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 % 2**32, (p0 >> 32) ^ c3 ^ k1, p0 % 2**32
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return [c0, c1, c2, c3]


word = st.integers(0, 2**32 - 1) | st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32 - 1])


@given(counter=st.lists(word, min_size=4, max_size=4), key=st.lists(word, min_size=2, max_size=2))
def test_any_counter_and_key(counter: list[int], key: list[int]) -> None:
    found = philox4x32(torch.tensor(counter), (key[0], key[1])).tolist()
    assert found == philox_by_hand(counter, key)


@given(
    seed=word, purpose=st.integers(0, 255), step=word | st.integers(2**32, 2**53 - 1), tensor=word,
    micro_batch=st.integers(0, 2**16 - 1), state=st.integers(0, 255),
    offset=st.integers(0, 2**42 - 9), count=st.integers(0, 9),
)  # fmt: skip
def test_every_number_by_hand(count: int, **parts: int) -> None:
    key = RoundingKey(**parts)
    expected, raw = [], []
    for g in range(key.offset, key.offset + count):
        high = (g // 4 >> 32) + (key.state << 8) + (key.micro_batch << 16)
        counter = [g // 4 % 2**32, high, key.tensor, key.step % 2**32]
        purpose = key.purpose + 256 * (key.step // 2**32)
        raw.append(philox_by_hand(counter, [key.seed, purpose])[g % 4])
        expected.append((raw[-1] >> 8) / 2**24)
    assert words(count, key).tolist() == raw
    found = uniform(count, key)
    assert found.dtype == torch.float32
    assert found.tolist() == expected


def test_the_last_element_that_can_be_numbered() -> None:
    with pytest.raises(ValueError) as caught:
        uniform(2, RoundingKey(offset=2**42 - 1))
    assert str(caught.value) == "offset=4398046511103 plus 2 elements must be at most 2**42"


def test_counter_layout() -> None:
    key = RoundingKey(seed=9, purpose=2, step=5, micro_batch=3, tensor=7, state=1, offset=4 * 2**33)
    counter = torch.tensor([0, 2 | 1 << 8 | 3 << 16, 7, 5])
    block = philox4x32(counter, (9, 2))
    assert torch.equal(uniform(4, key), (block >> 8).float() / 2**24)
    assert torch.equal(words(4, key), block)


def test_a_shard_draws_what_the_whole_draws() -> None:
    whole = uniform(1000, RoundingKey(seed=1, step=2))
    for start, stop in ((0, 10), (3, 9), (7, 1000), (500, 501)):
        assert torch.equal(
            uniform(stop - start, RoundingKey(seed=1, step=2, offset=start)), whole[start:stop]
        )


@pytest.mark.parametrize("field", ["seed", "purpose", "step", "micro_batch", "tensor", "state"])
def test_every_part_of_the_key_matters(field: str) -> None:
    assert not torch.equal(uniform(64, RoundingKey()), uniform(64, RoundingKey(**{field: 1})))


def test_range_and_independence_of_the_global_generator() -> None:
    before = torch.get_rng_state()
    draws = uniform(100_000, RoundingKey())
    assert torch.equal(torch.get_rng_state(), before)
    assert float(draws.min()) >= 0
    assert float(draws.max()) < 1
    # Mean of 1e5 uniforms: standard deviation 9.1e-4.
    assert abs(float(draws.double().mean()) - 0.5) < 6 * 9.1e-4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": -1}, "seed=-1 must be between 0 and 2**32 - 1"),
        ({"state": 256}, "state=256 must be between 0 and 2**8 - 1"),
        ({"purpose": 256}, "purpose=256 must be between 0 and 2**8 - 1"),
        ({"step": 2**53}, "step=9007199254740992 must be between 0 and 2**53 - 1"),
        ({"micro_batch": 2**16}, "micro_batch=65536 must be between 0 and 2**16 - 1"),
        ({"offset": 2**42}, "offset=4398046511104 must be between 0 and 2**42 - 1"),
        ({"step": 1.0}, "step=1.0 must be an int"),
        ({"tensor": True}, "tensor=True must be an int"),
    ],
)
def test_bad_keys(options: dict[str, int], message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        RoundingKey(**options)
    assert str(caught.value) == message


def test_a_shard_of_a_tensor_is_rounded_as_in_the_whole() -> None:
    x = torch.rand(1024, generator=torch.Generator().manual_seed(0)) - 0.5
    q = qmaps.quantizer("B64/DE@4s+sr")
    whole = q.quantize(x, key=RoundingKey(seed=3, step=9)).codes()
    for start, stop in ((0, 256), (256, 704), (704, 1024)):
        key = RoundingKey(seed=3, step=9, offset=start)
        assert torch.equal(q.quantize(x[start:stop], key=key).codes(), whole[start:stop])


def test_rounding_ignores_and_leaves_torchs_generator() -> None:
    x = torch.rand(1000, generator=torch.Generator().manual_seed(0))
    q = qmaps.quantizer("B64/DE@4s+sr")
    torch.manual_seed(1)
    first = q.quantize(x)
    before = torch.get_rng_state()
    torch.manual_seed(2)
    assert torch.equal(q.quantize(x).packed, first.packed)
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), before)
