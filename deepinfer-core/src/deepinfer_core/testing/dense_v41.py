"""DeepSeek-V4.1 once more, densely: whole sequences, masks instead of caches, no op of ours.

Slow and short. It shares nothing with `models/`, so that each can prove the other wrong; with
float64 weights it measures how far float32 drifts.
"""

# mypy: disable-error-code="no-untyped-call,no-any-return"
# Torch does not annotate `unflatten`, and configurations hold anything.

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Round = Callable[[Tensor], Tensor]
CLOSE = 3e-6


def exact(x: Tensor) -> Tensor:
    """What rounds nothing."""
    return x


@dataclass(frozen=True, slots=True)
class Rounding:
    """What becomes of rows on their way into a cache, and of the queries of indexers."""

    window: Round = exact
    rows: Round = exact
    keys: Round = exact


class DenseV41:
    """Computes logits of whole prompts.

    Args:
        fields: `text_config` of a V4.1 file.
        weights: under released names, all of the dtype to compute in.
        classes: of tokens by id, for the n-gram memory.
        tables: for each of its layers, the multipliers and the primes [N - 1][heads].
    """

    def __init__(
        self,
        fields: Mapping[str, Any],
        weights: Mapping[str, Tensor],
        *,
        classes: Sequence[int],
        tables: Sequence[tuple[Sequence[int], Sequence[Sequence[int]]]],
        rounding: Rounding | None = None,
    ) -> None:
        self.c, self.w, self.rounding = fields, weights, rounding or Rounding()
        self.classes, self.tables = classes, tables
        self.rows: dict[int, tuple[Tensor, Tensor]] = {}
        """Source -> its rows and keys of the last prompt."""
        self.images: Mapping[int, Tensor] = {}
        self.num_clear = 0
        """Leading tokens of the last prompt whose choices, of rows, blocks and experts, were none
        of them closer than `CLOSE`: beyond, another rounding may choose otherwise."""

    def logits(
        self, token_ids: Sequence[int], images: Mapping[int, Tensor] | None = None
    ) -> Tensor:
        """[T, V] of a prompt of T tokens.

        Args:
            images: position -> the row [D] that stands in for the token's embedding.
        """
        self.num_clear, self.images = len(token_ids), images or {}
        c, w, n = self.c, self.w, self.c["hc_mult"]
        embedded = w["embed.weight"][torch.tensor(token_ids)]
        rows = [self.images.get(t, embedded[t]) for t in range(len(token_ids))]
        x = torch.stack(rows).to(embedded.dtype).unsqueeze(1).expand(-1, n, -1)
        pre = F.one_hot(torch.zeros(len(x), dtype=torch.long), n).to(x.dtype)
        chosen = candidates = None
        for layer in range(c["num_hidden_layers"]):
            if layer in c["engram_layer_ids"]:
                x = self._remember(layer, x, token_ids)
            p = f"layers.{layer}"
            own_pre, post, mix = self._coefficients(x, f"{p}.hc_attn")
            u = self._norm((pre.unsqueeze(2) * x).sum(1), f"{p}.attn_norm.weight")
            y, chosen, candidates = self._attend(layer, u, chosen, candidates)
            x = post.unsqueeze(2) * y.unsqueeze(1) + mix.transpose(1, 2) @ x
            pre, post, mix = self._coefficients(x, f"{p}.hc_ffn")
            u = self._norm((own_pre.unsqueeze(2) * x).sum(1), f"{p}.ffn_norm.weight")
            x = post.unsqueeze(2) * self._experts(p, u).unsqueeze(1) + mix.transpose(1, 2) @ x
        last = self._norm((pre.unsqueeze(2) * x).sum(1), "norm.weight")
        return last @ w["head.weight"].T

    def _unit(self, x: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + self.c["rms_norm_eps"]).sqrt()

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return self._unit(x) * self.w[name]

    def _coefficients(self, x: Tensor, name: str) -> tuple[Tensor, Tensor, Tensor]:
        c, n, eps = self.c, self.c["hc_mult"], self.c["hc_eps"]
        z = self._unit(x.flatten(1)) @ self.w[f"{name}_fn"].T
        scale = self.w[f"{name}_scale"].repeat_interleave(torch.tensor([n, n, n * n]))
        pre, post, mix = (z * scale + self.w[f"{name}_base"]).split([n, n, n * n], dim=1)
        mix = mix.view(-1, n, n).softmax(2) + eps
        for turn in range(2 * c["hc_sinkhorn_iters"] - 1):
            mix = mix / (mix.sum(1 + turn % 2, keepdim=True) + eps)
        return pre.sigmoid() + eps, 2 * post.sigmoid(), mix

    def _rotate(self, x: Tensor, positions: Tensor, scaled: bool, sign: int = 1) -> Tensor:
        """[.., T or T x H, d]: the last dims by pairs of neighbors, as complex numbers."""
        size = self.c["qk_rope_head_dim"]
        angles = positions.double().unsqueeze(1) * self._frequencies(scaled)
        turns = torch.polar(torch.ones_like(angles), sign * angles)
        turns = turns.view(len(positions), *[1] * (x.dim() - 2), size // 2)
        halves = x[..., -size:].double().unflatten(-1, (size // 2, 2))
        pairs = torch.view_as_complex(halves.contiguous())
        turned = torch.view_as_real(pairs * turns).flatten(-2).to(x.dtype)
        return torch.cat((x[..., :-size], turned), dim=-1)

    def _frequencies(self, scaled: bool) -> Tensor:
        c, size = self.c, self.c["qk_rope_head_dim"]
        base = float(c["compress_rope_theta" if scaled else "rope_theta"])
        places = torch.arange(size // 2).double()
        plain = base ** (-2 * places / size)
        if not scaled:
            return plain
        yarn = c["rope_scaling"]

        def place(turns: float) -> float:
            length = yarn["original_max_position_embeddings"] / (2 * math.pi * turns)
            return size * math.log(length) / (2 * math.log(base))

        low, high = max(math.floor(place(yarn["beta_fast"])), 0), place(yarn["beta_slow"])
        high = min(math.ceil(high), size - 1)
        ramp = ((places - low) / max(high - low, 1e-3)).clamp(0, 1)
        return plain / yarn["factor"] * ramp + plain * (1 - ramp)

    def _attend(
        self, layer: int, x: Tensor, chosen: Tensor | None, candidates: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """What a layer's attention adds, and the masks [T, E] of rows that later layers take."""
        c, w, p = self.c, self.w, f"layers.{layer}.attn"
        ratio, steps = c["compress_ratios"][layer], torch.arange(len(x))
        latent = self._norm(x @ w[f"{p}.wq_a.weight"].T, f"{p}.q_norm.weight")
        own = self._norm(x @ w[f"{p}.wkv.weight"].T, f"{p}.kv_norm.weight")
        keys = self.rounding.window(self._rotate(own, steps, ratio > 0))
        back = steps.unsqueeze(1) - steps
        mask = (back >= 0) & (back < c["sliding_window"])
        if ratio:
            if layer in c["kv_source_layer_ids"]:
                self.rows[layer] = self._compress(p, x, ratio)
            rows, index_keys = self.rows[max(s for s in c["kv_source_layer_ids"] if s <= layer)]
            if layer in c["index_source_layer_ids"]:
                chosen, candidates = self._choose(layer, x, latent, index_keys, candidates)
            assert chosen is not None
            keys, mask = torch.cat((keys, rows)), torch.cat((mask, chosen), dim=1)
        heads = (latent @ w[f"{p}.wq_b.weight"].T).unflatten(1, (-1, c["head_dim"]))
        q = self._rotate(heads, steps, ratio > 0)
        scores = torch.einsum("thd,sd->ths", q, keys) * c["head_dim"] ** -0.5
        scores = scores.masked_fill(~mask.unsqueeze(1), -math.inf)
        sinks = w[f"{p}.attn_sink"].view(1, -1, 1).expand(len(x), -1, 1)
        weights = torch.cat((scores, sinks), dim=2).softmax(2)[..., :-1]
        o = self._rotate(weights @ keys, steps, ratio > 0, sign=-1)
        groups = w[f"{p}.wo_a.weight"].unflatten(0, (c["o_groups"], -1))
        grouped = torch.einsum("tgi,gri->tgr", o.reshape(len(x), c["o_groups"], -1), groups)
        return grouped.flatten(1) @ w[f"{p}.wo_b.weight"].T, chosen, candidates

    def _compress(self, p: str, x: Tensor, ratio: int) -> tuple[Tensor, Tensor]:
        """Rows and index keys of all whole groups."""
        w, count = self.w, len(x) // ratio
        values = (x @ w[f"{p}.compressor.wkv.weight"].T)[: count * ratio]
        if ratio > 1:
            gates = (x @ w[f"{p}.compressor.wgate.weight"].T)[: count * ratio]
            shares = gates.unflatten(0, (count, ratio)).softmax(1)
            values = (shares * values.unflatten(0, (count, ratio))).sum(1)
        latents = self._norm(values, f"{p}.compressor.norm.weight")
        keys = self._norm(latents @ w[f"{p}.indexer.wk.weight"].T, f"{p}.indexer.k_norm.weight")
        firsts = torch.arange(count) * ratio
        rows = self.rounding.rows(self._rotate(latents, firsts, True))
        return rows, self.rounding.keys(self._rotate(keys, firsts, True))

    def _choose(
        self, layer: int, x: Tensor, latent: Tensor, keys: Tensor, candidates: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        c, w, p = self.c, self.w, f"layers.{layer}.attn.indexer"
        steps, size = torch.arange(len(x)), c["index_head_dim"]
        heads = (latent @ w[f"{p}.wq_b.weight"].T).unflatten(1, (-1, size))
        q = self.rounding.keys(self._rotate(heads, steps, True))
        factors = x @ w[f"{p}.weights_proj.weight"].T * (size * c["index_n_heads"]) ** -0.5
        scores = torch.einsum("ths,th->ts", torch.einsum("thd,sd->ths", q, keys).relu(), factors)
        numbers = torch.arange(len(keys))
        seen = numbers < (steps.unsqueeze(1) + 1) // c["compress_ratios"][layer]
        source = c["candidate_source_layer_id"]
        if layer == source:
            candidates = self._best_blocks(scores.masked_fill(~seen, -math.inf), seen)
        elif 0 <= source < layer:
            assert candidates is not None
            seen = seen & candidates
        return self._top(scores, seen, c["index_topk"]), candidates

    def _best_blocks(self, scores: Tensor, seen: Tensor) -> Tensor:
        """[T, E] bool: rows of the blocks that are kept."""
        size = self.c["candidate_block_size"]
        blocks = torch.arange(scores.shape[1]) // size
        count = int(blocks[-1]) + 1 if len(blocks) else 0
        by_block = [scores[:, blocks == b].amax(1, keepdim=True) for b in range(count)]
        best = torch.cat([scores[:, :0], *by_block], dim=1)
        newest = (seen.sum(1, keepdim=True) - 1) // size
        best = best.masked_fill(torch.arange(count) == newest, math.inf)
        kept = self._top(best, best > -math.inf, self.c["candidate_topk_blocks"])
        return kept[:, blocks]

    def _experts(self, p: str, x: Tensor) -> Tensor:
        c, w = self.c, self.w
        raw = F.softplus(x @ w[f"{p}.ffn.gate.weight"].T / c.get("gate_temp", 1.0)).sqrt()
        biases = (w[f"{p}.ffn.gate.bias"], w[f"{p}.ffn.gate.bias_vl"])
        biased = raw + torch.stack([biases[t in self.images] for t in range(len(x))])
        picked = self._top(
            biased, torch.ones_like(biased, dtype=torch.bool), c["num_experts_per_tok"]
        )
        shares = raw * picked
        shares = shares / (shares.sum(1, keepdim=True) + 1e-20) * c["routed_scaling_factor"]
        y = self._expert(f"{p}.ffn.shared_experts", x)
        for expert in range(c["n_routed_experts"]):
            y = y + shares[:, expert, None] * self._expert(f"{p}.ffn.experts.{expert}", x)
        return y

    def _expert(self, p: str, x: Tensor) -> Tensor:
        w, limit = self.w, self.c["swiglu_limit"]
        gate, up = (x @ w[f"{p}.{name}.weight"].T for name in ("w1", "w3"))
        return F.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit) @ w[f"{p}.w2.weight"].T

    def _top(self, scores: Tensor, able: Tensor, count: int) -> Tensor:
        """[T, E] bool: the best `count` of those that are able, the lower number among equals."""
        ranked = scores.masked_fill(~able, -math.inf).sort(dim=1, descending=True, stable=True)
        if count < scores.shape[1]:
            gaps = ranked.values[:, count - 1] - ranked.values[:, count]
            unclear = (gaps < CLOSE).nonzero().flatten().tolist()  # nan: nothing more is able
            self.num_clear = min([self.num_clear, *unclear])
        best = torch.zeros_like(able).scatter(1, ranked.indices[:, :count], True)
        return best & able

    def _remember(self, layer: int, x: Tensor, token_ids: Sequence[int]) -> Tensor:
        c, w, p = self.c, self.w, f"layers.{layer}.engram"
        factors, primes = self.tables[list(c["engram_layer_ids"]).index(layer)]
        rows = [_row_numbers(self._ngram(token_ids, t), factors, primes) for t in range(len(x))]
        read = w[f"{p}.embed.weight"][torch.tensor(rows)].flatten(1) @ w[f"{p}.wkv.weight"].T
        parts = read.unflatten(1, (c["hc_mult"] + 1, -1))
        keys, value = self._unit(parts[:, :-1]) * w[f"{p}.k_weight"], parts[:, -1:]
        dots = (self._unit(x) * w[f"{p}.q_weight"] * keys).sum(2) * c["hidden_size"] ** -0.5
        gates = torch.copysign(dots.abs().clamp(min=1e-6).sqrt(), dots).sigmoid()
        added = gates.unsqueeze(2) * value
        added[list(self.images)] = 0
        return x + added

    def _ngram(self, token_ids: Sequence[int], t: int) -> list[int]:
        """The class of token t and of those before it, as many as the longest n-gram has."""
        pad, size = self.c["engram_pad_token_id"], self.c["engram_max_ngram_size"]
        # What is before the start or before an image, the image included, is not seen.
        first = max((i + 1 for i in self.images if i <= t), default=0)
        return [self.classes[token_ids[t - s]] if t - s >= first else pad for s in range(size)]


def _row_numbers(
    ngram: Sequence[int], factors: Sequence[int], primes: Sequence[Sequence[int]]
) -> list[int]:
    numbers, first, mixed = [], 0, ngram[0] * factors[0]
    for token, factor, sizes in zip(ngram[1:], factors[1:], primes, strict=True):
        mixed ^= token * factor
        for size in sizes:
            numbers.append(first + mixed % size)
            first += size
    return numbers
