"""A tokenizer from the metadata of a GGUF file, which holds tokens and merges but no rules.

Owns how the two kinds of vocabulary become a backend; `gguf_splits.py` has the rules by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from deepinfer_core.errors import ModelLoadError
from deepinfer_core.text.gguf_splits import SPLITS
from deepinfer_core.text.hf_tokenizer import surround_prompts
from deepinfer_core.text.tokenizer import Tokenizer
from deepinfer_core.weights.gguf_header import read_gguf_header

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
"""Values of `tokenizer.ggml.token_type` that ask for something."""
_SPACE = "\u2581"
_TEMPLATE_KEY = "tokenizer.chat_template"


def load_gguf_tokenizer(path: Path) -> Tokenizer:
    """Build a tokenizer from the metadata of a file.

    Raises:
        ModelLoadError: the file is corrupt or its kind of tokenizer is not supported.
    """
    return tokenizer_from_metadata(read_gguf_header(path).metadata, name=str(path))


def tokenizer_from_metadata(metadata: Mapping[str, Any], *, name: str) -> Tokenizer:
    """Build a tokenizer from GGUF key-value pairs; `name` is the file, for messages.

    Raises:
        ModelLoadError: a key is missing or its value is not supported.
    """
    ggml = {
        key.removeprefix("tokenizer.ggml."): value
        for key, value in metadata.items()
        if key.startswith("tokenizer.ggml.")
    }
    model = ggml.get("model")
    if model not in ("gpt2", "llama") or not isinstance(ggml.get("tokens"), list):
        found = f"a tokenizer of type {model!r}" if model else "no tokenizer"
        raise ModelLoadError(
            f"{name} holds {found}; supported are 'gpt2' (byte-level BPE) and 'llama' "
            "(SentencePiece BPE). Name a directory with a tokenizer.json as `tokenizer`"
        )
    if model == "gpt2":
        backend, adds_bos = _byte_level_backend(ggml, name)
    else:
        backend, adds_bos = _sentencepiece_backend(ggml, name), True
    _add_tokens(backend, ggml)
    special_tokens = _special_tokens(ggml, name)
    surround_prompts(
        backend,
        bos_token=special_tokens.get("bos_token") if ggml.get("add_bos_token", adds_bos) else None,
        eos_token=special_tokens.get("eos_token") if ggml.get("add_eos_token", False) else None,
    )
    return Tokenizer(
        backend, special_tokens=special_tokens, chat_templates=_chat_templates(metadata)
    )


def _byte_level_backend(ggml: dict[str, Any], name: str) -> tuple[tokenizers.Tokenizer, bool]:
    pre = ggml.get("pre", "default")
    split = SPLITS.get(pre)
    if split is None:
        raise ModelLoadError(
            f"{name} cuts text by the rule {pre!r}, known are {', '.join(sorted(SPLITS))}. "
            "Name a directory with a tokenizer.json as `tokenizer`"
        )
    vocab = {token: token_id for token_id, token in enumerate(ggml["tokens"])}
    # A space within a token is spelled otherwise, so the one space parts the two.
    parts = [merge.partition(" ") for merge in ggml.get("merges", ())]
    merges = [(left, right) for left, _, right in parts]
    backend = tokenizers.Tokenizer(
        _bpe(name, vocab=vocab, merges=merges, ignore_merges=split.whole_words)
    )
    if split.nfc:
        backend.normalizer = normalizers.NFC()
    steps: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(Regex(regex), behavior="isolated") for regex in split.regexes
    ]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split.gpt2))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
    return backend, split.adds_bos


def _sentencepiece_backend(ggml: dict[str, Any], name: str) -> tokenizers.Tokenizer:
    """SentencePiece merges the adjacent pair whose union scores best; BPE ranks do the same."""
    tokens, scores = ggml["tokens"], ggml.get("scores", ())
    if len(scores) != len(tokens):
        raise ModelLoadError(f"{name} holds {len(tokens)} tokens but {len(scores)} scores")
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    unknown = ggml.get("unknown_token_id", 0)
    backend = tokenizers.Tokenizer(
        _bpe(
            name,
            vocab=vocab,
            merges=_merges_by_score(tokens, scores, ggml.get("token_type", ())),
            unk_token=tokens[unknown] if unknown < len(tokens) else None,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = ggml.get("add_space_prefix", True)
    replace = normalizers.Replace(" ", _SPACE)
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend(_SPACE), replace] if prefix else [replace]
    )
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(steps)
    return backend


def _merges_by_score(
    tokens: list[str], scores: list[float], token_types: list[int]
) -> list[tuple[str, str]]:
    """Every way to make a token of two, best score first."""
    # Only text is made by merging: control, user-defined and byte tokens are not.
    plain = {
        token: score
        for index, (token, score) in enumerate(zip(tokens, scores, strict=True))
        if index >= len(token_types) or token_types[index] == 1
    }
    ranked = [
        (-score, len(left), left, right)
        for token, score in plain.items()
        for cut in range(1, len(token))
        if (left := token[:cut]) in plain and (right := token[cut:]) in plain
    ]
    ranked.sort()
    return [(left, right) for _, _, left, right in ranked]


def _bpe(
    name: str, *, vocab: dict[str, int], merges: list[tuple[str, str]], **options: Any
) -> models.BPE:
    """The library ends the process over merges that make no token, so they are checked here."""
    for left, right in merges:
        if not (left in vocab and right in vocab and left + right in vocab):
            raise ModelLoadError(
                f"{name}: the merge of {left!r} and {right!r} is not within the vocabulary of "
                f"{len(vocab)} tokens; fetch the file again"
            )
    return models.BPE(vocab=vocab, merges=merges, **options)


def _add_tokens(backend: tokenizers.Tokenizer, ggml: dict[str, Any]) -> None:
    """Control tokens are special; user-defined ones are found whole in any text."""
    byte_level = ggml["model"] == "gpt2"
    for token, token_type in zip(ggml["tokens"], ggml.get("token_type", ()), strict=False):
        if token_type == _CONTROL or (token_type == _UNKNOWN and not byte_level):
            backend.add_special_tokens([AddedToken(token, normalized=False, special=True)])
        elif token_type == _USER_DEFINED:
            backend.add_tokens([AddedToken(token, normalized=False, special=False)])


def _special_tokens(ggml: dict[str, Any], name: str) -> dict[str, str]:
    keys = {
        "bos_token": "bos_token_id",
        "eos_token": "eos_token_id",
        "unk_token": "unknown_token_id",
        "pad_token": "padding_token_id",
    }
    tokens, special_tokens = ggml["tokens"], {}
    for role, key in keys.items():
        token_id = ggml.get(key)
        if token_id is None:
            continue
        if 0 <= token_id < len(tokens):
            special_tokens[role] = tokens[token_id]
        elif role in ("bos_token", "eos_token"):  # converters write nonsense for unused roles
            raise ModelLoadError(f"{name}: {key} is {token_id} of only {len(tokens)} tokens")
    return special_tokens


def _chat_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    templates = {
        key.removeprefix(_TEMPLATE_KEY + "."): value
        for key, value in metadata.items()
        if key.startswith(_TEMPLATE_KEY + ".") and isinstance(value, str)
    }
    if _TEMPLATE_KEY in metadata:
        templates["default"] = metadata[_TEMPLATE_KEY]
    return templates
