"""The predicting layer of DeepSeek-V4, and DSpark of V4 and V4.1, against dense ones.

These work token by token. transformers drops `mtp.*`, so the formulas are written out here once
more, in float64, with every cache a list.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from deepinfer_core.ops.table import reference_table
from deepinfer_core.testing.drafting import DraftRunner, load_with_drafter
from deepinfer_core.testing.tiny import TINY_DRAFTERS, tiny_config, write_tiny_checkpoint
from safetensors.torch import load_file
from torch import Tensor

TOLERANCE = 2e-5
"""Of the largest logit."""
LENGTHS = (1, 2, 7, 8, 9, 16, 23, 24, 25, 60)
"""Around the windows of 8 (V4.1) and 24, and blocks of 16."""


def rms(x: Tensor, eps: float, weight: Tensor | None = None) -> Tensor:
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return y if weight is None else weight * y


@dataclass
class DenseLayers:
    """The layers under `mtp.` of one request: their arithmetic, and their rows by position."""

    config: dict[str, Any]
    weights: dict[str, Tensor]
    rows: dict[int, list[Tensor]] = field(default_factory=dict)
    norms_heads = True
    num_experts_per_token = "num_experts_per_tok"

    def rotate(self, x: Tensor, t: int) -> Tensor:
        """The last dims by pairs of neighbors, without any scaling."""
        dim = self.config["qk_rope_head_dim"]
        i = torch.arange(0, dim, 2, dtype=torch.float64)
        angle = t * self.config["rope_theta"] ** (-i / dim)
        turn = torch.complex(angle.cos(), angle.sin())
        pairs = torch.view_as_complex(x[..., -dim:].unflatten(-1, (-1, 2)).contiguous())
        return torch.cat((x[..., :-dim], torch.view_as_real(pairs * turn).flatten(-2)), dim=-1)

    def coefficients(self, streams: Tensor, name: str) -> tuple[Tensor, Tensor, Tensor]:
        n, eps = self.config["hc_mult"], self.config["hc_eps"]
        z = self.weights[f"{name}_fn"] @ rms(streams.flatten(), self.config["rms_norm_eps"])
        scale, base = self.weights[f"{name}_scale"], self.weights[f"{name}_base"]
        mix = (scale[2] * z[2 * n :] + base[2 * n :]).view(n, n).softmax(dim=1) + eps
        for i in range(self.config["hc_sinkhorn_iters"]):
            if i:
                mix = mix / (mix.sum(dim=1, keepdim=True) + eps)
            mix = mix / (mix.sum(dim=0, keepdim=True) + eps)
        pre = (scale[0] * z[:n] + base[:n]).sigmoid() + eps
        return pre, 2 * (scale[1] * z[n : 2 * n] + base[n : 2 * n]).sigmoid(), mix

    def collapse(self, streams: Tensor, name: str) -> Tensor:
        z = self.weights[f"{name}_fn"] @ rms(streams.flatten(), self.config["rms_norm_eps"])
        pre = (self.weights[f"{name}_scale"] * z + self.weights[f"{name}_base"]).sigmoid()
        return ((pre + self.config["hc_eps"])[:, None] * streams).sum(dim=0)

    def row(self, name: str, x: Tensor, t: int) -> Tensor:
        weight, eps = self.weights[f"{name}.attn.kv_norm.weight"], self.config["rms_norm_eps"]
        return self.rotate(rms(self.weights[f"{name}.attn.wkv.weight"] @ x, eps, weight), t)

    def attend(self, name: str, x: Tensor, t: int, rows: list[Tensor]) -> Tensor:
        config, attn = self.config, f"{name}.attn"
        heads, dim, groups = (config[k] for k in ("num_attention_heads", "head_dim", "o_groups"))
        eps = config["rms_norm_eps"]
        latent = self.weights[f"{attn}.wq_a.weight"] @ x
        latent = rms(latent, eps, self.weights[f"{attn}.q_norm.weight"])
        q = (self.weights[f"{attn}.wq_b.weight"] @ latent).view(heads, dim)
        q, held = self.rotate(rms(q, eps) if self.norms_heads else q, t), torch.stack(rows)
        sink = self.weights[f"{attn}.attn_sink"][:, None]
        p = torch.cat((q @ held.T * dim**-0.5, sink), dim=1).softmax(dim=1)[:, :-1]
        o = self.rotate(p @ held, -t).view(groups, -1)
        projections = self.weights[f"{attn}.wo_a.weight"].view(groups, config["o_lora_rank"], -1)
        parts = [projections[g] @ o[g] for g in range(groups)]
        return self.weights[f"{attn}.wo_b.weight"] @ torch.cat(parts)

    def experts(self, name: str, x: Tensor) -> Tensor:
        config, ffn = self.config, f"{name}.ffn"
        s = F.softplus(self.weights[f"{ffn}.gate.weight"] @ x).sqrt()
        best = (s + self.weights[f"{ffn}.gate.bias"]).topk(config[self.num_experts_per_token])
        chosen = best.indices.tolist()
        y = self.gated(f"{ffn}.shared_experts", x)
        for e in chosen:
            weight = s[e] / (s[chosen].sum() + 1e-20) * config["routed_scaling_factor"]
            y = y + weight * self.gated(f"{ffn}.experts.{e}", x)
        return y

    def gated(self, name: str, x: Tensor) -> Tensor:
        limit = self.config["swiglu_limit"]
        gate = (self.weights[f"{name}.w1.weight"] @ x).clamp(max=limit)
        up = (self.weights[f"{name}.w3.weight"] @ x).clamp(-limit, limit)
        return self.weights[f"{name}.w2.weight"] @ (F.silu(gate) * up)

    def enter(self, name: str, streams: Tensor) -> Tensor:
        """The input of a layer's attention."""
        pre, _, _ = self.coefficients(streams, f"{name}.hc_attn")
        u = (pre[:, None] * streams).sum(dim=0)
        return rms(u, self.config["rms_norm_eps"], self.weights[f"{name}.attn_norm.weight"])

    def layer(self, name: str, streams: Tensor, t: int, rows: list[Tensor]) -> Tensor:
        """All of a layer, whose attention sees the given rows."""
        y = self.attend(name, self.enter(name, streams), t, rows)
        _, post, mix = self.coefficients(streams, f"{name}.hc_attn")
        streams = post[:, None] * y + mix.T @ streams
        pre, post, mix = self.coefficients(streams, f"{name}.hc_ffn")
        norm = self.weights[f"{name}.ffn_norm.weight"]
        u = rms((pre[:, None] * streams).sum(dim=0), self.config["rms_norm_eps"], norm)
        return post[:, None] * self.experts(name, u) + mix.T @ streams

    def window(self, stage: int, last: int) -> list[Tensor]:
        first = max(0, last + 1 - self.config["sliding_window"])
        return self.rows[stage][first : last + 1]


