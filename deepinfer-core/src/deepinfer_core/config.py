"""The one configuration tree: frozen, validated, and whole only in `Engine.from_config`.

Values derived at start-up (number of blocks, chosen providers) are never written back here.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deepinfer_core.errors import ConfigError
from deepinfer_core.field_types import (
    Flag,
    PathText,
    Real,
    Text,
    Whole,
    describe_allowed,
)


class _Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), use_attribute_docstrings=True
    )


class ModelConfig(_Section):
    """Which model, and how its weights are read."""

    model: PathText
    """A Hugging Face directory, a GGUF file, or (extra `hub`) a hub id."""
    tokenizer: PathText | None = None
    """Directory or file to take the tokenizer from; default: the model's own."""
    chat_template: PathText | None = None
    """A jinja2 file that replaces the model's chat template."""
    revision: Text | None = None
    """Branch, tag or commit of a hub id."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """`auto` is the checkpoint's own dtype; quantised files dequantise to bfloat16."""
    quantization: Literal["auto", "keep", "dequantize"] = "auto"
    """Weights that are stored as codes: `keep` holds them so wherever layers can, `dequantize`
    turns all into numbers, `auto` keeps those that a plugin's kernel multiplies as they are."""
    load_format: Literal["auto", "safetensors", "gguf", "dummy"] = "auto"
    """`dummy` reads the configuration only and fills realistic random weights."""
    max_model_len: Whole | None = Field(default=None, ge=1)
    """Longest prompt plus output in tokens; default: the model's own limit."""
    generation_config: Literal["auto", "none"] = "auto"
    """`auto` takes sampling defaults from the checkpoint's `generation_config.json`."""


class CacheConfig(_Section):
    """The paged KV cache."""

    block_size: Whole = Field(default=16, ge=1, le=1024)
    """Tokens per block of the largest layout group."""
    memory_fraction: Real = Field(default=0.5, gt=0.0, le=1.0)
    """Share of the free memory, after the weights are loaded, that the pool may take."""
    num_blocks: Whole | None = Field(default=None, ge=2)
    """Blocks in the pool, overriding `memory_fraction`; one of them is the null block."""
    kv_format: Text = Field(default="auto", min_length=1)
    """What rows and index keys are held as: `auto`, in the model's dtype, or two record formats,
    such as `584+132`; which ones depends on the model. See docs/kv-records.md."""
    prefix_caching: Flag = True
    """Keep the KV of finished prompts and outputs for requests that begin alike."""
    bounded_replay: Flag = False
    """Keep no sliding windows for them; a hit computes its last tokens again. Approximate."""
    decoder_replay: Flag = False
    """With `bounded_replay`, of long chunks compute only the last window behind the last layer that
    caches rows for others. Approximate."""


class SchedulerConfig(_Section):
    """Limits of one step, and who goes first."""

    max_num_seqs: Whole = Field(default=64, ge=1, le=65536)
    """Requests that run at once."""
    max_num_batched_tokens: Whole = Field(default=2048, ge=1)
    """Tokens that one step computes; longer prompts are computed in chunks."""
    policy: Literal["fcfs", "priority"] = "fcfs"
    """Who goes first: the first to come, or the lowest `priority` number."""
    overlap: Flag = True
    """Launch step N+1 before reading the tokens of step N."""


class DeviceConfig(_Section):
    """Where the model runs and which kernels serve it."""

    kind: Text = Field(default="auto", min_length=1)
    """`auto` takes the first accelerator that a plugin finds, else `cpu`."""
    num_threads: Whole | None = Field(default=None, ge=1)
    """Threads of CPU kernels; default: the library's own choice."""
    kernels: dict[Text, Text | tuple[Text, ...]] = Field(default_factory=dict)
    """Op (or `family.*`) to provider or providers in order of preference."""
    batch_invariant: Flag = False
    """Use only kernels whose rows do not depend on the rest of the batch."""
    deterministic: Flag = False
    """Use only kernels that give the same bits when run twice."""
    strict: Flag = False
    """A reference kernel for a hot op on an accelerator is an error, not a warning."""
    cache_dir: PathText | None = None
    """Where a run leaves notes that make the next start quicker; default: `deepinfer` among the
    user's caches."""


class SpeculativeConfig(_Section):
    """Drafts: guesses at the next tokens, of which the model checks several at once. No answer
    depends on them. See docs/speculative-decoding.md."""

    proposer: Text = Field(default="none", min_length=1)
    """Who guesses: `none`, `ngram`, `suffix`, `draft_model`, `mtp`, `dspark`, or what a plugin
    calls its own."""
    draft_model: PathText | None = None
    """A small model with the same tokenizer, for the proposer `draft_model`."""
    num_drafts: Whole = Field(default=4, ge=1, le=15)
    """Guesses of one request in one step, at most."""
    draft_guard: Flag = True
    """Compute only guesses that are likely to give more than they cost; what a step costs is
    measured at start."""


