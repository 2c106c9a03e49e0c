"""What exact verification costs in acceptance, against rejection sampling, on real text.

    python scripts/compare_draft_rules.py models/SmolLM2-135M-Instruct.Q4_1.gguf

The target is the model with the whole text before each token; the drafter is the same model that
sees only the last few tokens, so it is right where the text is local and wrong where it is not. For
each place, with p the target's probabilities and q the drafter's:

    rejection     sum of min(p, q): Leviathan et al. 2023, the most that there can be
    shared noise  sum over i of 1 / sum over j of max(p_j / p_i, q_j / q_i): target and drafter both
                  take the highest of logits + the same Gumbel noise, as here
    own noise     sum of p q: exact verification of a drafter with noise of its own
    greedy        p at the drafter's likeliest token; n-grams are like that, and all rules accept
                  their drafts alike

The second is checked with draws of the engine's own noise.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

import torch
from deepinfer_core.config import EngineConfig
from deepinfer_core.engine_setup import LoadedModel, load_model
from deepinfer_core.plugins import PluginHost
from deepinfer_core.sampling.draw import draw_unpruned
from deepinfer_core.testing.forward import HandRunner
from torch import Tensor

TEXT = (
    "The lighthouse keeper of Brannoch kept a diary for forty-one years. Every evening he wrote "
    "down the direction of the wind, the height of the waves, and the names of the ships that "
    "passed. On the third of March 1911 he wrote that the steamer Ardent had passed at a quarter "
    "past nine, although no other record of such a ship exists. Historians have looked for the "
    "Ardent in every port between Oban and Bergen, and have found a tavern of that name, but no "
    "steamer. The diary is now kept in the town hall, in a glass case, open at that page."
)
NUM_DRAWS = 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model")
    parser.add_argument("--contexts", default="4,8,16,32")
    parser.add_argument("--temperatures", default="0.6,1.0")
    given = parser.parse_args()
    config = EngineConfig.from_flat(given.model, dtype="float32")
    loaded = load_model(config, PluginHost(load_entry_points=False))
    ids = loaded.tokenizer.encode(TEXT, add_special_tokens=True)
    for context in map(int, given.contexts.split(",")):
        whole, local = both_logits(loaded, ids, context)
        for temperature in map(float, given.temperatures.split(",")):
            row = {"context": context, "temperature": temperature, "places": len(whole)}
            print(json.dumps(row | acceptance(whole / temperature, local / temperature)))


def both_logits(loaded: LoadedModel, ids: Sequence[int], context: int) -> tuple[Tensor, Tensor]:
    """[N, V] with everything before N places, and with the last `context` tokens alone."""
    whole = HandRunner(loaded.model).feed({0: ids})[0]
    rows = []
    ends = range(context, len(ids))
    for first in range(0, len(ends), 32):
        runner = HandRunner(loaded.model, num_blocks=256)
        chunks = {end: ids[end - context : end] for end in ends[first : first + 32]}
        rows += [logits[-1] for logits in runner.feed(chunks).values()]
    return whole[context - 1 : len(ids) - 1], torch.stack(rows)


def acceptance(target: Tensor, drafter: Tensor) -> dict[str, float]:
    """Mean share of drafts accepted by each rule; logits [N, V] over their temperature."""
    p, q = target.softmax(dim=1), drafter.softmax(dim=1)
    shared = torch.stack([_shared_noise(a, b) for a, b in zip(p, q, strict=True)])
    found = {
        "rejection": torch.minimum(p, q).sum(dim=1),
        "shared noise": shared,
        "own noise": (p * q).sum(dim=1),
        "greedy": p.gather(1, q.argmax(dim=1, keepdim=True)),
        "shared noise, drawn": _drawn(target, drafter),
    }
    return {name: round(float(values.mean()), 4) for name, values in found.items()}


def _shared_noise(p: Tensor, q: Tensor) -> Tensor:
    """Tokens sorted by p / q: of each pair, which of the two ratios is larger is then known."""
    order = (p / q.clamp(min=1e-30)).argsort()
    p, q = p[order].double(), q[order].double()
    # Of token i: those j with larger p_j / q_j count with p_j / p_i, the others with q_j / q_i.
    above = p.sum() - p.cumsum(0)
    below = q.cumsum(0)
    return (1 / (above / p.clamp(min=1e-30) + below / q.clamp(min=1e-30))).sum()


def _drawn(target: Tensor, drafter: Tensor) -> Tensor:
    places = torch.arange(len(target))
    same = []
    for seed in range(NUM_DRAWS):
        keys = (torch.full_like(places, seed), torch.zeros_like(places), places)
        same.append(draw_unpruned(target, *keys) == draw_unpruned(drafter, *keys))
    return torch.stack(same).float()


if __name__ == "__main__":
    main()
