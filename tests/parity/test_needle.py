"""A number far behind is copied: every way to the rows of V4 and V4.1 is one that works.

The models are made by hand. A needle is a token of a kind and a digit; its compressed row, which
no other token of the group has a share in, has the kind as a key and the digit as a value. A
question names a kind. Each layer that reads rows writes the digit it finds to an answer of its
own, so the logits say of each layer whether it found the row. Windows hold no digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from deepinfer_core import LLM
from deepinfer_core.models.layers import compressor, source_compressor
from deepinfer_core.models.loader import build_model, load_weights
from deepinfer_core.ops import rows
from deepinfer_core.ops.reference import index
from deepinfer_core.ops.table import reference_table
from deepinfer_core.testing.forward import HandRunner
from deepinfer_core.testing.tiny import write_tiny_checkpoint
from deepinfer_core.weights.checkpoint import open_checkpoint
from safetensors.torch import load_file, save_file
from torch import Tensor

FILLERS, NEEDLES, QUESTIONS, ANSWERS = range(20, 100), 100, 150, 160
"""Tokens. A needle is NEEDLES + 10 * kind + digit; an answer ANSWERS + 10 * reader + digit."""
NUM_KINDS = 4
KIND, NEEDLE, DIGIT, COMMON, ANSWER, CODE = 0, 4, 8, 18, 20, 50
"""Dims of the hidden state: the question's kind, the needle's, its digit, what all others share,
the answers of each reader, what tells fillers apart."""
ROW_DIGIT, ROW_COMMON = 4, 14
"""Dims of a row and a key, behind the kinds; those that rotate come later."""
NOISE = 0.02
LENGTH, CHUNK = 16384, 701
DIGITS = (3, 0, 7, 9)
"""Of the needles, which are far apart, and at various places in groups of 2, 4 and 128."""
POSITIONS = (3 * 128, 40 * 128 + 1, 77 * 128 + 62, 100 * 128 + 127)
SHORT_LENGTH, SHORT_POSITIONS = 2048, (256, 1027, 1406, 701)


@dataclass(frozen=True)
class Family:
    """What is changed of a tiny configuration, and the layers that read rows."""

    changes: dict[str, object]
    readers: tuple[int, ...]
    norms_heads: bool


FAMILIES = {
    # Of 4 tokens, chosen; of 128 tokens, all.
    "deepseek_v4": Family(
        {"num_hidden_layers": 3, "compress_ratios": [0, 4, 128], "num_hash_layers": 0}, (1, 2), True
    ),
    # Of 2 tokens; of one; of one in candidate blocks only.
    "deepseek_v41": Family(
        {
            "num_hidden_layers": 4,
            "compress_ratios": [0, 2, 1, 1],
            "kv_source_layer_ids": [1, 2],
            "index_source_layer_ids": [1, 2, 3],
            "candidate_source_layer_id": 2,
            "engram_layer_ids": [],
            "engram_num_embeddings": [],
        },
        (1, 2, 3),
        False,
    ),
}


def write_model(directory: Path, name: str) -> Path:
    """Write the checkpoint of a model made by hand."""
    family = FAMILIES[name]
    write_tiny_checkpoint(
        directory,
        name,
        max_position_embeddings=2 * LENGTH,
        n_routed_experts=2,
        index_n_heads=4,
        **family.changes,
    )
    path = directory / "model.safetensors"
    torch.manual_seed(0)
    weights = {key: torch.zeros_like(tensor) for key, tensor in load_file(path).items()}
    for key, tensor in weights.items():
        if "norm" in key or key.endswith("_scale"):
            tensor.fill_(1.0)  # experts stay zero, and so do what hyper-connections look at
        elif key.endswith("_base"):
            set_streams(tensor)
    set_vocabulary(weights["embed.weight"], weights["head.weight"], len(family.readers))
    for layer in range(len(family.changes["compress_ratios"])):
        reader = family.readers.index(layer) if layer in family.readers else None
        prefix = f"layers.{layer}.attn."
        own = {k.removeprefix(prefix): t for k, t in weights.items() if k.startswith(prefix)}
        set_attention(own, reader, 1.0 if family.norms_heads else 2.0)
    save_file(weights, path, {"format": "pt"})
    return directory


def set_streams(base: Tensor) -> None:
    """Every sublayer reads stream 0 and adds to all streams, which are not mixed."""
    n = 4
    base[:n] = torch.tensor([30.0, -30.0, -30.0, -30.0])
    if len(base) > n:
        base[2 * n :] = 30.0 * torch.eye(n).flatten()


def set_vocabulary(embed: Tensor, head: Tensor, num_readers: int) -> None:
    for token in FILLERS:
        embed[token, COMMON] = 1.0
        embed[token, CODE:] = torch.randn(embed.shape[1] - CODE) / 4
    for kind in range(NUM_KINDS):
        embed[QUESTIONS + kind, [KIND + kind, COMMON]] = 1.0
        for digit in range(10):
            embed[NEEDLES + 10 * kind + digit, [NEEDLE + kind, DIGIT + digit]] = 1.0
    for answer in range(10 * num_readers):
        head[ANSWERS + answer, ANSWER + answer] = 1.0


def set_attention(own: dict[str, Tensor], reader: int | None, q_scale: float) -> None:
    """One layer's attention, whose tensors are filled in place."""
    kinds = torch.arange(NUM_KINDS)
    for key in ("wkv", "wq_a", "compressor.wkv", "indexer.compressor.wkv", "indexer.wk"):
        if f"{key}.weight" in own:
            own[f"{key}.weight"].copy_(NOISE * torch.randn(own[f"{key}.weight"].shape))
    own["wkv.weight"][ROW_COMMON, COMMON] = 1.0
    own["wq_a.weight"][kinds, KIND + kinds] = 1.0
    if reader is None:
        return
    num_heads = len(own["attn_sink"])
    head_dim = len(own["kv_norm.weight"])
    own["wq_b.weight"].view(num_heads, head_dim, -1)[:, kinds, kinds] = q_scale
    digits = torch.arange(10)
    own["wo_a.weight"][digits, ROW_DIGIT + digits] = 1.0  # of the first head
    own["wo_b.weight"][ANSWER + 10 * reader + digits, digits] = 4.0
    set_compressor(own, "compressor.", head_dim, has_digits=True)
    if "indexer.wq_b.weight" not in own:
        return
    weights = own["indexer.weights_proj.weight"]
    weights[:, COMMON] = 1.0
    own["indexer.wq_b.weight"].view(len(weights), -1, own["wq_a.weight"].shape[0])[
        :, kinds, kinds
    ] = 1.0
    set_compressor(own, "indexer.compressor.", 32, has_digits=False)
    if "indexer.wk.weight" in own:
        same = torch.tensor([*range(NUM_KINDS), ROW_COMMON])
        own["indexer.wk.weight"][same, same] = 1.0


