"""The predicting layer of DeepSeek-V3 and V3.2 against a dense one that works token by token.

transformers drops this layer, so the formulas are written out here once more, in float64, with
keys and values of every head expanded and every cache a list.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from deepinfer_core.ops.table import reference_table
from deepinfer_core.testing.drafting import DraftRunner, load_with_drafter
from deepinfer_core.testing.tiny import TINY_DRAFTERS, tiny_config, write_tiny_checkpoint
from safetensors.torch import load_file, save_file
from torch import Tensor

TOLERANCE = 2e-5
"""Of the largest logit."""
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "v3": ("mtp_v3", {}),
    "v3 without query latents": ("mtp_v3", {"q_lora_rank": None}),
    "v32": ("mtp_v32", {}),
}


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


@dataclass
class DenseMtp:
    """One request, whose positions are taken in order."""

    config: dict[str, Any]
    weights: dict[str, Tensor]
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    index_keys: list[Tensor] = field(default_factory=list)

    def get(self, name: str) -> Tensor:
        return self.weights[f"model.layers.{self.config['num_hidden_layers']}.{name}"]

    def angles(self, t: int) -> Tensor:
        """YaRN: slow frequencies are interpolated, fast ones kept."""
        scaling, dim = self.config["rope_scaling"], self.config["qk_rope_head_dim"]
        base = self.config["rope_theta"]

        def index_of(turns: float) -> float:
            length = scaling["original_max_position_embeddings"]
            return dim * math.log(length / (2 * math.pi * turns)) / (2 * math.log(base))

        low = max(math.floor(index_of(scaling["beta_fast"])), 0)
        high = min(math.ceil(index_of(scaling["beta_slow"])), dim - 1)
        frequencies = []
        for i in range(dim // 2):
            f = base ** (-2 * i / dim)
            ramp = min(max((i - low) / max(high - low, 1e-3), 0.0), 1.0)
            frequencies.append(f / scaling["factor"] * ramp + f * (1 - ramp))
        return t * torch.tensor(frequencies, dtype=torch.float64)

    def rotate(self, x: Tensor, t: int, *, in_halves: bool = False) -> Tensor:
        cos, sin = self.angles(t).cos(), self.angles(t).sin()
        if in_halves:
            a, b = x.chunk(2, dim=-1)
            return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)

    def attend(self, x: Tensor, t: int) -> Tensor:
        config, attn = self.config, "self_attn"
        heads, nope = config["num_attention_heads"], config["qk_nope_head_dim"]
        if config["q_lora_rank"] is None:
            latent, q = None, self.get(f"{attn}.q_proj.weight") @ x
        else:
            weight = self.get(f"{attn}.q_a_layernorm.weight")
            latent = rms(self.get(f"{attn}.q_a_proj.weight") @ x, weight, 1e-6)
            q = self.get(f"{attn}.q_b_proj.weight") @ latent
        q_nope, q_rope = q.view(heads, -1).split([nope, config["qk_rope_head_dim"]], dim=1)
        row = self.get(f"{attn}.kv_a_proj_with_mqa.weight") @ x
        c, k_rope = row.split([config["kv_lora_rank"], config["qk_rope_head_dim"]])
        c = rms(c, self.get(f"{attn}.kv_a_layernorm.weight"), 1e-6)
        expanded = (self.get(f"{attn}.kv_b_proj.weight") @ c).view(heads, -1)
        k_nope, v = expanded.split([nope, config["v_head_dim"]], dim=1)
        shared = self.rotate(k_rope, t).expand(heads, -1)
        self.keys.append(torch.cat((k_nope, shared), dim=1))
        self.values.append(v)
        seen = list(range(t + 1)) if "index_topk" not in config else self.choose(x, latent, t)
        q = torch.cat((q_nope, self.rotate(q_rope, t)), dim=1)
        mscale = 0.1 * math.log(config["rope_scaling"]["factor"]) + 1
        scale = q.shape[1] ** -0.5 * mscale**2
        keys = torch.stack([self.keys[s] for s in seen], dim=1)
        values = torch.stack([self.values[s] for s in seen], dim=1)
        p = (torch.einsum("hd,hsd->hs", q, keys) * scale).softmax(dim=1)
        o = torch.einsum("hs,hsd->hd", p, values)
        return self.get(f"{attn}.o_proj.weight") @ o.flatten()

    def choose(self, x: Tensor, latent: Tensor, t: int) -> list[int]:
        config, indexer = self.config, "self_attn.indexer"
        heads, dim, rope = config["index_n_heads"], config["index_head_dim"], 16
        k = self.get(f"{indexer}.wk.weight") @ x
        k = (k - k.mean()) * torch.rsqrt(k.var(unbiased=False) + 1e-6)
        k = k * self.get(f"{indexer}.k_norm.weight") + self.get(f"{indexer}.k_norm.bias")
        self.index_keys.append(torch.cat((self.rotate(k[:rope], t, in_halves=True), k[rope:])))
        q = (self.get(f"{indexer}.wq_b.weight") @ latent).view(heads, dim)
        q = torch.cat((self.rotate(q[:, :rope], t, in_halves=True), q[:, rope:]), dim=1)
        w = (self.get(f"{indexer}.weights_proj.weight") @ x) * heads**-0.5 * dim**-0.5
        scores = (q @ torch.stack(self.index_keys, dim=1)).relu().mul(w[:, None]).sum(dim=0)
        return scores.topk(min(config["index_topk"], t + 1)).indices.tolist()

    def feed_forward(self, x: Tensor) -> Tensor:
        config = self.config
        s = (self.get("mlp.gate.weight") @ x).sigmoid()
        corrected = (s + self.get("mlp.gate.e_score_correction_bias")).view(config["n_group"], -1)
        best = corrected.topk(2, dim=1).values.sum(dim=1).topk(config["topk_group"]).indices
        allowed = torch.full_like(corrected, -math.inf)
        allowed[best] = corrected[best]
        chosen = allowed.flatten().topk(config["num_experts_per_tok"]).indices.tolist()
        y = self.gated(x, "mlp.shared_experts")
        for e in chosen:
            weight = s[e] / (s[chosen].sum() + 1e-20) * config["routed_scaling_factor"]
            y = y + weight * self.gated(x, f"mlp.experts.{e}")
        return y

    def gated(self, x: Tensor, name: str) -> Tensor:
        gate = torch.nn.functional.silu(self.get(f"{name}.gate_proj.weight") @ x)
        up = self.get(f"{name}.up_proj.weight") @ x
        return self.get(f"{name}.down_proj.weight") @ (gate * up)

    def step(self, hidden: Tensor, next_id: int) -> Tensor:
        """The target's hidden state at the next position, and the token behind it."""
        eps, t = self.config["rms_norm_eps"], len(self.keys)
        e = rms(self.weights["model.embed_tokens.weight"][next_id], self.get("enorm.weight"), eps)
        h = rms(hidden, self.get("hnorm.weight"), eps)
        x = self.get("eh_proj.weight") @ torch.cat((e, h))
        x = x + self.attend(rms(x, self.get("input_layernorm.weight"), eps), t)
        x = x + self.feed_forward(rms(x, self.get("post_attention_layernorm.weight"), eps))
        return rms(x, self.get("shared_head.norm.weight"), eps)

    def drafts(self, hidden: Tensor, count: int) -> list[Tensor]:
        """Logits of the most likely drafts, each from what the one before left."""
        logits = [self.weights["lm_head.weight"] @ hidden]
        while len(logits) < count:
            hidden = self.step(hidden, int(logits[-1].argmax()))
            logits.append(self.weights["lm_head.weight"] @ hidden)
        return logits


