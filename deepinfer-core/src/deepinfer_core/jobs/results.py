"""The JSON shapes of results: plain ones and OpenAI's. What is in a result depends on the request
alone, not on the time, the machine's load or what ran beside it, so that two runs give the same
bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from deepinfer_core.errors import RequestError
from deepinfer_core.jobs.rows import BatchRow, RowFormat
from deepinfer_core.outputs import CompletionOutput, RequestOutput
from deepinfer_core.scheduling.plan import TokenLogprobs

TokenBytes = Callable[[int], bytes]
_NO_LOGPROB = -9999.0
"""What OpenAI writes for a token that cannot be drawn; JSON has no minus infinity."""


def completion_json(output: CompletionOutput, *, with_token_ids: bool = False) -> dict[str, Any]:
    """One sample as plain JSON data."""
    result: dict[str, Any] = {
        "index": output.index,
        "text": output.text,
        "finish_reason": output.finish_reason,
        "stop_reason": output.stop_reason,
        "seed": output.seed,
    }
    if output.is_parsed:
        result["message"] = output.message
    if with_token_ids:
        result["token_ids"] = output.token_ids
    if output.logprobs is not None:
        result["logprobs"] = [logprob_json(entry) for entry in output.logprobs]
        result["cumulative_logprob"] = output.cumulative_logprob
    return result


def output_json(output: RequestOutput, *, with_token_ids: bool = False) -> dict[str, Any]:
    """One request's result as plain JSON data."""
    if output.error is not None:
        return {"error": error_json(output.error)}
    result: dict[str, Any] = {
        "outputs": [completion_json(o, with_token_ids=with_token_ids) for o in output.outputs],
        "usage": _usage(output),
    }
    if output.prompt_logprobs is not None:
        result["prompt_logprobs"] = [logprob_json(entry) for entry in output.prompt_logprobs]
    return result


def error_json(error: RequestError) -> dict[str, Any]:
    """An error as plain JSON data."""
    return {"type": type(error).__name__, "message": str(error), "field": error.field}


def logprob_json(entry: TokenLogprobs) -> dict[str, Any]:
    """One token's log-probabilities as plain JSON data; impossible tokens have null."""
    return {
        "token_id": entry.token_id,
        "logprob": _finite(entry.logprob),
        "rank": entry.rank,
        "top": [
            [token_id, _finite(logprob)]
            for token_id, logprob in zip(entry.top_ids, entry.top_logprobs, strict=True)
        ],
    }


def row_result(
    row: BatchRow, key: bytes, output: RequestOutput, *, model: str, token_bytes: TokenBytes
) -> dict[str, Any]:
    """The output line of a row that was served."""
    if row.format == "plain":
        return {"id": row.row_id, **output_json(output)}
    name = row.model_name or model
    chat = row.format == "openai.chat"
    choices = [_choice(sample, chat=chat, token_bytes=token_bytes) for sample in output.outputs]
    body = {
        "id": f"{'chatcmpl' if chat else 'cmpl'}-{key.hex()}",
        "object": "chat.completion" if chat else "text_completion",
        # The time of day would make two runs of one job differ.
        "created": 0,
        "model": name,
        "choices": choices,
        "usage": _usage(output),
    }
    return _openai_line(row.row_id, key, 200, body)


def row_error(
    row_id: object, row_format: RowFormat, key: bytes, line_number: int, error: RequestError
) -> dict[str, Any]:
    """The output line of a row that could not be served; names the line of the input."""
    if row_format == "plain":
        return {"id": row_id, "line": line_number, "error": error_json(error)}
    problem = {
        "message": f"line {line_number}: {error}",
        "type": "invalid_request_error",
        "param": error.field,
        "code": type(error).__name__,
    }
    return _openai_line(row_id, key, 400, {"error": problem})


def is_error_line(line: bytes) -> bool:
    """Whether a journaled line is one of `row_error`. Costs little for any other."""
    if b'"error":{' not in line:
        return False
    result = json.loads(line)
    if "response" in result:
        return bool(result["response"]["status_code"] != 200)
    return "error" in result


def _openai_line(
    row_id: object, key: bytes, status_code: int, body: dict[str, Any]
) -> dict[str, Any]:
    name = key.hex()
    return {
        "id": f"batch_req_{name}",
        "custom_id": row_id,
        "response": {"status_code": status_code, "request_id": f"req_{name}", "body": body},
        "error": None,
    }


def _usage(output: RequestOutput) -> dict[str, int]:
    num_prompt_tokens = len(output.prompt_token_ids)
    num_output_tokens = sum(len(sample.token_ids) for sample in output.outputs)
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_output_tokens,
        "total_tokens": num_prompt_tokens + num_output_tokens,
    }


def _choice(sample: CompletionOutput, *, chat: bool, token_bytes: TokenBytes) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": sample.index, "finish_reason": sample.finish_reason}
    if chat:
        choice["message"] = {**sample.message, "refusal": None}
        if sample.tool_calls and sample.finish_reason == "stop" and not _is_cut(sample):
            choice["finish_reason"] = "tool_calls"
    else:
        choice["text"] = sample.text
    entries = sample.logprobs
    if entries is None:
        choice["logprobs"] = None
    elif chat:
        choice["logprobs"] = {"content": [_chat_logprob(entry, token_bytes) for entry in entries]}
    else:
        choice["logprobs"] = _completion_logprobs(entries, token_bytes)
    return choice


def _is_cut(sample: CompletionOutput) -> bool:
    """Whether a stop string ended it, rather than the model."""
    return isinstance(sample.stop_reason, str)


def _chat_logprob(entry: TokenLogprobs, token_bytes: TokenBytes) -> dict[str, Any]:
    top = zip(entry.top_ids, entry.top_logprobs, strict=True)
    return {
        **_spelled(entry.token_id, entry.logprob, token_bytes),
        "top_logprobs": [_spelled(token_id, logprob, token_bytes) for token_id, logprob in top],
    }


def _completion_logprobs(entries: list[TokenLogprobs], token_bytes: TokenBytes) -> dict[str, Any]:
    return {
        "tokens": [_text(token_bytes(entry.token_id)) for entry in entries],
        "token_logprobs": [_bounded(entry.logprob) for entry in entries],
        "top_logprobs": [
            {
                _text(token_bytes(token_id)): _bounded(logprob)
                for token_id, logprob in zip(entry.top_ids, entry.top_logprobs, strict=True)
            }
            for entry in entries
        ],
    }


def _spelled(token_id: int, logprob: float, token_bytes: TokenBytes) -> dict[str, Any]:
    spelling = token_bytes(token_id)
    return {"token": _text(spelling), "logprob": _bounded(logprob), "bytes": list(spelling)}


def _text(spelling: bytes) -> str:
    return spelling.decode(errors="replace")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _bounded(value: float) -> float:
    return value if math.isfinite(value) else _NO_LOGPROB
