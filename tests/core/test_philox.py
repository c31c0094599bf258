from __future__ import annotations

import pytest
import torch

from qmaps.philox import RoundingKey, philox4x32, uniform


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
    words = torch.tensor([int(word, 16) for word in counter.split()])
    k0, k1 = (int(word, 16) for word in key.split())
    found = philox4x32(words, (k0, k1)).tolist()
    assert " ".join(f"{word:08x}" for word in found) == expected


def test_counter_layout() -> None:
    key = RoundingKey(seed=9, purpose=2, step=5, micro_batch=3, tensor=7, state=1, offset=4 * 2**33)
    counter = torch.tensor([0, 2 | 1 << 8 | 3 << 16, 7, 5])
    words = philox4x32(counter, (9, 2))
    assert torch.equal(uniform(4, key), (words >> 8).float() / 2**24)


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
        ({"seed": -1}, "seed=-1 is outside 0 to 2**32 - 1"),
        ({"state": 256}, "state=256 is outside 0 to 2**8 - 1"),
        ({"step": 1.0}, "step=1.0 must be an int"),
    ],
)
def test_bad_keys(options: dict[str, int], message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        RoundingKey(**options)
    assert str(caught.value) == message
