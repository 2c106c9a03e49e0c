"""`deepinfer generate`: continue prompts from the command line or standard input."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deepinfer_core.cli import render
from deepinfer_core.cli.loading import open_llm
from deepinfer_core.cli.options import JsonOption, with_options
from deepinfer_core.config_sources import ResolvedConfig
from deepinfer_core.errors import ConfigError, RequestError
from deepinfer_core.jobs.results import error_json, output_json
from deepinfer_core.outputs import RequestOutput
from deepinfer_core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from deepinfer_core.llm import LLM

DEFAULT_MAX_TOKENS = 256


def register(app: typer.Typer) -> None:
    """Add `deepinfer generate`."""
    app.command("generate")(with_options(generate))


def generate(
    engine: ResolvedConfig,
    sampling: dict[str, Any],
    prompts: Annotated[
        list[str] | None,
        typer.Argument(help="Texts to continue; none: standard input is one.", show_default=False),
    ] = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Show the text as it comes, prompt by prompt.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Continue prompts. Those of one call share the engine's steps.

    Output ends after 256 tokens unless --max-tokens says otherwise. With --stream --json, one
    line of JSON for each step.

    Examples:

      deepinfer generate --model SmolLM2-135M-Instruct.Q4_1.gguf "The capital of France is"

      deepinfer generate -m model.gguf "One" "Two" --temperature 0 --max-tokens 20 --json

      deepinfer generate -m ./Qwen3-0.6B "Once" --stream --stop "The end" --seed 7

      cat essay.txt | deepinfer generate -m model.gguf --max-tokens 0
    """
    texts = prompts or _read_stdin()
    params = SamplingParams(**{"max_tokens": DEFAULT_MAX_TOKENS, **sampling})
    with open_llm(engine) as llm:
        if stream:
            _stream_all(llm, texts, params, as_json=as_json)
            return
        begun = time.perf_counter()
        outputs = llm.generate(texts, params)
        elapsed_s = time.perf_counter() - begun
    _print(outputs, elapsed_s, as_json=as_json)


def _read_stdin() -> list[str]:
    if sys.stdin.isatty():
        raise ConfigError("no prompt: give one as an argument, or pipe one in")
    return [sys.stdin.read()]


def _print(outputs: list[RequestOutput], elapsed_s: float, *, as_json: bool) -> None:
    num_prompt_tokens = sum(len(o.prompt_token_ids) for o in outputs)
    num_output_tokens = sum(o.metrics.num_output_tokens for o in outputs)
    if as_json:
        results = [{"prompt": o.prompt, **output_json(o, with_token_ids=True)} for o in outputs]
        speed = render.speed_json(num_prompt_tokens, num_output_tokens, elapsed_s)
        render.print_json({"results": results, "speed": speed})
        num_failed = sum(o.error is not None for o in outputs)
    else:
        render.print_outputs(outputs)
        num_failed = render.print_errors(outputs)
        line = render.speed_line(num_prompt_tokens, num_output_tokens, elapsed_s)
        render.stderr().print(line, style="dim")
    if render.was_interrupted(outputs):
        raise typer.Exit(render.EXIT_INTERRUPTED)
    if num_failed:
        raise typer.Exit(1)


def _stream_all(llm: LLM, texts: list[str], params: SamplingParams, *, as_json: bool) -> None:
    failed = False
    for number, text in enumerate(texts):
        try:
            with llm.stream(text, params) as deltas:
                for delta in deltas:
                    if as_json:
                        line = {
                            "prompt": number,
                            "index": delta.index,
                            "text": delta.text,
                            "token_ids": delta.token_ids,
                            "finish_reason": delta.finish_reason,
                        }
                        render.print_json(line, indent=None)
                    elif params.n == 1:
                        render.write(delta.text)
            if not as_json:
                render.write("\n")
        except RequestError as error:
            failed = True
            if as_json:
                render.print_json({"prompt": number, "error": error_json(error)}, indent=None)
            else:
                render.stderr().print(f"prompt {number}: {error}", style="red", markup=False)
    if failed:
        raise typer.Exit(1)
