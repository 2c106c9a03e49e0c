"""Counter-based random numbers: Philox4x32-10 and the Gumbel noise made of it.

Owns the mapping (seed, sample index, position, purpose, token id) -> noise, which is the whole
state of randomness: nothing here depends on rows, batches or what was drawn before.
Does not know logits or requests. Salmon et al. 2011, doi:10.1145/2063384.2063405.

INVARIANT: every value has the same bits whatever tensor it is computed in. Integers are exact;
logarithms are taken in float64 on vectors without a scalar remainder, then rounded to float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

A = TypeVar("A", bound=Any)  # a torch tensor or a numpy array

PURPOSE_DRAW = 0
"""Third counter word of the noise that draws a token."""

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
LANES = 4
"""Random words per counter, one for each of four neighboring tokens."""

MAX_GUMBEL = -math.log(-math.log1p(-(2.0**-25)))
"""-log(-log(1 - 2^-25)), the largest noise that a 24-bit uniform can give, as float64."""

_VECTOR = 64
"""Multiple of every vector width, in elements."""
_PIECE = 16384
"""Elements per call, below the size from which elementwise calls are split over threads."""


def philox4x32(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ten rounds of Philox4x32.

    Args:
        counter: four int64 tensors of 32-bit words, broadcastable against each other.
        key: two int64 tensors of 32-bit words, of the shape of the first counter word or [1].

    Returns:
        Four int64 tensors with values in [0, 2^32).
    """
    if counter[0].device.type != "cpu":
        return _ten_rounds(*counter, *key)
    # numpy does these operations in half of torch's time (measured on two server CPUs).
    words = _ten_rounds(*(word.numpy().view(np.uint64) for word in (*counter, *key)))
    w0, w1, w2, w3 = (torch.from_numpy(word.view(np.int64)) for word in words)
    return w0, w1, w2, w3


def _ten_rounds(c0: A, c1: A, c2: A, c3: A, k0: A, k1: A) -> tuple[A, A, A, A]:
    """Philox on words that sit in 64-bit integers, signed or not; of torch or of numpy."""
    for _ in range(_ROUNDS):
        # A signed product wraps into the sign; shift and mask still see the right words.
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        # Products and keys carry garbage above bit 31 until the masks.
        c0 = (p1 >> 32) ^ c1
        c0 ^= k0
        c0 &= _MASK
        c2 = (p0 >> 32) ^ c3
        c2 ^= k1
        c2 &= _MASK
        c1, c3 = p1, p0
        k0, k1 = k0 + _KEY_STEPS[0], k1 + _KEY_STEPS[1]
    return c0, c1 & _MASK, c2, c3 & _MASK


def random_words(
    seeds: Tensor, sample_indices: Tensor, positions: Tensor, quads: Tensor, *, purpose: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Random 32-bit words of tokens 4q, 4q+1, 4q+2 and 4q+3.

    Args:
        seeds: int64, the 64-bit seed in two's complement.
        sample_indices, positions: int64, of one shape with `seeds`.
        quads: int64 token ids divided by four; broadcastable with the others.
        purpose: what the words are for; streams of different purposes are independent.

    Returns:
        Four int64 tensors of the broadcast shape, one per lane.
    """
    key = (seeds & _MASK, (seeds >> 32) & _MASK)
    third = torch.full_like(seeds, purpose)
    return philox4x32((positions & _MASK, sample_indices & _MASK, third, quads), key)


def gumbel(words: Tensor) -> Tensor:
    """Standard Gumbel noise -log(-log(u)) of 32-bit words, u = ((word >> 8) + 0.5) * 2^-24.

    Args:
        words: int64 in [0, 2^32), any shape.

    Returns:
        float32 of the same shape, rising with `words`, never above `MAX_GUMBEL`.
    """
    return map_elements(_gumbel, words)


def token_noise(
    seeds: Tensor, sample_indices: Tensor, positions: Tensor, token_ids: Tensor
) -> Tensor:
    """Gumbel noise of chosen tokens.

    Args:
        seeds, sample_indices, positions: [n] int64.
        token_ids: [n, m] int64.

    Returns:
        [n, m] float32.
    """
    shape = token_ids.shape
    keys = (seeds, sample_indices, positions)
    seed, sample, position = (key[:, None].expand(shape).reshape(-1) for key in keys)
    ids = token_ids.reshape(-1)
    words = random_words(seed, sample, position, ids // LANES, purpose=PURPOSE_DRAW)
    lanes = torch.stack(words, dim=-1)
    return gumbel(lanes.gather(1, (ids % LANES)[:, None]).view(shape))


def map_elements(function: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """Apply an elementwise function so that an element's bits don't depend on its neighbors.

    Vectorized loops end in a scalar remainder whose logarithms and exponentials differ in the
    last bit. On the CPU, `function` therefore sees flat pieces of whole vectors, too short to be
    split over threads. Accelerators compute every element alike.
    """
    if values.device.type != "cpu" or values.numel() == 0:
        return function(values)
    flat = values.reshape(-1)
    size = flat.numel()
    if size % _VECTOR:
        flat = torch.nn.functional.pad(flat, (0, -size % _VECTOR))
    pieces = [function(piece) for piece in torch.split(flat, _PIECE)]
    result = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
    return result[:size].view(values.shape)


def _gumbel(words: Tensor) -> Tensor:
    # float32 cannot hold the 25 bits of u; near 1 it would round to 1 and give infinity.
    uniform = (words >> 8).to(torch.float64).add_(0.5).mul_(2.0**-24)
    return uniform.log_().neg_().log_().neg_().to(torch.float32)
