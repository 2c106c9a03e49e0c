"""A small byte-level tokenizer with a chat template, for tiny checkpoints.

Any text encodes: 256 bytes, some merges, and three special tokens.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

END_OF_TEXT_TOKEN_ID = 0
BOS_TOKEN_ID = 1
EOS_TOKEN_ID = 2
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = (
    ("t", "h"),
    ("th", "e"),
    ("Ġ", "the"),
    ("i", "n"),
    ("a", "n"),
    ("an", "d"),
    ("Ġ", "and"),
    ("e", "r"),
    ("o", "n"),
    ("Ġ", "a"),
    ("o", "r"),
    ("in", "g"),
    ("Ġ", "o"),
    ("Ġo", "f"),
    ("l", "l"),
    ("u", "s"),
)

CHAT_TEMPLATE = (
    "{%- if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif -%}"
    "{%- for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def token_list() -> list[str]:
    """Every token in order of its id: special, bytes, merges."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    return [*SPECIAL_TOKENS, *letters, *(left + right for left, right in MERGES)]


def make_tokenizer() -> Tokenizer:
    """The tokenizer as an object of the `tokenizers` library."""
    vocab = {token: token_id for token_id, token in enumerate(token_list())}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=list(MERGES)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    tokenizer.add_special_tokens(special)
    return tokenizer


def write_tokenizer(directory: Path) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json` with the chat template."""
    make_tokenizer().save(str(directory / "tokenizer.json"))
    fields = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[BOS_TOKEN_ID],
        "eos_token": SPECIAL_TOKENS[EOS_TOKEN_ID],
        "pad_token": SPECIAL_TOKENS[END_OF_TEXT_TOKEN_ID],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
