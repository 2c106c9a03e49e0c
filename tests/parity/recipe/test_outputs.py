"""Random model outputs in random chunks: the events of each push equal the oracle's."""

import json
import random
import re

import pytest

TEXTS = [
    "hello", " ", "\n", "\n\n", "<", "</", "</thi", "</think>", "<think>", "é", "日本", "😀", "STOP", "ST",
    "OP", "{", "[1, 2]", '{"a": 1}', "```json\n", "```\n", "\n```", '"', "\\", "json", "｜DSML｜", "<｜DSML｜",
    "</｜DSML｜", "<｜User｜>", "x" * 30, "invoke name=", "parameter", ">", "\x00", "\u2028", "|DSML|",
]  # fmt: skip
VALUES = ["", "v", "1", "tru", '{"k": [1, null]}', 'a"b', "\\u00e9", "line\nbreak", "日本", "</", "<b>", "</｜DSM"]
NAMES = ["f", "g_1", "apply_patch", "tool_search", "ns::x", "", 'q"x', "a b"]
KEYS = ["a", "input", "", "x y", 'q"', "é"]


def call(rng):
    prefix = rng.choice([" ", ""])
    lines = [f'<｜DSML｜{prefix}invoke name="{rng.choice(NAMES)}">\n']
    for _ in range(rng.randrange(3)):
        kind = rng.choice(["true", "false", "true", "false", "maybe"])
        attribute = rng.choice([f' string="{kind}"', f' string="{kind}"', ""])
        value = "".join(rng.choice(VALUES) for _ in range(rng.randrange(3)))
        lines.append(f'<｜DSML｜{prefix}parameter name="{rng.choice(KEYS)}"{attribute}>{value}')
        lines.append(rng.choice([f"</｜DSML｜{prefix}parameter>\n"] * 5 + [""]))
    lines.append(rng.choice([f"</｜DSML｜{prefix}invoke>\n"] * 5 + [""]))
    return "".join(lines)


def block(rng):
    name = rng.choice(["tool_calls", " calls", "function_calls"])
    calls = "".join(call(rng) for _ in range(rng.randrange(4)))
    return f"\n\n<｜DSML｜{name}>\n{calls}" + rng.choice([f"</｜DSML｜{name}>"] * 3 + [""])


def output(rng):
    parts = [rng.choice(TEXTS) for _ in range(rng.choice([0, 1, 3, 8, 15]))]
    for _ in range(rng.choice([0, 0, 1, 1, 2])):
        parts.insert(rng.randrange(len(parts) + 1), block(rng))
    if rng.random() < 0.5:
        parts.insert(rng.randrange(len(parts) + 1), rng.choice(["</think>", "\n</think>\n\n"]))
    if rng.random() < 0.3:
        text = "".join(parts)
        return text[: rng.randrange(len(text) + 1)]
    return "".join(parts)


def chunks(rng, text, encode):
    """Cut a text into text chunks and token chunks."""
    cut, position = [], 0
    largest = rng.choice([1, 3, 10, 40, 1000])
    while position < len(text):
        size = rng.randrange(0, largest + 1)
        part = text[position : position + size]
        position += size
        kind = rng.random()
        if kind < 0.6:
            cut.append(("text", part, rng.randrange(4)))
            continue
        ids = encode(part)
        if rng.random() < 0.2:
            ids.insert(rng.randrange(len(ids) + 1), rng.choice([1, 225, 28927, 888888, 128804, 128825]))
        middle = rng.randrange(len(ids) + 1)
        for piece in (ids[:middle], ids[middle:]) if kind < 0.8 else (ids,):
            logprobs = None
            if rng.random() < 0.3:
                logprobs = [(-i / 7, [(5, -0.5), (225, -1e-6)][: i % 3]) for i in range(len(piece))]
            cut.append(("tokens", piece, logprobs))
    if rng.random() < 0.7:
        usage = (rng.randrange(50), rng.randrange(60))
        cut.insert(0, ("ready", usage, rng.choice([None, "fp"])))
    if rng.random() < 0.9:
        cut.append(("finish", rng.choice(["Stop", "Stop", "Length", "ContentFilter"])))
    return cut