@dataclass
class Pair:
    runner: DraftRunner
    config: dict[str, Any]
    weights: dict[str, Tensor]

    def expected(self, ids: list[int], next_id: int, count: int) -> Tensor:
        """Features are the target's own, computed at once."""
        alone = DraftRunner(self.runner.target, self.runner.drafter)
        _, features = alone.target.forward_with_features(alone.next_batch({0: ids}))
        dense = DenseMtp(self.config, self.weights)
        for h, token in zip(features.double(), [*ids[1:], next_id], strict=True):
            hidden = dense.step(h, token)
        return torch.stack(dense.drafts(hidden, count))


@pytest.fixture(scope="module", params=MODELS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    name, changes = MODELS[request.param]
    family, fields = TINY_DRAFTERS[name]
    fields = {**fields, **changes}
    directory = write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), family, **fields)
    add_copies(directory)
    target, drafter = load_with_drafter(directory, reference_table())
    weights = {n: w.double() for n, w in load_file(directory / "model.safetensors").items()}
    runner = DraftRunner(target, drafter, num_blocks=128, num_lookahead_tokens=3)
    return Pair(runner, tiny_config(family, **fields), weights)


def add_copies(directory: Path) -> None:
    """As released, the layer also has the embedding and the head, which are the target's."""
    path = directory / "model.safetensors"
    tensors = load_file(path)
    tensors["model.layers.3.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["model.layers.3.shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    save_file(tensors, path)


def tokens(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(3, 275, (length,), generator=generator).tolist()


def test_drafts_behind_prompts_of_many_lengths(pair: Pair) -> None:
    prompts = {length: tokens(length) for length in (1, 2, 15, 16, 17, 24, 25, 70)}
    next_ids = {length: 5 + length for length in prompts}
    _, drafts = pair.runner.propose(prompts, next_ids, 4)
    for length, ids in prompts.items():
        expected = pair.expected(ids, next_ids[length], 4)
        found = drafts[length]
        bound = TOLERANCE * expected.abs().max().item()
        torch.testing.assert_close(found.logits[0].double(), expected, atol=bound, rtol=0)
        assert found.token_ids[0].tolist() == expected.argmax(dim=1).tolist()
        assert found.confidence is None
