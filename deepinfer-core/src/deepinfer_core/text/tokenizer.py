"""`Tokenizer`: text to ids and back, at the edge only.

Owns one backend of the `tokenizers` library and the names of its special tokens. Knows nothing of
files (`hf_tokenizer.py`, `gguf_tokenizer.py`), of conversations (`template.py`) or of streams
(`detokenizer.py`).
INVARIANT: the backend is never changed after construction, so all methods are thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import tokenizers

from deepinfer_core.errors import RequestError
from deepinfer_core.text.decoding import Decoding, describe_decoder, piece_bytes


class Tokenizer:
    """Encodes and decodes text.

    Args:
        backend: taken over; truncation and padding that a file may ask for are switched off.
        special_tokens: role to content, such as `{"bos_token": "<s>", "eos_token": "</s>"}`.
        chat_templates: name to jinja2 source; the usual one is named `default`.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        special_tokens: Mapping[str, str] | None = None,
        chat_templates: Mapping[str, str] | None = None,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.special_tokens = MappingProxyType(dict(special_tokens or {}))
        """Role to content; templates see them as variables."""
        self.chat_templates = MappingProxyType(dict(chat_templates or {}))
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        """Entries of the vocabulary with added tokens; a model's own is often padded larger."""
        added = backend.get_added_tokens_decoder()
        self.added_tokens = MappingProxyType({i: token.content for i, token in added.items()})
        """Id to spelling of tokens that are no pieces of text: a text that spells one is that
        token. Special ones are among them."""
        self.special_token_ids = frozenset(i for i, token in added.items() if token.special)
        """Ids that `decode` leaves out by default."""
        self.decoding: Decoding = describe_decoder(backend)
        self._token_bytes: dict[int, bytes] = {}

    @property
    def bos_token_id(self) -> int | None:
        """Begin of sequence."""
        return self._role_id("bos_token")

    @property
    def eos_token_id(self) -> int | None:
        """End of sequence; a model may have more of them (`generation_config.json`)."""
        return self._role_id("eos_token")

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Turn text into ids. Special tokens written in the text are recognised.

        Args:
            text: any Unicode text; NUL is a character like others.
            add_special_tokens: add what the tokenizer puts around a plain prompt, such as the
                begin of sequence. A rendered chat template already has it: pass False.

        Raises:
            RequestError: this is no text, or it holds a lone surrogate.
        """
        if not is_unicode_text(text):
            raise _bad_text(text)
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def encode_batch(
        self, texts: Sequence[str], *, add_special_tokens: bool = True
    ) -> list[list[int] | RequestError]:
        """Encode many texts at once, on several threads.

        Returns:
            One entry for each text, in order: its ids, or what is wrong with it. Never raises for
            one bad text.
        """
        results: list[list[int] | RequestError] = [
            [] if is_unicode_text(text) else _bad_text(text) for text in texts
        ]
        good = [index for index, result in enumerate(results) if isinstance(result, list)]
        encodings = self._backend.encode_batch_fast(
            [texts[index] for index in good], add_special_tokens=add_special_tokens
        )
        for index, encoding in zip(good, encodings, strict=True):
            results[index] = encoding.ids
        return results

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Turn ids into text. Ids outside the vocabulary give nothing; invalid UTF-8 gives U+FFFD.

        Raises:
            RequestError: an id is no whole number from 0 to 2**32 - 1.
        """
        ids = list(token_ids)
        try:
            text: str = self._backend.decode(ids, skip_special_tokens=skip_special_tokens)
        except (TypeError, OverflowError) as error:
            raise RequestError(f"cannot decode token ids: {error}", field="token_ids") from error
        return text

    def id_to_token(self, token_id: int) -> str | None:
        """The vocabulary's spelling of a token, such as `Ġthe`; None outside the vocabulary."""
        if token_id < 0:
            return None
        token: str | None = self._backend.id_to_token(token_id)
        return token

    def token_to_id(self, token: str) -> int | None:
        """The id of a spelling, or None."""
        token_id: int | None = self._backend.token_to_id(token)
        return token_id

    def token_bytes(self, token_id: int) -> bytes:
        """The UTF-8 bytes that a token stands for, which may be part of a character.

        Special tokens give their own spelling, ids outside the vocabulary give nothing.
        """
        found = self._token_bytes.get(token_id)
        if found is None:
            piece = self.id_to_token(token_id)
            found = b"" if piece is None else piece_bytes(piece, self.decoding)
            self._token_bytes[token_id] = found
        return found

    def to_json(self) -> str:
        """The whole tokenizer in the format of `tokenizer.json`, wherever it was read from."""
        text: str = self._backend.to_str()
        return text

    def _role_id(self, role: str) -> int | None:
        content = self.special_tokens.get(role)
        return None if content is None else self.token_to_id(content)


def is_unicode_text(text: object) -> bool:
    """Whether this is a string without lone surrogates."""
    if not isinstance(text, str):
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _bad_text(text: object) -> RequestError:
    if not isinstance(text, str):
        return RequestError(f"the prompt must be text, not {type(text).__name__}", field="prompt")
    position = next((i for i, c in enumerate(text) if "\ud800" <= c <= "\udfff"), None)
    return RequestError(
        f"the prompt is not Unicode text: character {position} is the lone surrogate "
        f"U+{ord(text[position or 0]):04X}; decode the input as UTF-8 or replace it",
        field="prompt",
    )