def set_compressor(own: dict[str, Tensor], prefix: str, width: int, *, has_digits: bool) -> None:
    """Rows of a kind, a digit and what is common; a needle has a group's row to itself."""
    if f"{prefix}wkv.weight" not in own:
        return
    values = own[f"{prefix}wkv.weight"]
    kinds, digits = torch.arange(NUM_KINDS), torch.arange(10)
    for half in range(0, len(values), width):  # where groups overlap: of the last and of this
        values[half + kinds, NEEDLE + kinds] = 2.0
        values[half + ROW_COMMON, COMMON] = 1.0
        if has_digits:
            values[half + ROW_DIGIT + digits, DIGIT + digits] = 1.0
    if f"{prefix}wgate.weight" in own:
        own[f"{prefix}wgate.weight"][:, NEEDLE : NEEDLE + NUM_KINDS] = 6.0
    if f"{prefix}ape" in own:
        own[f"{prefix}ape"].copy_(0.1 * torch.randn(own[f"{prefix}ape"].shape))


def make_prompt(length: int, positions: Sequence[int]) -> list[int]:
    generator = torch.Generator().manual_seed(1)
    picks = torch.randint(FILLERS.start, FILLERS.stop, (length,), generator=generator)
    for kind, position in enumerate(positions):
        picks[position] = NEEDLES + 10 * kind + DIGITS[kind]
    return picks.tolist()


def digits_named(logits: Tensor, num_readers: int) -> list[int | None]:
    """What each reader's answers name [V]; None where nothing stands out."""
    answers = logits[ANSWERS : ANSWERS + 10 * num_readers].view(num_readers, 10)
    best, second = answers.topk(2).values.unbind(dim=1)
    named = answers.argmax(dim=1).tolist()
    return [
        digit if high > 1 and high > 2 * low else None
        for digit, high, low in zip(named, best.tolist(), second.tolist(), strict=True)
    ]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    return {name: write_model(tmp_path_factory.mktemp(name), name) for name in FAMILIES}


