"""Known answers, noise that is a function of what is drawn alone, and bits that never vary."""

import math

import pytest
import torch
from deepinfer_core.sampling import rng

# Random123, examples/kat_vectors: philox4x32 10.
KNOWN_ANSWERS = [
    (
        [0, 0, 0, 0], [0, 0],
        [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8],
    ),
    (
        [0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2,
        [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD],
    ),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]  # fmt: skip


def words(values):
    return tuple(torch.tensor([value]) for value in values)


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_known_answers(counter, key, expected):
    assert [int(w) for w in rng.philox4x32(words(counter), words(key))] == expected


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_known_answers_in_signed_torch_arithmetic(counter, key, expected):
    """What runs on accelerators, where there is no numpy."""
    assert [int(w) for w in rng._ten_rounds(*words(counter), *words(key))] == expected


def test_random_words_equal_plain_python(obvious):
    seeds = [0, 1, -1, 2**63 - 1, -(2**63), 0x0123456789ABCDEF]
    for i, seed in enumerate(seeds):
        args = [torch.tensor([value]) for value in (seed, i, 2**31 + i, 1000 + i)]
        found = [int(w) for w in rng.random_words(*args, purpose=i)]
        key = (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)
        assert found == obvious.philox((2**31 + i, i, i, 1000 + i), key)


def test_token_noise_takes_the_lane_of_the_token(obvious):
    ids = torch.tensor([[0, 1, 2, 3, 4, 129279], [7, 6, 5, 4, 3, 2]])
    keys = [torch.tensor(values) for values in ([5, -7], [0, 3], [10, 11])]
    noise = rng.token_noise(*keys, ids)
    for n in range(2):
        for m in range(6):
            seed, sample, position = (int(key[n]) for key in keys)
            assert noise[n, m] == obvious.noise(seed, sample, position, int(ids[n, m]))


def test_every_coordinate_changes_the_words():
    base = [1, 2, 3, 4]
    seen = {tuple(int(w) for w in rng.random_words(*words(base), purpose=0))}
    for i in range(4):
        changed = [value + (i == j) for j, value in enumerate(base)]
        seen.add(tuple(int(w) for w in rng.random_words(*words(changed), purpose=0)))
    seen.add(tuple(int(w) for w in rng.random_words(*words(base), purpose=1)))
    seen.add(tuple(int(w) for w in rng.random_words(*words([1 + 2**32, 2, 3, 4]), purpose=0)))
    assert len(seen) == 7


def test_gumbel_is_finite_bounded_and_rises():
    edges = torch.tensor([0, 255, 256, 2**31, 2**32 - 257, 2**32 - 256, 2**32 - 1])
    noise = rng.gumbel(edges)
    assert noise.dtype == torch.float32
    assert torch.isfinite(noise).all()
    assert (noise[1:] >= noise[:-1]).all()
    assert noise[-1] == torch.tensor(rng.MAX_GUMBEL, dtype=torch.float32)
    assert math.isclose(noise[0], -math.log(25 * math.log(2)), rel_tol=1e-6)


def test_gumbel_has_the_moments_of_its_distribution():
    keys = [torch.tensor([value]) for value in (1, 0, 0)]
    noise = rng.token_noise(*keys, torch.arange(200_000)[None]).double()
    assert abs(noise.mean() - 0.5772) < 0.015
    assert abs(noise.var() - math.pi**2 / 6) < 0.03


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("function", [torch.log, torch.exp], ids=["log", "exp"])
@pytest.mark.parametrize("size", [1, 3, 63, 65, 16385, 70001])
def test_map_elements_gives_the_same_bits_in_any_company(function, size, threads):
    values = torch.rand(size, generator=torch.Generator().manual_seed(size)) + 1e-3
    old = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = rng.map_elements(function, values)
        torch.set_num_threads(1)
        picked = [0, size // 2, size - 1]
        alone = torch.cat([rng.map_elements(function, values[i : i + 1]) for i in picked])
    finally:
        torch.set_num_threads(old)
    assert together.shape == values.shape
    assert torch.equal(together[picked], alone)


def test_map_elements_keeps_the_shape():
    values = torch.rand(3, 5, 7)
    assert torch.allclose(rng.map_elements(torch.exp, values), values.exp())
    assert rng.map_elements(torch.exp, values[:0]).shape == (0, 5, 7)


@pytest.mark.parametrize("size", [1, 64, 100, 16384, 40000])
def test_map_elements_calls_with_whole_vectors_below_the_threading_size(size):
    """Why the bits agree: no scalar remainder, and nothing to split over threads."""
    sizes = []

    def note(values):
        sizes.append(values.numel())
        return values + 1

    values = torch.rand(size)
    assert torch.equal(rng.map_elements(note, values), values + 1)
    assert all(n % 64 == 0 and n < 32768 for n in sizes)
