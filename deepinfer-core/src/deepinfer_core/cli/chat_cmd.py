"""`deepinfer chat`: a conversation on the terminal, or piped in line by line."""

from __future__ import annotations

import base64
import json
import mimetypes
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from deepinfer_core.cli import render
from deepinfer_core.cli.loading import open_llm
from deepinfer_core.cli.options import JsonOption, with_options
from deepinfer_core.config_sources import ResolvedConfig
from deepinfer_core.errors import ConfigError, PromptTooLongError, RequestError
from deepinfer_core.jobs.results import error_json
from deepinfer_core.outputs import OutputDelta, Reply
from deepinfer_core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from deepinfer_core.llm import LLM

DEFAULT_MAX_TOKENS = 1024
_HELP = (
    "/exit ends, /reset forgets the conversation, /system TEXT sets the system message and "
    "forgets, /image FILE goes with the next message, /help shows this. Ctrl-C stops an answer."
)


def register(app: typer.Typer) -> None:
    """Add `deepinfer chat`."""
    app.command("chat")(with_options(chat))


def chat(
    engine: ResolvedConfig,
    sampling: dict[str, Any],
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    once: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Answer this one message and end.")
    ] = None,
    tools: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSON list of tools that the model may call."),
    ] = None,
    image: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Image for the first message; may be given several times."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Talk with a model; answers stream, and each turn sees the ones before it.

    An answer ends after 1024 tokens unless --max-tokens says otherwise. Lines from a pipe are
    turns, too. With --json, one line of JSON for each answer. While it runs: /exit, /reset,
    /system TEXT, /image FILE, /help; Ctrl-C stops an answer. What a model thinks first goes to
    standard error. When it calls tools, the next lines are their results, one for each call.

    Examples:

      deepinfer chat --model SmolLM2-135M-Instruct.Q4_1.gguf

      deepinfer chat -m model.gguf --system "Answer in French." --temperature 0.7

      deepinfer chat -m model.gguf --once "Why is the sky blue?"

      printf 'Hi!\\nAnd now?\\n' | deepinfer chat -m model.gguf --json

      deepinfer chat -m ./Qwen3-0.6B --tools tools.json

      deepinfer chat -m ./DeepSeek-V4.1-Flash --image cat.png --once "What is this?"
    """
    tool_list = None if tools is None else _read_tools(tools)
    images = [_read_image(path) for path in image or ()]
    params = SamplingParams(**{"max_tokens": DEFAULT_MAX_TOKENS, **sampling})
    with open_llm(engine) as llm:
        session = _Session(llm, params, system, tools=tool_list, images=images, as_json=as_json)
        if once is not None:
            ok = session.turn(once)
        elif sys.stdin.isatty():
            render.stderr().print(_HELP, style="dim", markup=False)
            ok = session.run(_typed_lines())
        else:
            ok = session.run(line.rstrip("\n") for line in sys.stdin)
    if session.interrupted and (once is not None or not sys.stdin.isatty()):
        raise typer.Exit(render.EXIT_INTERRUPTED)
    if not ok:
        raise typer.Exit(1)


def _typed_lines() -> Iterator[str]:
    console = render.stderr()
    while True:
        try:
            yield console.input("[bold cyan]>[/] ")
        except (EOFError, KeyboardInterrupt):
            console.print()
            return


def _read_tools(path: Path) -> list[Any]:
    try:
        tools = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"cannot be read: {reason}", field="tools", value=str(path)) from error
    if not isinstance(tools, list):
        raise ConfigError("holds no JSON list", field="tools", value=str(path))
    return tools


def _read_image(path: Path) -> dict[str, Any]:
    """A part of a message."""
    kind, _ = mimetypes.guess_type(path.name, strict=False)
    if kind is None or not kind.startswith("image/"):
        allowed = "names of image files, such as x.png"
        raise ConfigError(
            "is not named as an image", field="image", value=str(path), allowed=allowed
        )
    try:
        content = base64.b64encode(path.read_bytes()).decode()
    except OSError as error:
        raise ConfigError(
            f"cannot be read: {error.strerror}", field="image", value=str(path)
        ) from error
    return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{content}"}}


class _Session:
    """The messages so far, and how a turn goes."""

    def __init__(
        self,
        llm: LLM,
        params: SamplingParams,
        system: str | None,
        *,
        tools: list[Any] | None,
        images: list[dict[str, Any]],
        as_json: bool,
    ) -> None:
        self.interrupted = False
        self._llm, self._params, self._tools, self._as_json = llm, params, tools, as_json
        self._images: list[dict[str, Any]] = []
        """Parts of the next message."""
        self._messages: list[dict[str, Any]] = []
        self._open_calls: list[tuple[str, str]] = []
        """(id, name) of the tool calls whose results are still to come."""
        self._console = render.stderr()
        self._reset(system)
        self._images = images

    def run(self, lines: Iterator[str]) -> bool:
        """Take turns until the lines or the person end it; False if a turn failed."""
        all_ok = True
        for line in lines:
            command, _, rest = line.strip().partition(" ")
            if command in ("/exit", "/quit"):
                break
            if command == "/reset":
                self._reset(self._system)
            elif command == "/system":
                self._reset(rest.strip() or None)
            elif command == "/image":
                all_ok = self._add_image(Path(rest.strip())) and all_ok
            elif command == "/help" or (command.startswith("/") and sys.stdin.isatty()):
                self._console.print(_HELP, style="dim", markup=False)
            elif line.strip():
                all_ok = self.turn(line) and all_ok
                if self.interrupted and not sys.stdin.isatty():
                    break
        return all_ok

    def turn(self, text: str) -> bool:
        """Answer one message. False: it could not be answered, and is forgotten."""
        calls = self._open_calls
        self._open_calls = calls[1:]
        message: dict[str, Any] = {"role": "user", "content": text}
        if calls:
            message = {"role": "tool", "tool_call_id": calls[0][0], "content": text}
        elif self._images:
            message["content"] = [*self._images, {"type": "text", "text": text}]
            self._images = []
        self._messages.append(message)
        if self._open_calls:
            self._ask_for_result()
            return True
        begun = time.perf_counter()
        reply, num_tokens, reason = Reply(), 0, None
        try:
            with self._llm.stream(self._messages, self._params, tools=self._tools) as deltas:
                for delta in deltas:
                    self._show(reply, delta)
                    reply.add(delta)
                    num_tokens += len(delta.token_ids)
                    reason = delta.finish_reason
        except RequestError as error:
            self._messages.pop()
            self._open_calls = calls
            self._fail(error)
            return False
        except KeyboardInterrupt:
            self.interrupted, reason = True, "abort"
        self._messages.append(reply.message)
        self._close_turn(reply, reason, num_tokens, time.perf_counter() - begun)
        return True

    def _add_image(self, path: Path) -> bool:
        try:
            self._images = [*self._images, _read_image(path)]
        except ConfigError as error:
            self._console.print(f"[red]{escape(str(error))}[/]", soft_wrap=True)
            return False
        return True

    def _show(self, reply: Reply, delta: OutputDelta) -> None:
        if self._as_json:
            return
        if delta.reasoning_content:
            self._console.out(delta.reasoning_content, style="dim", end="", highlight=False)
        if delta.content:
            if not reply.content and (reply.reasoning_content or delta.reasoning_content):
                self._console.print()
            render.write(delta.content)

    def _close_turn(
        self, reply: Reply, reason: str | None, num_tokens: int, elapsed_s: float
    ) -> None:
        message, calls = self._messages[-1], reply.tool_calls
        per_s = num_tokens / max(elapsed_s, 1e-9)
        if self._as_json:
            answer = {name: value for name, value in message.items() if name != "role"}
            line = {**answer, "finish_reason": reason, "num_output_tokens": num_tokens}
            render.print_json({**line, "output_tokens_per_s": round(per_s, 1)}, indent=None)
        else:
            if not reply.content and reply.reasoning_content:
                self._console.print()
            if reply.content or not calls:
                render.write("\n")
            for call in calls:
                render.write(f"{call.name}({call.arguments})\n")
            note = {"length": ", cut at --max-tokens", "abort": ", stopped"}.get(reason or "", "")
            self._console.print(f"{num_tokens} tokens, {per_s:.1f}/s{note}", style="dim")
        if reason == "stop":
            self._open_calls = [(call.id, call.name) for call in calls]
            self._ask_for_result()
        else:  # unfinished calls cannot be answered
            message.pop("tool_calls", None)

    def _ask_for_result(self) -> None:
        if self._open_calls:
            name = self._open_calls[0][1]
            self._console.print(f"next line: the result of {name}", style="dim", markup=False)

    def _fail(self, error: RequestError) -> None:
        if self._as_json:
            render.print_json({"error": error_json(error)}, indent=None)
            return
        hint = " (/reset forgets the conversation)" if isinstance(error, PromptTooLongError) else ""
        self._console.print(f"[red]{escape(str(error))}[/]{hint}", soft_wrap=True)

    def _reset(self, system: str | None) -> None:
        self._system = system
        self._messages = [{"role": "system", "content": system}] if system else []
        self._open_calls, self._images = [], []
