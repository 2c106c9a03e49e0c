"""Small tokenizers of the two kinds, made here, and the real one where it was downloaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from deepinfer_core.text.gguf_tokenizer import tokenizer_from_metadata
from deepinfer_core.text.loading import load_tokenizer
from deepinfer_core.text.tokenizer import Tokenizer
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

REAL_FILE = Path(__file__).parents[3] / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
CORPUS = [
    "the quick brown fox jumps over the lazy dog, it's 42 times the same",
    "def f(x):\n    return x + 1  # naïve café",
    "世界你好 こんにちは",
    "😀😀 👩‍👩‍👧 ok",
]


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    """Byte-level BPE with special tokens, and added ones that are not special."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=["<s>", "</s>"],
    )
    backend.train_from_iterator(CORPUS * 4, trainer)
    backend.add_special_tokens(
        [AddedToken("<\uff5cend▁turn\uff5c>", special=True, normalized=False)]
    )
    backend.add_tokens([AddedToken("<think>", normalized=False), AddedToken("\uff5cUser\uff5c")])
    return Tokenizer(backend, special_tokens={"bos_token": "<s>", "eos_token": "</s>"})


def piece_metadata() -> dict[str, object]:
    """A SentencePiece vocabulary as a GGUF file holds it: control, bytes, characters, words."""
    words = ["▁the", "▁quick", "he", "th", "the", "▁t", "▁w", "qu", "ick", "▁▁", "orld", "▁world"]
    parts = ["ic", "rl", "or", "ld", "▁q", "quick", "orl", "▁wor", "wor", "▁th", "▁qu", "ck"]
    characters = [*dict.fromkeys("▁thequickworldabn,.é世\n")]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [2, 3, 3, *[6] * 256]
    texts = [*words, *parts, *characters, "<tool>"]
    scores = [0.0] * len(tokens) + [-float(rank) for rank in range(len(texts))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*tokens, *texts],
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": [*types, *[1] * (len(texts) - 1), 4],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


@pytest.fixture(scope="session")
def pieces() -> Tokenizer:
    """Pieces with byte fallback and a space in front of the first word."""
    return tokenizer_from_metadata(piece_metadata(), name="test")


@pytest.fixture(scope="session")
def other() -> Tokenizer:
    """A decoder that cannot be followed token by token."""
    vocab = {"[UNK]": 0, "▁a": 1, "b": 2, "▁": 3, "c": 4, "▁b": 5}
    backend = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    backend.decoder = decoders.Metaspace()
    return Tokenizer(backend)


@pytest.fixture(scope="session")
def real_file() -> Path:
    if not REAL_FILE.exists():
        pytest.skip(f"{REAL_FILE.name} is not in models/: run `make model`")
    return REAL_FILE


@pytest.fixture(scope="session")
def real(real_file: Path) -> Tokenizer:
    """SmolLM2's tokenizer, from its GGUF file."""
    return load_tokenizer(real_file)


@pytest.fixture(scope="session", params=["byte_level", "pieces", "real"])
def any_tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return request.getfixturevalue(request.param)
