"""Constants of the n-gram memory's hashes, and which tokens hash alike. DeepSeek-V4.1, section 2.4.

Torch-free. Nothing of this is stored in checkpoints: it follows from the configuration and the
tokenizer, and a single wrong number reads wrong rows without any error.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np

from deepinfer_core.models.deepseek_v41_config import EngramConfig

SEED_STEP = 10007
REPLACEMENT = "�"
SPACES = re.compile(r"[ \t\r\n]+")


def bucket_sizes(config: EngramConfig) -> list[list[list[int]]]:
    """Rows of the table of each layer, n-gram length and head: primes, none of them twice."""
    used: set[int] = set()

    def next_prime(number: int) -> int:
        while number in used or not _is_prime(number):
            number += 1
        used.add(number)
        return number

    sizes = []
    for _ in config.layers:
        layer = []
        for _ in range(config.max_ngram - 1):
            last, heads = config.first_bucket - 1, []
            for _ in range(config.num_heads):
                last = next_prime(last + 1)
                heads.append(last)
            layer.append(heads)
        sizes.append(layer)
    return sizes


def multipliers(config: EngramConfig, layer: int) -> list[int]:
    """An odd number for each place of an n-gram, the newest token's first."""
    most = max(1, np.iinfo(np.int64).max // config.num_classes // 2)
    drawn = np.random.default_rng(SEED_STEP * layer).integers(0, most, size=config.max_ngram)
    return [2 * int(number) + 1 for number in drawn]


def token_classes(tokens: Sequence[tuple[str, str]]) -> list[int]:
    """The class of each token: those whose text is the same but for case, accents and spaces.

    Args:
        tokens: by id, the text of a token and its entry in the vocabulary.

    Returns:
        Classes, numbered in the order in which they first occur.
    """
    numbers: dict[str, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in map(_key, *zip(*tokens, strict=True))]


def _key(text: str, entry: str) -> str:
    if REPLACEMENT in text:
        return entry  # part of a character
    bare = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    bare = "".join(_without_accents(bare)).lower()
    bare = SPACES.sub(" ", bare)
    return bare if bare == " " else bare.strip() or text


def _without_accents(text: str) -> Iterator[str]:
    return (character for character in text if unicodedata.category(character)[0] != "M")


def _is_prime(number: int) -> bool:
    if number < 4:
        return number > 1
    return number % 2 > 0 and all(
        number % divisor for divisor in range(3, math.isqrt(number) + 1, 2)
    )
