"""Log probabilities as the protocols show them."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

from ..jsontext import shortest_f32

TokenLogprob: TypeAlias = dict[str, Any]
"""`{token, logprob, bytes, top_logprobs: [{token, logprob, bytes}]}`, ready for JSON."""


def logprob_entry(raw: bytes, logprob: float) -> dict[str, Any]:
    """Return one token with its log probability as a 32-bit float, null if that is not finite."""
    value = shortest_f32(logprob) if math.isfinite(logprob) else None
    return {"token": spell_bytes(raw), "logprob": value, "bytes": list(raw)}


def spell_bytes(raw: bytes) -> str:
    r"""Return the text of a token; bytes that are no UTF-8 are all spelled `\xNN`."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "".join(f"\\x{byte:02x}" for byte in raw)
