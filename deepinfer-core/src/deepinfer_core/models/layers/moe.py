"""Routed experts: a router, and all experts' weights in two tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from deepinfer_core.models.decoder_config import MoeConfig
from deepinfer_core.models.layers.collectives import bind_sum
from deepinfer_core.models.layers.linear import Linear
from deepinfer_core.models.layers.mlp import GatedMLP
from deepinfer_core.models.layers.packed import (
    coded_parameters,
    columns_per_scale,
    empty_parameter,
    rows_per_scale,
)
from deepinfer_core.ops.table import OpTable
from deepinfer_core.parallel.mesh import Share
from deepinfer_core.plugin_api.kernel import Problem


class Experts(nn.Module):
    """Gated feed-forward experts: `w13` [E, 2F, C] gate above up, `w2` [E, C, F].

    Each rank has F' = F / ranks of the features of every expert, and computes terms of the sums.
    """

    def __init__(self, ops: OpTable, hidden_size: int, moe: MoeConfig, *, dtype: str) -> None:
        super().__init__()
        self.share = ops.mesh.share(moe.intermediate_size, "intermediate features of an expert")
        self.intermediate_size = size = self.share.size_of(moe.intermediate_size)
        self.limit = moe.limit
        self.w13 = empty_parameter(moe.num_experts, 2 * size, hidden_size, dtype=dtype)
        self.w2 = empty_parameter(moe.num_experts, hidden_size, size, dtype=dtype)
        self.w13_scales: nn.Parameter | None = None
        self.w2_scales: nn.Parameter | None = None
        self.experts = ops.bind(
            "moe.experts",
            dtype=dtype,
            role="moe.experts",
            features=() if moe.limit is None else ("limit",),
            hidden_size=hidden_size,
            intermediate_size=size,
            num_experts=moe.num_experts,
            top_k=moe.num_experts_per_token,
        )

    def forward(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """[T, C], ids [T, K] int32, weights [T, K] float32 -> [T, C]."""
        matrices: tuple[object, ...] = (self.w13, self.w2)
        if self.w13_scales is not None:
            scheme = self.experts.problem.scheme
            matrices = (self.w13, self.w13_scales, self.w2, self.w2_scales, scheme)
        y: Tensor = self.experts(x, ids, weights, *matrices, limit=self.limit)
        return y

    def takes_codes(self, scheme: str) -> bool:
        """See `HoldsCodes`: the gate must end where a block of scales does, and a share too."""
        if self.intermediate_size % rows_per_scale(scheme):
            return False
        return self.share.count == 1 or self.intermediate_size % columns_per_scale(scheme) == 0

    def share_of(self, name: str) -> Share:
        """See `Shared`."""
        return self.share.along(1) if ".down_proj." in name else self.share

    def coded_problem(self, scheme: str) -> Problem:
        """See `HoldsCodes`."""
        return replace(self.experts.problem, op="moe.coded", scheme=scheme)

    def keep_codes(self, ops: OpTable, problem: Problem) -> None:
        """See `HoldsCodes`."""
        scheme = str(problem.scheme)
        self.experts = ops.bind_problem(problem)
        self.w13, self.w13_scales = coded_parameters(tuple(self.w13.shape), scheme)
        self.w2, self.w2_scales = coded_parameters(tuple(self.w2.shape), scheme)

    def unpacked(self, path: str) -> Iterator[tuple[str, Tensor]]:
        """One gate, up and down matrix per expert, as checkpoints store them."""
        size = self.intermediate_size
        yield from _by_expert(path, "weight", self.w13.data, self.w2.data, size)
        if self.w13_scales is not None and self.w2_scales is not None:
            rows = size // rows_per_scale(str(self.experts.problem.scheme))
            yield from _by_expert(path, "scale", self.w13_scales.data, self.w2_scales.data, rows)


def _by_expert(
    path: str, kind: str, w13: Tensor, w2: Tensor, rows: int
) -> Iterator[tuple[str, Tensor]]:
    for expert, (up, down) in enumerate(zip(w13, w2, strict=True)):
        yield f"{path}.{expert}.gate_proj.{kind}", up[:rows]
        yield f"{path}.{expert}.up_proj.{kind}", up[rows:]
        yield f"{path}.{expert}.down_proj.{kind}", down


class Router(Linear):
    """Chooses K experts for each token, and how much each counts.

    Args:
        hashed_vocab: size of a vocabulary whose tokens have their experts in a table; None:
            experts are chosen by their scores.
    """

    def __init__(
        self,
        ops: OpTable,
        hidden_size: int,
        moe: MoeConfig,
        *,
        dtype: str,
        hashed_vocab: int | None = None,
    ) -> None:
        dtype = "float32" if moe.wide_router else dtype
        super().__init__(ops, hidden_size, moe.num_experts, dtype=dtype, role="moe.gate")
        self.e_score_correction_bias = self.image_bias = self.tid2eid = None
        if hashed_vocab is not None:
            self.tid2eid = empty_parameter(hashed_vocab, moe.num_experts_per_token, dtype="int64")
        elif moe.has_bias:
            self.e_score_correction_bias = empty_parameter(moe.num_experts, dtype="float32")
        if moe.has_image_bias:
            self.image_bias = empty_parameter(moe.num_experts, dtype="float32")
        self.moe = moe
        features = {
            "bias": self.e_score_correction_bias is not None,
            "image_bias": self.image_bias is not None,
            "hash_ids": self.tid2eid is not None,
            "groups": moe.num_groups > 1,
            "renormalize": moe.renormalize,
            moe.scoring: moe.scoring != "softmax",
        }
        self.route = ops.bind(
            "moe.route",
            dtype=dtype,
            role="moe.route",
            features=[name for name, is_used in features.items() if is_used],
            num_experts=moe.num_experts,
            top_k=moe.num_experts_per_token,
        )

    def choose(
        self, x: Tensor, input_ids: Tensor | None, is_image: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """[T, C] of tokens [T] -> ids [T, K] int32 and weights [T, K] float32."""
        moe = self.moe
        hash_ids = None
        if self.tid2eid is not None and input_ids is not None:
            hash_ids = self.tid2eid.index_select(0, input_ids).int()
        logits = self(x.float() if moe.wide_router else x)
        if moe.temperature != 1.0:
            logits = logits / moe.temperature
        ids, weights = self.route(
            logits,
            moe.num_experts_per_token,
            scoring=moe.scoring,
            bias=self.e_score_correction_bias,
            num_groups=moe.num_groups,
            top_groups=moe.top_groups,
            renormalize=moe.renormalize,
            scale=moe.scale,
            hash_ids=hash_ids,
            image_bias=self.image_bias,
            is_image=is_image,
        )
        return ids, weights


class SparseMoE(nn.Module):
    """Each token goes through the K experts that its router scores highest, and shared ones."""

    def __init__(
        self,
        ops: OpTable,
        hidden_size: int,
        moe: MoeConfig,
        *,
        dtype: str,
        hashed_vocab: int | None = None,
    ) -> None:
        super().__init__()
        self.top_k = moe.num_experts_per_token
        self.gate = Router(ops, hidden_size, moe, dtype=dtype, hashed_vocab=hashed_vocab)
        self.experts = Experts(ops, hidden_size, moe, dtype=dtype)
        self.shared_experts = None
        if moe.num_shared_experts:
            shared_size = moe.num_shared_experts * moe.intermediate_size
            self.shared_experts = GatedMLP(
                ops,
                hidden_size,
                shared_size,
                dtype=dtype,
                bias=False,
                limit=moe.limit,
                down="terms",
            )
        self.sum = bind_sum(ops, dtype=dtype, role="moe.sum")

    def forward(
        self, x: Tensor, input_ids: Tensor | None = None, is_image: Tensor | None = None
    ) -> Tensor:
        """[T, C] -> [T, C].

        Args:
            input_ids: [T], which only hashed layers need.
            is_image: [T] bool, tokens of images; None = none.
        """
        ids, weights = self.gate.choose(x, input_ids, is_image)
        y: Tensor = self.experts(x, ids, weights)
        y = y if self.shared_experts is None else y + self.shared_experts(x)
        return y if self.sum is None else self.sum(y)