def draw(seed, encode):
    rng = random.Random(seed)
    protocol = rng.choice(["chat", "messages", "responses"])
    body = {"model": rng.choice(["DeepSeek-V4-Pro", "DeepSeek-V4.1-Flash"])}
    thinking = rng.random() < 0.5
    if protocol == "responses":
        body |= {"input": "json", "reasoning": {"effort": "low" if thinking else "none"}}
        body["tools"] = [
            {"type": "custom", "name": "apply_patch"},
            {"type": "tool_search", "execution": "client"},
            {"type": "namespace", "name": "ns", "tools": [{"type": "function", "name": "x"}]},
        ][: rng.randrange(4)]
        if rng.random() < 0.3:
            body |= {"temperature": rng.random(), "top_p": 0.3, "instructions": "i", "user": "u"}
    else:
        body["messages"] = [{"role": "user", "content": "json"}]
        body["thinking"] = {"type": "enabled" if thinking else "disabled"}
    if rng.random() < 0.5:
        body["stream"] = True
        if protocol == "chat" and rng.random() < 0.5:
            body["stream_options"] = {"include_usage": rng.random() < 0.5}
    parsing = {
        "parse_tool_calls": rng.random() < 0.7,
        "starts_in_tool_calls": rng.random() < 0.1,
        "parse_json_output": rng.random() < 0.25,
        "stage": rng.choice([None, "ReasoningStart", "ReasoningContinuation", "ContentContinuation"]),
        "stop_sequences": rng.choice([[], [], ["STOP"], ["\n\n", "x"], ["TOP", "STOP", ""], ["</think>"],
                                      ["aaa", "}"], ["｜DSML｜"], ["<"]]),
    }  # fmt: skip
    if thinking != (parsing["stage"] is not None) and rng.random() < 0.8:
        parsing["stage"] = "ReasoningStart" if thinking else None
    specials = {}
    if rng.random() < 0.1:
        specials = rng.choice([{"thinking_end": "STOP"}, {"dsml": "|DSML|"}, {"thinking_end": "\n"},
                               {"dsml": "x"}])  # fmt: skip
    has_tokenizer = rng.random() < 0.9
    steps = chunks(rng, output(rng), encode)
    if not has_tokenizer:
        steps = [step for step in steps if step[0] != "tokens"]
    return protocol, body, parsing, specials, has_tokenizer, steps


def build_chunk(api, step):
    match step[0]:
        case "ready":
            usage = api.PromptUsage(prompt_tokens=step[1][0], prompt_cache_hit_tokens=step[1][1])
            return api.InferenceChunk.ready(prompt_usage=usage, system_fingerprint=step[2])
        case "text":
            return api.InferenceChunk.text(step[1], step[2])
        case "tokens":
            return api.InferenceChunk.tokens(step[1], step[2])
    return api.InferenceChunk.finish(getattr(api.InferenceFinishReason, step[1]))


CLOCK = re.compile(r'"(created|created_at|completed_at)":\d+')
CALL_ID = re.compile(r"(call_\d\d+_(?:ET_)?)[A-Za-z0-9]{20}\d{4}")


def normalized(text):
    return json.loads(CALL_ID.sub(r"\1ID", CLOCK.sub(r'"\1":0', text)))


def run(api, case, tokenizer):
    protocol, body, parsing, specials, has_tokenizer, steps = case
    kind, response_kind = {
        "chat": (api.ChatCompletionRequest, api.ChatCompletionResponse),
        "messages": (api.MessagesRequest, api.MessagesResponse),
        "responses": (api.ResponsesRequest, api.ResponsesResponse),
    }[protocol]
    request, options = kind(body), api.ConversionOptions()
    extra = (request.namespace_tool_map(options), request.echo()) if protocol == "responses" else ()
    generator = kind.chunk_generator(request.convert(options), "resp-1", "m")
    if extra:
        generator = generator.with_namespace_tool_map(extra[0]).with_echo(extra[1])
    parsing = dict(parsing)
    stage = parsing.pop("stage")
    stage = None if stage is None else getattr(api.ThinkingInitialStage, stage)
    settings = api.ParsingOptions(
        **parsing, thinking_initial_stage=stage, special_tokens=api.SpecialTokens(**specials)
    )
    processor = api.StreamProcessor(generator, settings, tokenizer if has_tokenizer else None)
    pushes, events = [], []
    for step in steps:
        if processor.finished:
            break
        new = processor.push(build_chunk(api, step))
        pushes.append([normalized(event.to_json()) for event in new])
        events += new
    new = processor.finish()
    pushes.append([normalized(event.to_json()) for event in new])
    response = response_kind("resp-1", "m", 0, 1, 2)
    for event in events + new:
        response.accumulate(event)
    return pushes, normalized(response.to_json())


@pytest.mark.parametrize(
    "seeds", [range(2000), pytest.param(range(2000, 100_000), marks=pytest.mark.slow)], ids=len
)
def test_events_equal_the_oracle(oracle, ours, tokenizer_json, seeds):
    theirs = oracle.Tokenizer.from_str(tokenizer_json)
    mine = ours.Tokenizer.from_str(tokenizer_json)
    for seed in seeds:
        case = draw(seed, theirs.encode)
        assert run(ours, case, mine) == run(oracle, case, theirs), (seed, case)
