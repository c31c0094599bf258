from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import qmaps
from qmaps.algebra.philox import RoundingKey, draws, philox4x32, uniform


@pytest.mark.parametrize(
    ("rounds", "counter", "key", "expected"),
    [
        (7, "00000000 00000000 00000000 00000000", "00000000 00000000",
         "5f6fb709 0d893f64 4f121f81 4f730a48"),
        (7, "ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
         "5207ddc2 45165e59 4d8ee751 8c52f662"),
        (7, "243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
         "4dfccaba 190a87f0 c47362ba b6b5242a"),
        (10, "00000000 00000000 00000000 00000000", "00000000 00000000",
         "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (10, "ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
         "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (10, "243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
         "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)  # fmt: skip
def test_known_answers_of_random123(rounds: int, counter: str, key: str, expected: str) -> None:
    block = torch.tensor([int(word, 16) for word in counter.split()])
    k0, k1 = (int(word, 16) for word in key.split())
    actual = philox4x32(block, (k0, k1), rounds).tolist()
    assert " ".join(f"{word:08x}" for word in actual) == expected


def philox_by_hand(counter: list[int], key: list[int], rounds: int) -> list[int]:
    """Rounds in Python integers, as the paper writes them."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(rounds):
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 % 2**32, (p0 >> 32) ^ c3 ^ k1, p0 % 2**32
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return [c0, c1, c2, c3]


word = st.integers(0, 2**32 - 1) | st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32 - 1])


@given(
    counter=st.lists(word, min_size=4, max_size=4),
    key=st.lists(word, min_size=2, max_size=2),
    rounds=st.sampled_from([7, 10]),
)
def test_any_counter_and_key(counter: list[int], key: list[int], rounds: int) -> None:
    actual = philox4x32(torch.tensor(counter), (key[0], key[1]), rounds).tolist()
    assert actual == philox_by_hand(counter, key, rounds)


@given(
    seed=word, purpose=st.integers(0, 255), step=word | st.integers(2**32, 2**53 - 1), tensor=word,
    micro_batch=st.integers(0, 2**16 - 1), state=st.integers(0, 255),
    offset=st.integers(0, 2**42 - 17), count=st.integers(0, 17),
)  # fmt: skip
def test_every_number_by_hand(count: int, **parts: int) -> None:
    key = RoundingKey(**parts)
    expected = []
    for g in range(key.offset, key.offset + count):
        high = (g // 8 >> 32) + (key.state << 8) + (key.micro_batch << 16)
        counter = [g // 8 % 2**32, high, key.tensor, key.step % 2**32]
        purpose = key.purpose + 256 * (key.step // 2**32)
        block = philox_by_hand(counter, [key.seed, purpose], 7)
        # Eight numbers of 16 bits, as the four words lie in memory on a little-endian machine.
        expected.append(int(np.array(block, dtype="<u4").view("<u2")[g % 8]))
    assert draws(count, key).tolist() == expected
    actual = uniform(count, key)
    assert actual.dtype == torch.float32
    assert actual.tolist() == [(draw + 0.5) / 2**16 for draw in expected]


def test_the_last_element_that_can_be_numbered() -> None:
    with pytest.raises(ValueError) as caught:
        uniform(2, RoundingKey(offset=2**42 - 1))
    assert str(caught.value) == "offset=4398046511103 plus 2 elements must be at most 2**42"


def test_counter_layout() -> None:
    key = RoundingKey(seed=9, purpose=2, step=5, micro_batch=3, tensor=7, state=1, offset=8 * 2**33)
    counter = torch.tensor([0, 2 | 1 << 8 | 3 << 16, 7, 5])
    block = philox4x32(counter, (9, 2), 7)
    assert torch.equal(draws(8, key)[0::2], block % 2**16)
    assert torch.equal(draws(8, key)[1::2], block // 2**16)


def test_a_shard_draws_the_numbers_of_the_full_tensor() -> None:
    full = uniform(1000, RoundingKey(seed=1, step=2))
    for start, stop in ((0, 10), (3, 9), (7, 1000), (500, 501), (8, 16), (13, 13)):
        assert torch.equal(
            uniform(stop - start, RoundingKey(seed=1, step=2, offset=start)), full[start:stop]
        )


def test_runs_draw_the_numbers_of_the_full_tensor() -> None:
    full = draws(1000, RoundingKey(seed=1, step=2))
    for offset, length, distance in ((0, 3, 10), (5, 8, 8), (13, 11, 100)):
        key = RoundingKey(seed=1, step=2, offset=offset, runs=(length, distance))
        expected = [full[offset + i // length * distance + i % length] for i in range(50)]
        assert torch.equal(draws(50, key), torch.stack(expected))


@pytest.mark.parametrize("field", ["seed", "purpose", "step", "micro_batch", "tensor", "state"])
def test_every_part_of_the_key_matters(field: str) -> None:
    assert not torch.equal(uniform(64, RoundingKey()), uniform(64, RoundingKey(**{field: 1})))


def test_range_and_independence_of_the_global_generator() -> None:
    before = torch.get_rng_state()
    drawn = uniform(2**20, RoundingKey())
    assert torch.equal(torch.get_rng_state(), before)
    # Among 2**20 numbers each end is missing for one key in e**16.
    assert float(drawn.min()) == 2.0**-17
    assert float(drawn.max()) == 1 - 2.0**-17
    # Mean of 2**20 uniforms: standard deviation 2.82e-4.
    assert abs(float(drawn.double().mean()) - 0.5) < 6 * 2.82e-4


# A battery of chi-square tests. The keys are fixed, so the outcome does not change from run to
# run. Each statistic is compared with its mean of df plus or minus 6 standard deviations of
# sqrt(2 df), which for df of at least 255 a good generator exceeds for fewer than one key in 1e7.

KEYS = {
    "first": RoundingKey(),
    "seed": RoundingKey(seed=1),
    "all bits": RoundingKey(2**32 - 1, 255, 2**53 - 1, 2**16 - 1, 2**32 - 1, 255),
    "a later state": RoundingKey(seed=42, step=1000, tensor=17, state=1),
    "parameters": RoundingKey(seed=42, step=1000, tensor=17, purpose=1),
    "messages": RoundingKey(seed=7, purpose=16, step=3, micro_batch=5, tensor=2),
    "far elements": RoundingKey(seed=3, offset=2**35 - 2**15),
}


def is_plausible(counts: np.ndarray) -> bool:
    """True if counts of equally likely outcomes are neither too uneven nor too even."""
    expected = counts.sum() / counts.size
    df = counts.size - 1
    statistic = float(((counts - expected) ** 2).sum() / expected)
    return abs(statistic - df) < 6 * (2 * df) ** 0.5


def bytes_of(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return values & 255, values >> 8


def pairs(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Counts of each of the 2**16 pairs of bytes."""
    return np.bincount(first << 8 | second, minlength=2**16)


def drawn_by(key: RoundingKey, count: int = 2**20) -> np.ndarray:
    return draws(count, key).numpy()


def test_the_battery_refuses_bad_generators() -> None:
    good = np.random.default_rng(0).integers(0, 2**16, 2**20)
    assert is_plausible(np.bincount(good, minlength=2**16))
    assert is_plausible(pairs(good[:-1] & 255, good[1:] & 255))
    counting = np.arange(2**20) % 2**16
    assert not is_plausible(np.bincount(counting, minlength=2**16))
    one_bit = np.where(good % 50 == 0, good | 1, good)
    assert not is_plausible(np.bincount(one_bit, minlength=2**16))
    follows = (good[:-1] & 255) ^ np.where(good[1:] % 20 == 0, 0, good[1:] & 255)
    assert not is_plausible(pairs(good[:-1] & 255, follows))


@pytest.mark.parametrize("name", KEYS)
def test_all_16_bits_are_uniform(name: str) -> None:
    values = drawn_by(KEYS[name])
    assert is_plausible(np.bincount(values, minlength=2**16))
    for column in bytes_of(values):
        assert is_plausible(np.bincount(column, minlength=2**8))
    for lane in range(8):
        for column in bytes_of(values[lane::8]):
            assert is_plausible(np.bincount(column, minlength=2**8))


@pytest.mark.parametrize("distance", [1, 2, 3, 4, 5, 6, 7, 8, 16, 64, 1024])
@pytest.mark.parametrize("name", ["first", "a later state"])
def test_neighbours_are_independent(name: str, distance: int) -> None:
    values = drawn_by(KEYS[name])
    for first in bytes_of(values[:-distance]):
        for second in bytes_of(values[distance:]):
            assert is_plausible(pairs(first, second))


@pytest.mark.parametrize("lane", range(8))
def test_the_lanes_of_a_block_are_independent(lane: int) -> None:
    values = drawn_by(KEYS["a later state"], 2**21).reshape(-1, 8)
    for later in range(lane + 1, 8):
        for first in bytes_of(values[:, lane]):
            for second in bytes_of(values[:, later]):
                assert is_plausible(pairs(first, second))


@pytest.mark.parametrize("field", ["seed", "purpose", "step", "micro_batch", "tensor", "state"])
@pytest.mark.parametrize("distance", [1, 2, 16])
def test_streams_are_independent(field: str, distance: int) -> None:
    """Of neighbouring steps, tensors, states, and so on, and one element over many of them."""
    key = KEYS["a later state"]
    neighbour = replace(key, **{field: getattr(key, field) + distance})
    for first, second in zip(bytes_of(drawn_by(key)), bytes_of(drawn_by(neighbour)), strict=True):
        assert is_plausible(pairs(first, second))
    over = np.stack([drawn_by(replace(key, **{field: i * distance}), 2**16) for i in range(16)])
    for half in bytes_of(over):
        assert is_plausible(np.bincount(half.ravel(), minlength=2**8))
        # One element in one stream and in the next.
        assert is_plausible(pairs(half[:-1].ravel(), half[1:].ravel()))


def test_every_bit_of_the_counter_changes_half_of_the_bits() -> None:
    """Avalanche: of 8192 pairs of blocks, each bit of the result differs in a half."""
    generator = torch.Generator().manual_seed(0)
    counters = torch.randint(2**32, (8192, 4), generator=generator)
    block = philox4x32(counters, (3, 5), 7).numpy()
    shifts = np.arange(32)
    for word_number in range(4):
        for bit in range(32):
            changed = counters.clone()
            changed[:, word_number] ^= 1 << bit
            differs = philox4x32(changed, (3, 5), 7).numpy() ^ block
            share = (differs[..., None] >> shifts & 1).mean(axis=0)
            # Of 2**14 shares with a standard deviation of 0.0055, one in 5e8 lies beyond 6.
            assert float(np.abs(share - 0.5).max()) < 6 * 0.5 / 8192**0.5


@pytest.mark.parametrize("spec", ["B64/DE@4s+sr", "B64/linear@2u+sr", "B64/DE@8s+sr"])
@pytest.mark.parametrize("fraction", [2.0**-10, 0.1, 0.5, 0.9, 1 - 2.0**-10])
def test_rounding_is_unbiased(spec: str, fraction: float) -> None:
    """The mean of 2**20 results is the value to six standard deviations plus 2**-17 of the gap."""
    q = qmaps.quantizer(spec)
    codebook = q.map.codebook()
    count, middle = 2**20, codebook.numel() // 2
    low, high = codebook[middle], codebook[middle + 1]
    n = low + fraction * (high - low)
    x = n.repeat(count).view(-1, 64)
    x[:, 0] = 1.0  # so that every scale is 1
    key = RoundingKey(seed=11, step=int(1000 * fraction))
    actual = q.dequantize(q.quantize(x, key=key))[:, 1:].double()
    assert set(actual.unique().tolist()) == {float(low), float(high)}
    gap = float(high.double() - low.double())
    share = float(n.double() - low.double()) / gap
    deviation = (share * (1 - share) / actual.numel()) ** 0.5
    assert abs(float(actual.mean() - n.double())) < (6 * deviation + 2.0**-17) * gap


def test_small_fractions_are_rounded_up_as_often_as_16_bits_can() -> None:
    """The bias is at most 2**-17 of a gap, for every fraction: of all draws, counted."""
    every = uniform(2**21, RoundingKey(seed=5)).unique().double()
    assert every.numel() == 2**16  # all of them
    for fraction in (0.0, 2.0**-18, 2.0**-17, 2.0**-16, 0.3, 0.5, 1 - 2.0**-17, 1.0):
        assert abs(float((every < fraction).double().mean()) - fraction) <= 2.0**-17


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
    full = q.quantize(x, key=RoundingKey(seed=3, step=9)).codes()
    for start, stop in ((0, 256), (256, 704), (704, 1024)):
        key = RoundingKey(seed=3, step=9, offset=start)
        assert torch.equal(q.quantize(x[start:stop], key=key).codes(), full[start:stop])


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


@given(
    seed=word, purpose=st.integers(0, 255), step=word | st.integers(2**32, 2**53 - 1), tensor=word,
    micro_batch=st.integers(0, 2**16 - 1), state=st.integers(0, 255),
    offset=st.integers(0, 2**42 - 17), count=st.integers(0, 17),
)  # fmt: skip
def test_every_spread_number_by_hand(count: int, **parts: int) -> None:
    key = RoundingKey(**parts, spread=True)
    word1 = parts["state"] << 8 | parts["micro_batch"] << 16
    base = philox_by_hand([0, word1, parts["tensor"], 0], [parts["seed"], parts["purpose"]], 7)[0]
    golden, plastic = 0x9E3779B9, 0xC13FA9A9
    assert draws(count, key).tolist() == [
        (base + golden * key.step + plastic * g) % 2**32 >> 16
        for g in range(key.offset, key.offset + count)
    ]


def test_spread_numbers_lie_evenly_over_steps_and_over_neighbours() -> None:
    over_steps = [uniform(3, RoundingKey(seed=9, step=step, spread=True)) for step in range(64)]
    one_step = uniform(64, RoundingKey(seed=9, spread=True))
    for numbers in (*torch.stack(over_steps).T, one_step):
        # Random numbers leave gaps of about 0.07 between 64 of them.
        ordered = torch.cat([torch.zeros(1), numbers.sort().values, torch.ones(1)])
        assert float(ordered.diff().max()) < 0.05
    other_tensor = uniform(64, RoundingKey(seed=9, tensor=1, spread=True))
    assert not torch.equal(one_step, other_tensor)


def test_shards_take_the_spread_numbers_of_the_whole_tensor() -> None:
    full = draws(60, RoundingKey(step=4, spread=True))
    part = draws(11, RoundingKey(step=4, offset=17, spread=True))
    assert torch.equal(part, full[17:28])
    columns = draws(12, RoundingKey(step=4, offset=2, runs=(3, 15), spread=True))
    assert torch.equal(columns, full.view(4, 15)[:, 2:5].reshape(-1))
