"""`DsparkConfig`: the facts of DSpark stages, as V4 (July 2026 and later) and V4.1 state them.

Torch-free. The number of stages is that of the entries of `compress_ratios` behind those of the
layers: `num_nextn_predict_layers` of some V4 files still counts the layer they no longer have.
"""

from __future__ import annotations

from dataclasses import dataclass

from deepinfer_core.errors import ModelLoadError
from deepinfer_core.models.raw_config import RawConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class DsparkConfig:
    """What building DSpark needs besides the target's configuration."""

    num_stages: int
    block_size: int
    """Rows of a block, which are as many drafts."""
    noise_token_id: int
    """Stands for the tokens of a block that are not known."""
    target_layers: tuple[int, ...]
    """Layers of the target whose streams are read."""
    markov_rank: int
    num_experts: int
    num_experts_per_token: int


def read_dspark_config(raw: RawConfig) -> DsparkConfig | None:
    """Read the `dspark_*` fields; None where there are none.

    Raises:
        ModelLoadError: some are missing or malformed.
    """
    if not any(name.startswith("dspark_") for name in raw.fields):
        return None
    num_layers = raw.size("num_hidden_layers")
    noise, vocab_size = raw.integer("dspark_noise_token_id"), raw.size("vocab_size")
    if noise >= vocab_size:
        raise raw.malformed("dspark_noise_token_id", noise, f"below vocab_size, {vocab_size}")
    num_experts = raw.size("dspark_n_routed_experts", raw.size("n_routed_experts"))
    top_k = raw.size("dspark_num_experts_per_tok", raw.size("num_experts_per_tok"))
    if top_k > num_experts:
        wanted = f"at most {num_experts} experts"
        raise raw.malformed("dspark_num_experts_per_tok", top_k, wanted)
    return DsparkConfig(
        num_stages=_count_stages(raw, num_layers),
        block_size=raw.size("dspark_block_size"),
        noise_token_id=noise,
        target_layers=_read_target_layers(raw, num_layers),
        markov_rank=raw.size("dspark_markov_rank"),
        num_experts=num_experts,
        num_experts_per_token=top_k,
    )


def _count_stages(raw: RawConfig, num_layers: int) -> int:
    ratios = raw.optional_list("compress_ratios", int) or []
    if len(ratios) <= num_layers:
        raise ModelLoadError(
            f"{raw.source}: compress_ratios has {len(ratios)} entries for {num_layers} layers; "
            "DSpark wants one more for each of its stages"
        )
    return len(ratios) - num_layers


def _read_target_layers(raw: RawConfig, num_layers: int) -> tuple[int, ...]:
    layers = raw.optional_list("dspark_target_layer_ids", int)
    wanted = f"ascending numbers of the {num_layers} layers"
    if not layers or layers != sorted(set(layers)) or not 0 <= layers[0] <= layers[-1] < num_layers:
        raise raw.malformed("dspark_target_layer_ids", layers, wanted)
    return tuple(layers)
