"""A Hugging Face directory: `config.json` and `generation_config.json` -> `ModelInfo`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deepinfer_core.errors import ModelLoadError
from deepinfer_core.models.raw_config import RawConfig
from deepinfer_core.models.registry import ModelRegistry
from deepinfer_core.weights.json_file import read_json
from deepinfer_core.weights.model_info import ModelInfo, TokenizerSource
from deepinfer_core.weights.quant.released import read_block_size

FLOAT_NAMES = ("float32", "bfloat16", "float16")
GENERATION_FIELDS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def read_hf_info(directory: Path, registry: ModelRegistry) -> ModelInfo:
    """Read everything but the weights.

    Raises:
        ModelLoadError: a file or field is missing or malformed, the architecture is unknown, or
            the weights are quantised in a way that nothing here reads.
    """
    fields = read_json(directory / "config.json")
    raw = RawConfig(fields, str(directory / "config.json"))
    architectures = raw.optional_list("architectures", str)
    if not architectures:
        raise ModelLoadError(
            f"{raw.source}: architectures is missing; known: {', '.join(registry.architectures)}"
        )
    try:
        model_class = registry.resolve(architectures[0])
    except ModelLoadError as error:
        raise ModelLoadError(f"{raw.source}: {error}") from None
    generation = _read_generation(directory / "generation_config.json")
    bos = fields.get("bos_token_id")
    return ModelInfo(
        architecture=architectures[0],
        model_type=raw.text("model_type", ""),
        config=model_class.read_config(raw),
        raw_config=fields,
        eos_token_ids=token_ids(raw.fields, generation.fields),
        bos_token_id=bos if isinstance(bos, int) else None,
        dtype=_dtype(raw),
        path=directory,
        tokenizer_source=TokenizerSource("hf", directory),
        fp8_block_size=_fp8_block_size(raw),
        generation_defaults=_sampling_defaults(generation),
    )


def token_ids(*places: Mapping[str, Any], name: str = "eos_token_id") -> tuple[int, ...]:
    """All ids under one name, each an integer, a list or absent; ascending, without repeats."""
    found: set[int] = set()
    for fields in places:
        value = fields.get(name)
        values = value if isinstance(value, list) else [value]
        found.update(item for item in values if isinstance(item, int))
    return tuple(sorted(found))


def _read_generation(path: Path) -> RawConfig:
    return RawConfig(read_json(path) if path.exists() else {}, str(path))


def _sampling_defaults(generation: RawConfig) -> dict[str, float | int]:
    defaults: dict[str, float | int] = {}
    for name in GENERATION_FIELDS:
        value = generation.optional_number(name)
        if value is not None:
            defaults[name] = int(value) if name == "top_k" else value
    # Someone who turns sampling off means greedy, whatever temperature stands beside it.
    if not generation.flag("do_sample", True):
        defaults["temperature"] = 0.0
    return defaults


def _fp8_block_size(raw: RawConfig) -> tuple[int, int] | None:
    quantization = raw.section("quantization_config")
    if quantization is None:
        return None
    method = quantization.fields.get("quant_method", "an unnamed method")
    if method != "fp8" or (fmt := quantization.text("fmt", "e4m3")) != "e4m3":
        what = method if method != "fp8" else f"fp8 {fmt}"
        raise ModelLoadError(
            f"{raw.source}: weights quantised with {what} cannot be read; known: fp8 e4m3 in blocks"
        )
    return read_block_size(quantization)


def _dtype(raw: RawConfig) -> str:
    name = raw.text("dtype", raw.text("torch_dtype", "float32"))
    if name not in FLOAT_NAMES:
        raise raw.malformed("dtype", name, f"one of {', '.join(FLOAT_NAMES)}")
    return name