def ask(name, directory, length, positions, num_asked, kv_format="auto"):
    """{(tokens before, kind): what each reader names} for questions one after another."""
    checkpoint = open_checkpoint(directory)
    model = build_model(checkpoint.info, reference_table(), dtype="float32", kv_format=kv_format)
    load_weights(model, checkpoint, device="cpu")
    num_blocks = (length + num_asked) // 128 + 3
    runner = HandRunner(model, block_size=128, num_blocks=num_blocks)
    prompt = make_prompt(length, positions)
    for start in range(0, length, CHUNK):
        runner.feed({0: prompt[start : start + CHUNK]})
    found = {}
    for number in range(num_asked):
        kind = (number + number // 4) % NUM_KINDS
        logits = runner.feed({0: [QUESTIONS + kind]})[0][-1]
        found[length + number, kind] = digits_named(logits, len(FAMILIES[name].readers))
    return found


def misses(found):
    """Of each reader: at how many lengths it did not name the digit."""
    wrong = [[digit != DIGITS[kind] for digit in named] for (_, kind), named in found.items()]
    return [sum(column) for column in zip(*wrong, strict=True)]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_length_modulo_the_ratios(checkpoints, name):
    found = ask(name, checkpoints[name], LENGTH, POSITIONS, 128)
    assert sum(misses(found)) == 0, found


@pytest.mark.parametrize(
    ("name", "kv_format"),
    [
        ("deepseek_v4", "584+132"),
        ("deepseek_v4", "584+68"),
        ("deepseek_v41", "288+68"),
        ("deepseek_v41", "528+68"),
        ("deepseek_v41", "584+132"),
    ],
)
def test_records(checkpoints, name, kv_format):
    found = ask(name, checkpoints[name], SHORT_LENGTH, SHORT_POSITIONS, 8, kv_format)
    assert sum(misses(found)) == 0, found


REPLAY = {"bounded_replay": True}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("deepseek_v4", {}),
        ("deepseek_v41", {}),
        ("deepseek_v41", REPLAY),
        ("deepseek_v41", REPLAY | {"decoder_replay": True}),
    ],
)
def test_after_a_prefix_hit(checkpoints, name, changes):
    prompt, num_readers = make_prompt(SHORT_LENGTH, SHORT_POSITIONS), len(FAMILIES[name].readers)
    lengths = [*range(0, 128, 11), 127]
    settings = {"num_threads": 1, "max_num_batched_tokens": 512, **changes}
    with LLM(checkpoints[name], **settings) as llm:
        llm.generate([prompt], {"max_tokens": 1}, progress=False)
        for reader in range(num_readers):
            answers = [ANSWERS + 10 * reader + digit for digit in range(10)]
            prompts = [
                [*prompt, *make_prompt(length, ()), QUESTIONS + length % NUM_KINDS]
                for length in lengths
            ]
            params = {"max_tokens": 1, "temperature": 0.0, "allowed_token_ids": answers}
            outputs = llm.generate(prompts, params, progress=False, on_error="raise")
            assert min(output.metrics.num_cached_tokens for output in outputs) >= SHORT_LENGTH
            named = [output.outputs[0].token_ids[0] - answers[0] for output in outputs]
            assert named == [DIGITS[length % NUM_KINDS] for length in lengths]


def forget_groups_begun_before(meta, tokens_per_row):
    """A mistake: only groups that lie in the chunk as a whole are closed."""
    closed = rows.closed_groups(meta, tokens_per_row)
    is_torn = closed.groups * tokens_per_row < meta.positions.min()
    return replace(closed, slots=closed.slots.masked_fill(is_torn, -1))


@pytest.mark.parametrize(("name", "readers"), [("deepseek_v4", [0, 1]), ("deepseek_v41", [0])])
def test_a_group_that_is_not_closed_is_missed(checkpoints, monkeypatch, name, readers):
    for module in (compressor, source_compressor):
        monkeypatch.setattr(module, "closed_groups", forget_groups_begun_before)
    # The last needle lies where one chunk ends and the next begins.
    counts = misses(ask(name, checkpoints[name], SHORT_LENGTH, SHORT_POSITIONS, 16))
    assert all(counts[reader] for reader in readers)


@pytest.mark.parametrize(("name", "readers"), [("deepseek_v4", [0]), ("deepseek_v41", [0, 1, 2])])
def test_an_indexer_that_does_not_look_misses(checkpoints, monkeypatch, name, readers):
    monkeypatch.setattr(index, "_score", lambda q, weights, keys: q.new_zeros(len(q), len(keys)))
    found = ask(name, checkpoints[name], SHORT_LENGTH, SHORT_POSITIONS, 16)
    assert [reader for reader, count in enumerate(misses(found)) if count] == readers
