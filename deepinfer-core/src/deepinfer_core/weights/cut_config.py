"""A configuration with fewer layers and experts, all of whose fields still fit each other.

Knows the fields of every family: flat ones, and those that V4.1 nests in `text_config`.
Torch-free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from deepinfer_core.errors import ConfigError

EXPERT_COUNTS = ("n_routed_experts", "num_experts", "num_local_experts")
PER_LAYER = ("compress_ratios", "layer_types", "mlp_layer_types")
"""Lists with an entry for each layer, and behind these for layers that predict further tokens."""
LAYER_IDS = ("kv_source_layer_ids", "index_source_layer_ids", "mlp_only_layers")
LEADING_LAYERS = ("num_hash_layers", "first_k_dense_replace", "max_window_layers")
"""How many layers from the first one are of a kind."""
CANDIDATES = ("candidate_source_layer_id", "candidate_topk_blocks", "candidate_block_size")
ENGRAM = "engram_"
DSPARK = "dspark_"


@dataclass(frozen=True, slots=True)
class Cut:
    """How much of a checkpoint stays. Made by `plan_cut`."""

    num_layers: int
    old_num_layers: int
    num_experts: int | None
    """None: all, or there are none."""
    keeps_predictors: bool
    """Layers that predict further tokens stay."""
    keeps_engrams: bool

    def layer(self, layer: int) -> int | None:
        """The new number of a layer; None: it goes. Predicting layers may stand behind the last."""
        if layer >= self.old_num_layers:
            is_kept = self.keeps_predictors
            return layer - self.old_num_layers + self.num_layers if is_kept else None
        return layer if layer < self.num_layers else None


def text_fields(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of the language model."""
    nested = fields.get("text_config")
    return nested if isinstance(nested, Mapping) else fields


def plan_cut(
    fields: Mapping[str, Any],
    *,
    num_layers: int | None = None,
    num_experts: int | None = None,
    keeps_predictors: bool = False,
    keeps_engrams: bool = True,
) -> Cut:
    """Check what is to stay against a configuration.

    Args:
        fields: of a `config.json`.
        num_layers, num_experts: None: all of them.

    Raises:
        ConfigError: there are not so many layers or experts; says how many there are.
    """
    text = text_fields(fields)
    old_layers = text["num_hidden_layers"]
    layers = old_layers if num_layers is None else num_layers
    if not 1 <= layers <= old_layers:
        raise ConfigError(
            "not a number of layers", field="--layers", value=layers, allowed=f"1 to {old_layers}"
        )
    cut = Cut(layers, old_layers, num_experts, keeps_predictors, keeps_engrams)
    if num_experts is None:
        return cut
    old_experts = next((text[name] for name in EXPERT_COUNTS if name in text), 0)
    if not 1 <= num_experts <= old_experts:
        allowed = f"1 to {old_experts}" if old_experts else "nothing: the model has no experts"
        raise ConfigError(
            "not a number of experts", field="--experts", value=num_experts, allowed=allowed
        )
    return cut if num_experts < old_experts else replace(cut, num_experts=None)


def cut_config(fields: Mapping[str, Any], cut: Cut) -> dict[str, Any]:
    """The `config.json` of what stays.

    Raises:
        ConfigError: what stays cannot be a model: too few layers for what DSpark reads.
    """
    text = dict(text_fields(fields))
    _cut_layers(text, cut)
    if cut.num_experts is not None:
        _cut_experts(text, cut.num_experts)
    return {**fields, "text_config": text} if "text_config" in fields else text


def _cut_layers(text: dict[str, Any], cut: Cut) -> None:
    count, old_count = cut.num_layers, cut.old_num_layers
    text["num_hidden_layers"] = count
    for name in PER_LAYER:
        if text.get(name):
            behind = text[name][old_count:] if cut.keeps_predictors else []
            text[name] = text[name][:count] + behind
    for name in LAYER_IDS:
        if text.get(name) is not None:
            text[name] = [layer for layer in text[name] if layer < count]
    for name in LEADING_LAYERS:
        if text.get(name) is not None:
            text[name] = min(text[name], count)
    if (text.get(CANDIDATES[0]) or 0) >= count:
        _drop(text, *CANDIDATES)
    if cut.keeps_predictors:
        _shift_targets(text, cut)
    else:
        _drop(text, DSPARK)
        if "num_nextn_predict_layers" in text:
            text["num_nextn_predict_layers"] = 0
    _cut_engrams(text, cut)


def _cut_engrams(text: dict[str, Any], cut: Cut) -> None:
    layers = text.get("engram_layer_ids")
    if layers is None:
        return
    kept = [i for i, layer in enumerate(layers) if layer < cut.num_layers and cut.keeps_engrams]
    if not kept:
        _drop(text, ENGRAM)
        return
    for name in ("engram_layer_ids", "engram_num_embeddings"):
        if isinstance(text.get(name), list):
            text[name] = [text[name][i] for i in kept]


def _shift_targets(text: dict[str, Any], cut: Cut) -> None:
    """DSpark reads layers as far from the last one as before."""
    targets = text.get("dspark_target_layer_ids")
    if not targets:
        return
    shifted = [layer - cut.old_num_layers + cut.num_layers for layer in targets]
    if shifted[0] < 0:
        needed = cut.old_num_layers - targets[0]
        raise ConfigError(
            "DSpark reads more layers than stay; leave it out, or keep more",
            field="--layers",
            value=cut.num_layers,
            allowed=f"{needed} to {cut.old_num_layers} with --predictors",
        )
    text["dspark_target_layer_ids"] = shifted


def _cut_experts(text: dict[str, Any], count: int) -> None:
    for name in (*EXPERT_COUNTS, "num_experts_per_tok"):
        for field in (name, DSPARK + name):
            if text.get(field) is not None:
                text[field] = min(text[field], count)
    groups = text.get("n_group")
    if groups is None:
        return
    text["n_group"] = max(n for n in range(1, groups + 1) if count % n == 0)
    per_group = count // text["n_group"]
    needed = -(-text["num_experts_per_tok"] // per_group)
    text["topk_group"] = min(max(text["topk_group"], needed), text["n_group"])


def _drop(text: dict[str, Any], *prefixes: str) -> None:
    for name in [name for name in text if name.startswith(prefixes)]:
        del text[name]