class StructuredConfig(_Section):
    """Answers of a given form, and where thinking ends. See docs/structured.md."""

    grammar_backend: Text = Field(default="auto", min_length=1)
    """What compiles grammars: `xgrammar`, `llguidance`, what a plugin calls its own, or `auto`."""
    compile_timeout_s: Real = Field(default=10.0, gt=0.0)
    """Seconds that compiling one grammar may take."""
    max_grammars: Whole = Field(default=128, ge=1)
    """Compiled grammars that are kept for later requests."""
    max_whitespace: Whole = Field(default=8, ge=0, le=64)
    """Characters between two tokens of JSON, at most; a request may say otherwise."""
    thinking_start: Text = Field(default="<think>", min_length=1)
    """The token that begins what a model thinks before it answers."""
    thinking_end: Text = Field(default="</think>", min_length=1)
    """The token that ends it."""


class PluginConfig(_Section):
    """Which installed plugins are loaded."""

    plugins: tuple[Text, ...] | None = None
    """Load only these, and fail if one of them fails; default: all that are installed."""
    block: tuple[Text, ...] = ()
    """Never load these."""


class EngineConfig(_Section):
    """All settings of one engine."""

    model: ModelConfig
    """Which model, and how its weights are read."""
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    device: DeviceConfig = DeviceConfig()
    speculative: SpeculativeConfig = SpeculativeConfig()
    structured: StructuredConfig = StructuredConfig()
    plugin: PluginConfig = PluginConfig()

    @classmethod
    def from_flat(cls, model: str, **fields: Any) -> EngineConfig:
        """Build the tree from flat names, each of which belongs to exactly one section.

        Raises:
            ConfigError: a name is unknown or a value is not allowed.
        """
        return cls.from_tree(nest_fields({"model": model, **fields}))

    @classmethod
    def from_tree(
        cls, tree: dict[str, Any], *, sources: Mapping[str, str] | None = None
    ) -> EngineConfig:
        """Validate a nested mapping; every problem becomes a `ConfigError`.

        Args:
            sources: dotted path of a field to where its value came from, for the message.
        """
        try:
            return cls.model_validate(tree)
        except ValidationError as error:
            raise _as_config_error(error, sources or {}) from None


SECTIONS: dict[str, type[_Section]] = {
    "model": ModelConfig,
    "cache": CacheConfig,
    "scheduler": SchedulerConfig,
    "device": DeviceConfig,
    "speculative": SpeculativeConfig,
    "structured": StructuredConfig,
    "plugin": PluginConfig,
}
FIELD_SECTIONS: dict[str, str] = {
    name: section for section, cls in SECTIONS.items() for name in cls.model_fields
}
"""Flat field name -> section. INVARIANT: names are unique over all sections (tested)."""


def nest_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Turn `{"dtype": ..., "max_num_seqs": ...}` into the nested tree.

    Raises:
        ConfigError: a name belongs to no section.
    """
    tree: dict[str, Any] = {}
    for name, value in fields.items():
        section = FIELD_SECTIONS.get(name)
        if section is None:
            raise unknown_name(name, FIELD_SECTIONS, value=value)
        tree.setdefault(section, {})[name] = value
    return tree


def unknown_name(
    name: str, known: Iterable[str], *, value: object = None, source: str | None = None
) -> ConfigError:
    """The error for a name that does not exist, with the one that was probably meant."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1)
    hint = f", did you mean {close[0]}?" if close else ""
    return ConfigError(
        f"unknown field {name}{hint}",
        field=name,
        value=value,
        allowed=", ".join(known),
        source=source,
    )


def _as_config_error(error: ValidationError, sources: Mapping[str, str]) -> ConfigError:
    first = error.errors(include_url=False)[0]
    path = ".".join(map(str, first["loc"]))
    section, name = (*map(str, first["loc"]), "", "")[:2]
    source = sources.get(f"{section}.{name}")
    if first["type"] == "missing":
        return ConfigError(
            f"{path} was not given",
            field=path,
            allowed=ModelConfig.model_fields["model"].description,
        )
    if section not in SECTIONS:
        return unknown_name(section, SECTIONS, value=first["input"], source=source)
    if first["type"] == "extra_forbidden":
        known = SECTIONS[section].model_fields
        return unknown_name(name, known, value=first["input"], source=source)
    field = SECTIONS[section].model_fields.get(name)
    return ConfigError(
        first["msg"].removeprefix("Value error, "),
        field=path,
        value=first["input"],
        allowed=describe_allowed(field) if field else None,
        source=source,
    )
