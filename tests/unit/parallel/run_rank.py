"""A rank of a mesh of two: computes every checkpoint of a directory, and saves what it saw.

Run as `run_rank.py DIRECTORY RANK`; rank 0 computes without a mesh too. No test by itself: see
`test_ranks.py`.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from deepinfer_core.models.coded import keep_stored_codes
from deepinfer_core.models.loader import build_model, load_weights
from deepinfer_core.ops.table import reference_table
from deepinfer_core.parallel.launch import join_mesh
from deepinfer_core.parallel.mesh import Mesh
from deepinfer_core.plugin_api import DeviceInfo
from deepinfer_core.runtime.device import CpuRuntime
from deepinfer_core.testing.drafting import DraftRunner, load_with_drafter
from deepinfer_core.testing.forward import HandRunner
from deepinfer_core.text.loading import load_tokenizer
from deepinfer_core.weights.checkpoint import open_checkpoint

NUM_RANKS = 2
PROMPTS = {0: 150, 1: 7}
NUM_GREEDY = 8
STRETCH = (100, 251)
"""Of the vocabulary, over the border between the ranks' halves."""


def compute(directory, mesh, *, quantization="dequantize", batch_invariant=False):
    """What a model with random prompts gives: logits and most likely tokens."""
    ops = reference_table(batch_invariant=batch_invariant).on(mesh)
    checkpoint = open_checkpoint(directory)
    model = build_model(checkpoint.info, ops, dtype="float32")
    kept = keep_stored_codes(model, checkpoint, ops, quantization)
    load_weights(model, checkpoint, device="cpu", vocabulary=load_tokenizer(directory))
    runner = HandRunner(model)
    generator = torch.Generator().manual_seed(0)
    prompts = {
        key: torch.randint(3, 300, (length,), generator=generator).tolist()
        for key, length in PROMPTS.items()
    }
    batch = runner.next_batch(prompts)
    hidden_states = model.forward(batch)
    logits = model.compute_logits(hidden_states)
    greedy = runner.greedy([int(logits[-1].argmax())], NUM_GREEDY, key=1)
    return {
        "hidden_states": hidden_states,
        "logits": logits,
        "stretch": model.lm_head_chunk(hidden_states, *STRETCH),
        "greedy": greedy,
        "kept": kept,
    }


def draft(directory, mesh):
    """What a drafter guesses behind a random prompt, beside its target."""
    target, drafter = load_with_drafter(directory, reference_table().on(mesh))
    prompt = torch.randint(3, 300, (20,), generator=torch.Generator().manual_seed(0)).tolist()
    runner = DraftRunner(target, drafter, num_lookahead_tokens=drafter.num_drafts)
    logits, drafts = runner.propose({0: prompt}, {0: 5}, drafter.num_drafts)
    return {"logits": logits[0], "drafts": drafts[0].logits}


def main(directory, rank):
    torch.set_num_threads(1)
    store = dist.FileStore(str(directory / "rendezvous"), NUM_RANKS)
    runtime = CpuRuntime(DeviceInfo(kind="cpu"))
    mesh = join_mesh(runtime, rank=rank, num_ranks=NUM_RANKS, store=store)
    for name, options in json.loads((directory / "cases.json").read_text()).items():
        run = draft if options.pop("drafts", False) else compute
        results = {"shared": run(directory / name, mesh, **options)}
        if rank == 0:
            results["alone"] = run(directory / name, Mesh(), **options)
        torch.save(results, directory / f"{name}.{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
