"""A tokenizer from a Hugging Face directory: `tokenizer.json` and the small files beside it.

Owns which file says what. `tokenizer.json` is taken as it is; the configuration beside it names
the special tokens, adds tokens that the first lacks, and holds the chat templates.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken
from tokenizers.processors import TemplateProcessing

from deepinfer_core.errors import ModelLoadError
from deepinfer_core.text.tokenizer import Tokenizer

_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


def load_hf_tokenizer(directory: Path) -> Tokenizer:
    """Load from a directory that holds a `tokenizer.json`.

    Raises:
        ModelLoadError: a file is missing or corrupt; names it and says what to do.
    """
    backend = _load_backend(directory)
    config = _read_json(directory / "tokenizer_config.json")
    config = {**_read_json(directory / "special_tokens_map.json"), **config}
    try:
        special_tokens = _apply_config(backend, config, directory)
        templates = _configured_templates(config.get("chat_template"))
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise ModelLoadError(
            f"{directory / 'tokenizer_config.json'} is not of the known form "
            f"({type(error).__name__}: {error}): fetch it again"
        ) from error
    return Tokenizer(
        backend,
        special_tokens=special_tokens,
        chat_templates={**templates, **_template_files(directory)},
    )


def _apply_config(
    backend: tokenizers.Tokenizer, config: dict[str, Any], directory: Path
) -> dict[str, str]:
    """Add what the configuration says, and return its special tokens by role."""
    _add_missing_tokens(backend, config.get("added_tokens_decoder") or {}, directory)
    special_tokens = {
        role: content for role in _ROLES if (content := _content_of(config.get(role))) is not None
    }
    _mark_special(backend, config, special_tokens)
    _apply_add_flags(backend, config, special_tokens)
    return special_tokens


def _load_backend(directory: Path) -> tokenizers.Tokenizer:
    file = directory / "tokenizer.json"
    if not file.is_file():
        slow = [name for name in ("tokenizer.model", "vocab.json") if (directory / name).exists()]
        found = f" It holds {' and '.join(slow)}, the older form." if slow else ""
        raise ModelLoadError(
            f"{directory} has no tokenizer.json.{found} Write one with transformers: "
            f"AutoTokenizer.from_pretrained({str(directory)!r}).save_pretrained(...), or name "
            "another directory or GGUF file as `tokenizer`"
        )
    try:
        return tokenizers.Tokenizer.from_file(str(file))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a bad file is a plain Exception or a Rust panic, which is none
        raise ModelLoadError(
            f"{file} cannot be read ({error}): fetch it again, or upgrade `tokenizers` "
            f"(this is {tokenizers.__version__})"
        ) from error


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ModelLoadError(f"{file} cannot be read ({error}): fetch it again") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{file} holds a {type(value).__name__}, not an object")
    return value


def _content_of(token: object) -> str | None:
    """Special tokens are written as a string or as an object with `content`."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _add_missing_tokens(
    backend: tokenizers.Tokenizer, declared: dict[str, Any], directory: Path
) -> None:
    known = backend.get_added_tokens_decoder()
    for token_id, spec in sorted((int(key), spec) for key, spec in declared.items()):
        content = _content_of(spec)
        if content is None or token_id in known:
            continue
        flags = {
            flag: bool(spec.get(flag, False))
            for flag in ("special", "lstrip", "rstrip", "single_word", "normalized")
        }
        token = AddedToken(content, **flags)
        if flags["special"]:
            backend.add_special_tokens([token])
        else:
            backend.add_tokens([token])
        given = backend.token_to_id(content)
        if given != token_id:
            raise ModelLoadError(
                f"{directory}: tokenizer_config.json says that {content!r} is token {token_id}, "
                f"tokenizer.json makes it {given}; the two files belong to different models"
            )


def _mark_special(
    backend: tokenizers.Tokenizer, config: dict[str, Any], special_tokens: dict[str, str]
) -> None:
    """Tokens with a role are special even where `tokenizer.json` does not say so."""
    extra = config.get("additional_special_tokens") or config.get("extra_special_tokens") or []
    extra = extra.values() if isinstance(extra, dict) else extra
    contents = [*special_tokens.values(), *map(_content_of, extra)]
    added = {token.content: token for token in backend.get_added_tokens_decoder().values()}
    for content in contents:
        # A name that the vocabulary lacks would become an id that the model lacks.
        if content is None or backend.token_to_id(content) is None:
            continue
        token = added.get(content)
        if token is None:
            backend.add_special_tokens([AddedToken(content, normalized=False, special=True)])
        elif not token.special:
            token.special = True
            backend.add_special_tokens([token])


def _apply_add_flags(
    backend: tokenizers.Tokenizer, config: dict[str, Any], special_tokens: dict[str, str]
) -> None:
    """`add_bos_token` and `add_eos_token`, where given, decide what surrounds a prompt."""
    if config.get("add_bos_token") is None and config.get("add_eos_token") is None:
        return
    surround_prompts(
        backend,
        bos_token=special_tokens.get("bos_token") if config.get("add_bos_token") else None,
        eos_token=special_tokens.get("eos_token") if config.get("add_eos_token") else None,
    )


def surround_prompts(
    backend: tokenizers.Tokenizer, *, bos_token: str | None, eos_token: str | None
) -> None:
    """Make `encode` put these tokens, each if given, before and after a plain prompt."""
    template = ["$A"]
    if bos_token is not None:
        template.insert(0, bos_token)
    if eos_token is not None:
        template.append(eos_token)
    names = {name for name in (bos_token, eos_token) if name is not None}
    backend.post_processor = TemplateProcessing(
        single=template, special_tokens=[(name, backend.token_to_id(name)) for name in names]
    )


def _configured_templates(configured: object) -> dict[str, str]:
    """Templates by name; a single one is named `default`."""
    if configured is None:
        return {}
    if isinstance(configured, str):
        return {"default": configured}
    if isinstance(configured, list):
        configured = {entry["name"]: entry["template"] for entry in configured}
    if not isinstance(configured, dict) or not all(isinstance(s, str) for s in configured.values()):
        raise ValueError("chat_template must be text, or texts by name")
    return configured


def _template_files(directory: Path) -> dict[str, str]:
    """`chat_template.jinja` is the default, further ones are named by their file."""
    files = {f.stem: f for f in sorted((directory / "additional_chat_templates").glob("*.jinja"))}
    if (directory / "chat_template.jinja").is_file():
        files["default"] = directory / "chat_template.jinja"
    templates = {}
    for name, file in files.items():
        try:
            templates[name] = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelLoadError(f"{file} cannot be read ({error}): fetch it again") from error
    return templates
