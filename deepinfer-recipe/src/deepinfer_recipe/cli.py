"""`deepinfer recipe`: look at prompts and outputs without a model.

Loaded only by core's command line, which brings typer.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from .parsing import OutputParser, ParsingOptions, Piece, ThinkingInitialStage
from .prompts import DeepseekV4Encoding, DeepseekV32Encoding, DeepseekV41Encoding
from .prompts.encoding import BaseEncoding
from .requests.chat import ChatCompletionRequest
from .requests.converted import ConversationRequest
from .requests.errors import ConversionError
from .requests.messages import MessagesRequest
from .requests.options import ConversionOptions, ModelVersion
from .requests.responses import ResponsesRequest
from .tokenizer import Tokenizer

_FORMATS: dict[str, tuple[type[BaseEncoding], ModelVersion]] = {
    "v3.2": (DeepseekV32Encoding, ModelVersion.DeepseekV4Pro),
    "v4": (DeepseekV4Encoding, ModelVersion.DeepseekV4Pro),
    "v4.1": (DeepseekV41Encoding, ModelVersion.DeepseekV41Flash),
}
_PROTOCOLS: dict[str, Any] = {
    "chat": ChatCompletionRequest,
    "messages": MessagesRequest,
    "responses": ResponsesRequest,
}

app = typer.Typer(
    help="Look at prompts and outputs of DeepSeek models.\n\nExamples:\n\n"
    "  deepinfer recipe render request.json\n\n"
    "  deepinfer recipe encode request.json --tokenizer MODEL/tokenizer.json\n\n"
    "  deepinfer recipe parse output.txt --thinking"
)

RequestArgument = Annotated[
    str, typer.Argument(help="File with a request body as JSON; - reads the standard input.")
]
FormatOption = Annotated[str, typer.Option("--format", help="Prompt format: v3.2, v4 or v4.1.")]
ProtocolOption = Annotated[
    str, typer.Option("--protocol", help="Of the request: chat, messages or responses.")
]
TokenizerOption = Annotated[str, typer.Option("--tokenizer", help="A tokenizer.json file.")]


@app.command()
def render(
    request: RequestArgument,
    prompt_format: FormatOption = "v4.1",
    protocol: ProtocolOption = "chat",
    color: Annotated[
        bool | None, typer.Option("--color/--no-color", help="Highlight special tokens.")
    ] = None,
) -> None:
    """Print the prompt of a request, special tokens highlighted."""
    encoding, converted = _convert(request, prompt_format, protocol)
    rendered = encoding.render_conversation(converted.conversation)
    highlights = sys.stdout.isatty() if color is None else color
    for text, is_special in rendered.pieces:
        shown = typer.style(text, reverse=True) if is_special and highlights else text
        typer.echo(shown, nl=False, color=highlights)
    typer.echo()


@app.command()
def encode(
    request: RequestArgument,
    tokenizer: TokenizerOption,
    prompt_format: FormatOption = "v4.1",
    protocol: ProtocolOption = "chat",
) -> None:
    """Print the token ids of a request's prompt as a JSON list."""
    encoding, converted = _convert(request, prompt_format, protocol)
    try:
        loaded = Tokenizer.from_file(tokenizer)
        ids = encoding.with_tokenizer(loaded).encode(converted.conversation)
    except (OSError, ValueError, RuntimeError) as error:
        raise typer.BadParameter(str(error)) from error
    typer.echo(json.dumps(ids))


@app.command()
def parse(
    output: Annotated[str, typer.Argument(help="File with model output; - reads standard input.")],
    thinking: Annotated[bool, typer.Option(help="The output starts inside the reasoning.")] = False,
    tools: Annotated[bool, typer.Option(help="Parse tool calls.")] = True,
    json_output: Annotated[bool, typer.Option("--json-output", help="Extract JSON.")] = False,
    stop: Annotated[list[str] | None, typer.Option(help="Stop sequence; repeatable.")] = None,
) -> None:
    """Print what the parser makes of an output, one JSON object per event."""
    parser = OutputParser(
        ParsingOptions(
            parse_tool_calls=tools,
            parse_json_output=json_output,
            thinking_initial_stage=ThinkingInitialStage.ReasoningStart if thinking else None,
            stop_sequences=list(stop or ()),
        )
    )
    for event in parser.feed(Piece(_read(output))) + parser.finish():
        fields = {name: str(getattr(v, "value", v)) for name, v in asdict(event).items()}
        typer.echo(json.dumps({"event": type(event).__name__, **fields}, ensure_ascii=False))


def _convert(
    request: str, prompt_format: str, protocol: str
) -> tuple[BaseEncoding, ConversationRequest]:
    if prompt_format not in _FORMATS:
        raise typer.BadParameter(f"format {prompt_format!r} is none of {', '.join(_FORMATS)}")
    if protocol not in _PROTOCOLS:
        raise typer.BadParameter(f"protocol {protocol!r} is none of {', '.join(_PROTOCOLS)}")
    encoding, version = _FORMATS[prompt_format]
    try:
        body: Any = json.loads(_read(request))
        if isinstance(body, dict):
            body = {"model": "model", **body}
        parsed = _PROTOCOLS[protocol](body)
        options = ConversionOptions().with_model_versions_by_name({parsed.model: version})
        return encoding(), parsed.convert(options)
    except (ConversionError, ValueError) as error:
        raise typer.BadParameter(f"{request}: {error}") from error


def _read(path: str) -> str:
    if path == "-":
        return sys.stdin.read()
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}") from error
