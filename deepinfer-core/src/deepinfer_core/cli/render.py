"""How results look on a terminal and in a pipe: answers on standard output, the rest beside it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.rule import Rule

from deepinfer_core.outputs import RequestOutput

EXIT_INTERRUPTED = 130
"""128 + SIGINT, as shells have it."""


def stderr() -> Console:
    """The console for everything that is not an answer."""
    return Console(stderr=True, highlight=False)


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """Print JSON on standard output, on one line when `indent` is None."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # the terminal cannot show it; JSON can escape it
        text = json.dumps(value, indent=indent)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def write(text: str) -> None:
    """Write a piece of an answer at once; "?" stands for what the terminal cannot show."""
    sys.stdout.write(_showable(text))
    sys.stdout.flush()


def print_outputs(outputs: Sequence[RequestOutput]) -> None:
    """Print answers; a single one plainly, several under headings with their prompts."""
    console = Console(highlight=False)
    alone = len(outputs) == 1 and len(outputs[0].outputs) == 1
    for number, output in enumerate(outputs):
        for sample in output.outputs:
            if not alone:
                name = f"{number}" if len(output.outputs) == 1 else f"{number}.{sample.index}"
                shown = _showable(" ".join((output.prompt or "").split())[:60])
                console.print(Rule(f"{name}  {shown}", align="left", style="dim"), markup=False)
            write(f"{sample.text}\n")


def print_errors(outputs: Sequence[RequestOutput]) -> int:
    """Print what failed, and return how many did."""
    console = stderr()
    failed = [(n, o.error) for n, o in enumerate(outputs) if o.error is not None]
    for number, error in failed:
        where = f"prompt {number}: " if len(outputs) > 1 else ""
        console.print(f"{where}{error}", style="red", markup=False, soft_wrap=True)
    return len(failed)


def was_interrupted(outputs: Sequence[RequestOutput]) -> bool:
    """Whether Ctrl-C ended some of it; nothing else aborts on the command line."""
    return any(s.finish_reason == "abort" for output in outputs for s in output.outputs)


def speed_line(num_prompt_tokens: int, num_output_tokens: int, elapsed_s: float) -> str:
    """Tokens, and tokens per second."""
    seconds = max(elapsed_s, 1e-9)
    return (
        f"prompt {num_prompt_tokens:,} tokens, {num_prompt_tokens / seconds:,.1f}/s; "
        f"output {num_output_tokens:,} tokens, {num_output_tokens / seconds:,.1f}/s; "
        f"{elapsed_s:.1f} s"
    )


def speed_json(num_prompt_tokens: int, num_output_tokens: int, elapsed_s: float) -> dict[str, Any]:
    """The same numbers by name."""
    seconds = max(elapsed_s, 1e-9)
    return {
        "num_prompt_tokens": num_prompt_tokens,
        "num_output_tokens": num_output_tokens,
        "elapsed_s": round(elapsed_s, 3),
        "prompt_tokens_per_s": round(num_prompt_tokens / seconds, 1),
        "output_tokens_per_s": round(num_output_tokens / seconds, 1),
    }


def _showable(text: str) -> str:
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)
