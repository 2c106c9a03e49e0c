"""From the configuration and the vocabulary to what compiles grammars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from deepinfer_core.config import StructuredConfig
from deepinfer_core.errors import ConfigError, GrammarError
from deepinfer_core.plugin_api import GrammarBackendSpec
from deepinfer_core.plugin_api.grammar import GrammarBackend, Vocabulary
from deepinfer_core.structured.compiler import GrammarCompiler
from deepinfer_core.structured.constraint import Markers
from deepinfer_core.structured.decoding import StructuredDecoding
from deepinfer_core.structured.marks import TokenMarks, make_vocabulary
from deepinfer_core.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from deepinfer_core.engine_setup import LoadedModel

AUTO = "auto"
ORDER = ("xgrammar", "llguidance")
"""Of `auto`: the first that is installed; others follow by name."""


def make_structured_decoding(config: StructuredConfig, loaded: LoadedModel) -> StructuredDecoding:
    """What holds the answers of one engine to their forms. Imports no backend yet.

    Raises:
        ConfigError: no backend is called so.
    """
    info, tokenizer = loaded.info, loaded.tokenizer
    wanted = _ranked(config.grammar_backend, loaded.grammar_backends)
    eos = frozenset(info.eos_token_ids)
    marks = TokenMarks((name, i) for i, name in sorted(tokenizer.added_tokens.items()))

    def make_backend(names_tokens: bool) -> GrammarBackend:
        by_id = marks.by_id if names_tokens else None
        return _make_backend(wanted, make_vocabulary(tokenizer, info.vocab_size, eos, by_id))

    compiler = GrammarCompiler(
        make_backend,
        marks=marks.by_name,
        timeout_s=config.compile_timeout_s,
        max_grammars=config.max_grammars,
        max_whitespace=config.max_whitespace,
    )
    return StructuredDecoding(
        compiler,
        tokenizer,
        markers=_find_markers(config, tokenizer),
        vocab_size=info.vocab_size,
        eos_token_ids=info.eos_token_ids,
        device=torch.device(loaded.runtime.torch_device),
    )


def _ranked(name: str, backends: Sequence[GrammarBackendSpec]) -> list[GrammarBackendSpec]:
    """Those that may serve, the first choice first."""
    if name == AUTO:
        return sorted(backends, key=lambda spec: (_rank(spec.name), spec.name))
    named = [spec for spec in backends if spec.name == name]
    if not named:
        raise ConfigError(
            "no grammar backend is called so",
            field="structured.grammar_backend",
            value=name,
            allowed=", ".join([AUTO, *sorted(spec.name for spec in backends)]),
        )
    return named


def _find_markers(config: StructuredConfig, tokenizer: Tokenizer) -> Markers | None:
    """The tokens around thinking, if the vocabulary has both."""
    start = tokenizer.token_to_id(config.thinking_start)
    end = tokenizer.token_to_id(config.thinking_end)
    return None if start is None or end is None else Markers(start, end)


def _rank(name: str) -> int:
    return ORDER.index(name) if name in ORDER else len(ORDER)


def _make_backend(specs: Sequence[GrammarBackendSpec], vocabulary: Vocabulary) -> GrammarBackend:
    problems = []
    for spec in specs:
        try:
            make = spec.load()
        except ImportError as error:
            problems.append(f"{spec.name}: {error}")
            continue
        backend: GrammarBackend = make(vocabulary=vocabulary)
        return backend
    raise GrammarError(
        f"no grammar backend is installed ({'; '.join(problems)}): "
        "pip install 'deepinfer-core[structured]'",
        field="structured",
    )
