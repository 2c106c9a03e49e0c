"""The one configuration tree: frozen, validated, and whole only in `Engine.from_config`.

Values derived at start-up (number of blocks, chosen providers) are never written back here.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deepinfer_core.errors import ConfigError


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class ModelConfig(_Section):
    """Which model, and how its weights are read."""

    model: str
    """A Hugging Face directory, a GGUF file, or (extra `hub`) a hub id."""
    tokenizer: str | None = None
    """Directory or file to take the tokenizer from; default: the model's own."""
    chat_template: str | None = None
    """A jinja2 file that replaces the model's chat template."""
    revision: str | None = None
    """Of a hub id."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """`auto` is the checkpoint's own dtype; quantised files dequantise to bfloat16."""
    load_format: Literal["auto", "safetensors", "gguf", "dummy"] = "auto"
    """`dummy` reads the configuration only and fills realistic random weights."""
    max_model_len: int | None = Field(None, ge=1)
    """Longest prompt plus output in tokens; default: the model's own limit."""
    generation_config: Literal["auto", "none"] = "auto"
    """`auto` takes sampling defaults from the checkpoint's `generation_config.json`."""


class CacheConfig(_Section):
    """The paged KV cache."""

    block_size: int = Field(16, ge=1, le=1024)
    """Tokens per block of the largest layout group."""
    memory_fraction: float = Field(0.5, gt=0.0, le=1.0)
    """Share of the free memory, after the weights are loaded, that the pool may take."""
    num_blocks: int | None = Field(None, ge=2)
    """Blocks in the pool, overriding `memory_fraction`; one of them is the null block."""
    prefix_caching: bool = True


class SchedulerConfig(_Section):
    """Limits of one step, and who goes first."""

    max_num_seqs: int = Field(64, ge=1, le=65536)
    """Requests that run at once."""
    max_num_batched_tokens: int = Field(2048, ge=1)
    """Tokens that one step computes; longer prompts are computed in chunks."""
    policy: Literal["fcfs", "priority"] = "fcfs"
    overlap: bool = True
    """Launch step N+1 before reading the tokens of step N."""


class DeviceConfig(_Section):
    """Where the model runs and which kernels serve it."""

    kind: str = "auto"
    """`auto` takes the first accelerator that a plugin finds, else `cpu`."""
    num_threads: int | None = Field(None, ge=1)
    """Threads of CPU kernels; default: the library's own choice."""
    kernels: dict[str, str | tuple[str, ...]] = Field(default_factory=dict)
    """Op (or `family.*`) to provider or providers in order of preference."""
    batch_invariant: bool = False
    """Use only kernels whose rows do not depend on the rest of the batch."""
    deterministic: bool = False
    """Use only kernels that give the same bits when run twice."""
    strict: bool = False
    """A reference kernel for a hot op on an accelerator is an error, not a warning."""


class PluginConfig(_Section):
    """Which installed plugins are loaded."""

    plugins: tuple[str, ...] | None = None
    """Load only these, and fail if one of them fails; default: all that are installed."""
    block: tuple[str, ...] = ()
    """Never load these."""


class EngineConfig(_Section):
    """All settings of one engine."""

    model: ModelConfig
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    device: DeviceConfig = DeviceConfig()
    plugin: PluginConfig = PluginConfig()

    @classmethod
    def from_flat(cls, model: str, **fields: Any) -> EngineConfig:
        """Build the tree from flat names, each of which belongs to exactly one section.

        Raises:
            ConfigError: a name is unknown or a value is not allowed.
        """
        return cls.from_tree(nest_fields({"model": model, **fields}))

    @classmethod
    def from_tree(cls, tree: dict[str, Any], *, source: str | None = None) -> EngineConfig:
        """Validate a nested mapping; every problem becomes a `ConfigError`."""
        try:
            return cls.model_validate(tree)
        except ValidationError as error:
            raise _as_config_error(error, source) from None


SECTIONS: dict[str, type[_Section]] = {
    "model": ModelConfig,
    "cache": CacheConfig,
    "scheduler": SchedulerConfig,
    "device": DeviceConfig,
    "plugin": PluginConfig,
}
FIELD_SECTIONS: dict[str, str] = {
    name: section for section, cls in SECTIONS.items() for name in cls.model_fields
}
"""Flat field name -> section. INVARIANT: names are unique over all sections (tested)."""


def nest_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Turn `{"dtype": ..., "max_num_seqs": ...}` into the nested tree.

    Raises:
        ConfigError: a name belongs to no section.
    """
    tree: dict[str, Any] = {}
    for name, value in fields.items():
        section = FIELD_SECTIONS.get(name)
        if section is None:
            raise ConfigError(
                "unknown field", field=name, value=value, allowed=", ".join(sorted(FIELD_SECTIONS))
            )
        tree.setdefault(section, {})[name] = value
    return tree


def _as_config_error(error: ValidationError, source: str | None) -> ConfigError:
    first = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in first["loc"])
    return ConfigError(first["msg"], field=path, value=first["input"], source=source)