class DenseMtp(DenseLayers):
    """One request, whose positions are taken in order."""

    def step(self, streams: Tensor, next_id: int) -> Tensor:
        held = self.rows.setdefault(0, [])
        t, eps = len(held), self.config["rms_norm_eps"]
        get = self.weights.__getitem__
        e = get("mtp.0.e_proj.weight") @ rms(
            get("embed.weight")[next_id], eps, get("mtp.0.enorm.weight")
        )
        h = [get("mtp.0.h_proj.weight") @ rms(x, eps, get("mtp.0.hnorm.weight")) for x in streams]
        x = torch.stack(h) + e
        held.append(self.row("mtp.0", self.enter("mtp.0", x), t))
        return self.layer("mtp.0", x, t, self.window(0, t))

    def logits(self, streams: Tensor) -> Tensor:
        norm, eps = self.weights["mtp.0.norm.weight"], self.config["rms_norm_eps"]
        return self.weights["head.weight"] @ rms(self.collapse(streams, "mtp.0.hc_head"), eps, norm)


def expect_mtp(dense: DenseMtp, features: Tensor, next_ids: list[int]) -> tuple[Tensor, None]:
    for streams, token in zip(features, next_ids, strict=True):
        x = dense.step(streams, token)
    logits = [dense.logits(x)]
    while len(logits) < 3:
        x = dense.step(x, int(logits[-1].argmax()))
        logits.append(dense.logits(x))
    return torch.stack(logits), None


class DenseDspark(DenseLayers):
    """One request, whose positions are taken in order."""

    markov_names = ("markov_w1", "markov_w2")

    def take_in(self, taps: Tensor) -> None:
        weight, eps = self.weights["mtp.0.main_norm.weight"], self.config["rms_norm_eps"]
        x = rms(self.weights["mtp.0.main_proj.weight"] @ taps.flatten(), eps, weight)
        for stage in range(3):
            held = self.rows.setdefault(stage, [])
            held.append(self.row(f"mtp.{stage}", x, len(held)))

    def block(self, anchor: int, count: int) -> tuple[Tensor, Tensor]:
        get, eps = self.weights.__getitem__, self.config["rms_norm_eps"]
        size, first = self.config["dspark_block_size"], len(self.rows[0])
        ids = [anchor] + [self.config["dspark_noise_token_id"]] * (size - 1)
        streams = [get("embed.weight")[i].expand(self.config["hc_mult"], -1) for i in ids]
        embed, head = (get(f"mtp.2.markov_head.{name}.weight") for name in self.markov_names)
        logits, confidence, previous = [], [], anchor
        for h in self.run(streams, list(range(first, first + size)))[:count]:
            e = embed[previous]
            base = get("head.weight") @ rms(h, eps, get("mtp.2.norm.weight"))
            logits.append(base + head @ e)
            trust = get("mtp.2.confidence_head.proj.weight") @ torch.cat((h, e))
            confidence.append(trust.sigmoid())
            previous = int(logits[-1].argmax())
        return torch.stack(logits), torch.cat(confidence)

    def run(self, streams: list[Tensor], places: list[int]) -> list[Tensor]:
        """The rows of a block before the last norm."""
        for stage in range(3):
            name = f"mtp.{stage}"
            inputs = [self.enter(name, x) for x in streams]
            own = [self.row(name, x, t) for x, t in zip(inputs, places, strict=True)]
            seen = self.window(stage, places[0] - 1) + own
            streams = [self.layer(name, x, t, seen) for x, t in zip(streams, places, strict=True)]
        return [self.collapse(x, "mtp.2.hc_head") for x in streams]


class DenseDspark41(DenseDspark):
    """Each sublayer reads the streams with the coefficients of the one before it."""

    norms_heads = False
    num_experts_per_token = "dspark_num_experts_per_tok"
    markov_names = ("embed", "head")

    def run(self, streams: list[Tensor], places: list[int]) -> list[Tensor]:
        eps = self.config["rms_norm_eps"]
        pres = [torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)] * len(streams)
        for stage in range(3):
            name = f"mtp.{stage}"
            norm = self.weights[f"{name}.attn_norm.weight"]
            inputs = [rms(pre @ x, eps, norm) for pre, x in zip(pres, streams, strict=True)]
            own = [self.row(name, x, t) for x, t in zip(inputs, places, strict=True)]
            seen = self.window(stage, places[0] - 1) + own
            for i, (x, t) in enumerate(zip(inputs, places, strict=True)):
                pre, post, mix = self.coefficients(streams[i], f"{name}.hc_attn")
                after = post[:, None] * self.attend(name, x, t, seen) + mix.T @ streams[i]
                pres[i], post, mix = self.coefficients(after, f"{name}.hc_ffn")
                u = rms(pre @ after, eps, self.weights[f"{name}.ffn_norm.weight"])
                streams[i] = post[:, None] * self.experts(name, u) + mix.T @ after
        return [pre @ x for pre, x in zip(pres, streams, strict=True)]


def expect_dspark(
    dense: DenseDspark, features: Tensor, next_ids: list[int]
) -> tuple[Tensor, Tensor]:
    for taps in features:
        dense.take_in(taps)
    return dense.block(next_ids[-1], 3)


DRAFTERS = {
    "mtp_v4": (DenseMtp, expect_mtp),
    "dspark_v4": (DenseDspark, expect_dspark),
    "dspark_v41": (DenseDspark41, expect_dspark),
}


@dataclass
class Pair:
    runner: DraftRunner
    name: str
    config: dict[str, Any]
    weights: dict[str, Tensor]

    def expected(self, ids: list[int], next_id: int) -> tuple[Tensor, Tensor | None]:
        """Three drafts. Features are the target's own, computed at once."""
        alone = DraftRunner(self.runner.target, self.runner.drafter)
        _, features = alone.target.forward_with_features(alone.next_batch({0: ids}))
        dense, expect = DRAFTERS[self.name]
        return expect(dense(self.config, self.weights), features.double(), [*ids[1:], next_id])


@pytest.fixture(scope="module", params=DRAFTERS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    family, fields = TINY_DRAFTERS[request.param]
    directory = write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), family, **fields)
    target, drafter = load_with_drafter(directory, reference_table())
    weights = {n: w.double() for n, w in load_file(directory / "model.safetensors").items()}
    runner = DraftRunner(target, drafter, num_blocks=128, num_lookahead_tokens=2)
    config = tiny_config(family, **fields)
    return Pair(runner, request.param, config.get("text_config", config), weights)


def tokens(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(3, 275, (length,), generator=generator).tolist()


def test_drafts_behind_prompts_of_many_lengths(pair: Pair) -> None:
    prompts = {length: tokens(length) for length in LENGTHS}
    next_ids = {length: 5 + length for length in LENGTHS}
    _, drafts = pair.runner.propose(prompts, next_ids, 3)
    for length, ids in prompts.items():
        logits, confidence = pair.expected(ids, next_ids[length])
        found = drafts[length]
        bound = TOLERANCE * logits.abs().max().item()
        torch.testing.assert_close(found.logits[0].double(), logits, atol=bound, rtol=0)
        assert found.token_ids[0].tolist() == logits.argmax(dim=1).tolist()
        if confidence is None:
            assert found.confidence is None
        else:
            torch.testing.assert_close(
                found.confidence[0].double(), confidence, atol=TOLERANCE, rtol=0
            )
