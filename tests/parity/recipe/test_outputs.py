"""Random outputs in random chunks, text and ids: events, responses and usage equal the oracle's."""

import json
import random

import deepinfer_recipe
import pytest

D = "｜DSML｜"
FRAGMENTS = [
    "<", "</", "<｜", "</thi", "</think>", "<think>", "\n", "\n\n", "STOP", "ST", "ab", "aab",
    "日", "😀", "é", f"<{D}", f"</{D}", D, f"\n\n<{D} calls>\n", f"</{D} calls>",
    f"</{D}tool_calls>", "|DSML|", "<|DSML|tool_calls>", 'invoke name="', "parameter name=",
    ' string="true">', 'string="false">', '">', '"', " ", "```json\n", "```\n", "\n```", "{",
    "[", "}", '{"a": [1, {"b": "x"}]}', "json", "<｜User｜>", "<｜end▁of▁sentence｜>", "\x00",
    "\\", "\r\n", "\u2028", "hello", "x y", "<function_results>",
]  # fmt: skip
NAMES = ["f", "g", "apply_patch", "tool_search", "ns::f", "", "x y", "a<b", "日"]
KEYS = ["a", "input", "x y", "", 'q"', "日", "\n", "\\", "</"]
STRINGS = [
    "",
    "v",
    'x"y',
    "a\nb",
    "日本😀",
    "</",
    "<｜",
    "</｜DSM",
    "\\u0041",
    "\x01\t",
    "*** Begin Patch\n",
]
JSONS = [
    "1",
    "-0.5e3",
    "true",
    "null",
    '"s"',
    "[1, 2]",
    '{"k": "v"}',
    "",
    "nope",
    '{"a": </',
    "1 2",
]
STOPS = [
    "STOP",
    "\n",
    "a",
    "ab",
    "aab",
    "</",
    D,
    "</think>",
    "日",
    "}",
    "```",
    "\n\n",
    "hello",
    "",
    " ",
]
MODELS = ["DeepSeek-V4-Pro", "DeepSeek-V4.1-Flash"]
STAGES = [None, "ReasoningStart", "ReasoningContinuation", "ContentContinuation"]
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


def prose(rng):
    return "".join(rng.choice(FRAGMENTS) for _ in range(rng.randrange(5)))


def parameter(rng, prefix):
    is_string = rng.random() < 0.5
    text = rng.choice(STRINGS if is_string else JSONS)
    kind = "true" if is_string else "false"
    name = rng.choice(KEYS)
    return f'<{D}{prefix}parameter name="{name}" string="{kind}">{text}</{D}{prefix}parameter>\n'


def call(rng, prefix):
    parameters = "".join(parameter(rng, prefix) for _ in range(rng.randrange(4)))
    return f'<{D}{prefix}invoke name="{rng.choice(NAMES)}">\n{parameters}</{D}{prefix}invoke>\n'


def block(rng):
    tag, prefix = rng.choice([("tool_calls", ""), (" calls", " "), ("function_calls", "")])
    calls = "".join(call(rng, prefix) for _ in range(rng.randrange(4)))
    return rng.choice(["", "\n", "\n\n", "\n\n\n"]) + f"<{D}{tag}>\n{calls}</{D}{tag}>"


def fence(rng):
    return "Here:\n```" + rng.choice(["json", ""]) + "\n" + rng.choice(JSONS) + "\n```\ndone"


def output(rng):
    """A plausible answer, at times cut or with stray fragments in it."""
    parts = [rng.choice(["", "\n", "\n\n"])]
    if rng.random() < 0.6:
        parts += [prose(rng), rng.choice(["", "\n", "\n\n"]), "</think>", rng.choice(["", "\n\n"])]
    parts.append(prose(rng))
    if rng.random() < 0.5:
        parts.append(block(rng))
    if rng.random() < 0.2:
        parts.append(fence(rng))
    parts.append(prose(rng))
    text = "".join(parts)
    for _ in range(rng.choice([0, 0, 0, 1, 2])):
        start = rng.randrange(len(text) + 1)
        text = text[:start] + rng.choice(["", *FRAGMENTS]) + text[start + rng.randrange(4) :]
    if rng.random() < 0.1:
        text = text[: rng.randrange(len(text) + 1)]
    return text


def text_chunks(rng, text):
    size = rng.choice([1, 2, 4, 16, len(text) + 1])
    chunks = []
    while text:
        if rng.random() < 0.05:
            chunks.append(["text", "", rng.randrange(2)])
        count = rng.randrange(size) + 1
        chunks.append(["text", text[:count], rng.randrange(4)])
        text = text[count:]
    return chunks


def logprobs(rng, ids):
    def pick():
        return rng.choice([*ids, 0, 1, 5, 300, 128822, 10**6])

    def value():
        return rng.choice([-0.5, -1e-7, 0.0, -12.125, -3.4e38, float("-inf")])

    return [(value(), [(pick(), value()) for _ in range(rng.randrange(3))]) for _ in ids]


def token_chunks(rng, text, tokenizer):
    """Ids of the text; its markers as tokens or spelled out; at times with any ids in between."""
    is_spelled_out = rng.random() < 0.2
    ids = tokenizer.encode_pieces([(text, False)]) if is_spelled_out else tokenizer.encode(text)
    for _ in range(rng.choice([0, 0, 0, 1, 3])):
        stray = rng.choice([rng.randrange(129300), 1, 128804, 128825, 200000, *range(150, 155)])
        ids.insert(rng.randrange(len(ids) + 1), stray)
    if rng.random() < 0.3:  # cut characters in the middle
        ids = [i for i in ids if rng.random() > 0.05]
    size = rng.choice([1, 1, 3, 8, len(ids) + 1])
    has_logprobs = rng.random() < 0.3
    chunks = []
    while ids:
        count = rng.randrange(size) + 1
        chunk = ["tokens", ids[:count]]
        if has_logprobs and rng.random() < 0.9:
            chunk.append(logprobs(rng, ids[:count]))
            if rng.random() < 0.002:
                chunk[-1].append((0.0, []))
        chunks.append(chunk)
        ids = ids[count:]
    return chunks


def chunk_list(rng, tokenizer):
    text = output(rng)
    middle = rng.randrange(len(text) + 1) if rng.random() < 0.2 else len(text)
    kinds = [rng.random() < 0.5, rng.random() < 0.5]
    chunks = []
    for part, is_text in zip((text[:middle], text[middle:]), kinds, strict=True):
        chunks += text_chunks(rng, part) if is_text else token_chunks(rng, part, tokenizer)
    ready = [
        "ready",
        rng.choice([None, 0, 7, 100]),
        rng.choice([0, 5, 100]),
        rng.choice([None, "fp"]),
    ]
    if rng.random() < 0.8:
        chunks.insert(0, ready)
    if rng.random() < 0.05:
        chunks.insert(rng.randrange(len(chunks) + 1), ready)
    if rng.random() < 0.8:
        chunks.append(["finish", rng.choice(["Stop", "Stop", "Stop", "Length", "ContentFilter"])])
    return chunks


def chat_body(rng):
    body = {"messages": [{"role": "user", "content": "json"}]}
    kind = rng.randrange(5)
    if kind in (0, 1):
        functions = [{"name": name, "parameters": SCHEMA} for name in ("f", "g")]
        body["tools"] = [{"type": "function", "function": function} for function in functions]
        body["tool_choice"] = rng.choice(["auto", "auto", "none", "required"])
    elif kind == 2:
        body["response_format"] = {"type": "json_object"}
    elif kind == 3:
        message = {"role": "assistant", "content": rng.choice(["", "yo"]), "prefix": True}
        body["messages"].append(message | {"reasoning_content": rng.choice(["", "r"])})
    body["stream"] = rng.random() < 0.5
    if body["stream"] and rng.random() < 0.5:
        body["stream_options"] = {"include_usage": rng.random() < 0.7}
    thinking = body.get("tool_choice") != "required" and rng.random() < 0.6
    body["thinking"] = {"type": "enabled" if thinking else "disabled"}
    return body | {"stop": rng.sample(STOPS[:13], rng.choice([0, 0, 1, 3]))}


def messages_body(rng):
    body = {"messages": [{"role": "user", "content": "hi"}]}
    if rng.random() < 0.5:
        body["tools"] = [{"name": name, "input_schema": SCHEMA} for name in ("f", "g")]
    body["thinking"] = {"type": rng.choice(["enabled", "disabled"])}
    return body | {"stop_sequences": rng.sample(STOPS[:13], rng.choice([0, 0, 1, 3]))}


def responses_body(rng):
    body = {"input": "json", "reasoning": {"effort": rng.choice(["none", "high"])}}
    if rng.random() < 0.6:
        function = {"type": "function", "name": "f", "parameters": SCHEMA}
        body["tools"] = [
            {"type": "custom", "name": "apply_patch"},
            {
                "type": "tool_search",
                "execution": "client",
                "description": "d",
                "parameters": SCHEMA,
            },
            {"type": "namespace", "name": "ns", "description": "d", "tools": [function]},
            function,
        ][rng.randrange(4) :]
    elif rng.random() < 0.3:
        body["text"] = {"format": {"type": "json_object"}}
    for name, values in {"temperature": [0.1, 1, 2], "user": ["u"], "top_logprobs": [3]}.items():
        if rng.random() < 0.2:
            body[name] = rng.choice(values)
    return body


BODIES = {"chat": chat_body, "messages": messages_body, "responses": responses_body}


@pytest.fixture(scope="module")
def draw(tokenizer_json):
    tokenizer = deepinfer_recipe.Tokenizer.from_str(tokenizer_json)

    def make(seed):
        rng = random.Random(seed)
        protocol = rng.choice(list(BODIES))
        case = {"protocol": protocol, "body": BODIES[protocol](rng) | {"model": rng.choice(MODELS)}}
        if rng.random() < 0.4:
            case["options"] = {
                "parse_tool_calls": rng.random() < 0.7,
                "starts_in_tool_calls": rng.random() < 0.1,
                "parse_json_output": rng.random() < 0.3,
                "thinking_initial_stage": rng.choice(STAGES),
                "stop_sequences": rng.sample(STOPS, rng.choice([0, 0, 1, 2, 4])),
            }
            if rng.random() < 0.2:
                specials = {"thinking_end": ["X", "aab"], "dsml": ["", "ab", "<", "｜DSML｜"]}
                case["specials"] = {name: rng.choice(texts) for name, texts in specials.items()}
        case["has_tokenizer"] = rng.random() < 0.95
        case["shows_every_state"] = rng.random() < 0.2
        return case | {"chunks": chunk_list(rng, tokenizer)}

    return make


def parsing_options(api, case, converted):
    if "options" not in case:
        return converted.parsing_options
    options = dict(case["options"])
    stage = options.pop("thinking_initial_stage")
    return api.ParsingOptions(
        **options,
        thinking_initial_stage=stage and getattr(api.ThinkingInitialStage, stage),
        special_tokens=api.SpecialTokens(**case.get("specials", {})),
    )


def build_chunk(api, kind, *values):
    match kind:
        case "ready":
            tokens, hit, fingerprint = values
            usage = None
            if tokens is not None:
                usage = api.PromptUsage(prompt_tokens=tokens, prompt_cache_hit_tokens=hit)
            return api.InferenceChunk.ready(prompt_usage=usage, system_fingerprint=fingerprint)
        case "text":
            return api.InferenceChunk.text(*values)
        case "tokens":
            return api.InferenceChunk.tokens(*values)
        case "finish":
            return api.InferenceChunk.finish(getattr(api.InferenceFinishReason, values[0]))


def open_stream(side, case):
    api, protocol = side.api, case["protocol"]
    request_type, response_type = {
        "chat": (api.ChatCompletionRequest, api.ChatCompletionResponse),
        "messages": (api.MessagesRequest, api.MessagesResponse),
        "responses": (api.ResponsesRequest, api.ResponsesResponse),
    }[protocol]
    request, options = request_type(case["body"]), api.ConversionOptions()
    settings = ()
    if protocol == "responses":
        settings = (request.namespace_tool_map(options), request.echo())
    converted = request.convert(options)
    generator = request_type.chunk_generator(converted, "resp-1", case["body"]["model"])
    if settings:
        generator = generator.with_namespace_tool_map(settings[0]).with_echo(settings[1])
    tokenizer = side.tokenizer if case["has_tokenizer"] else None
    parsing = parsing_options(api, case, converted)
    return api.StreamProcessor(generator, parsing, tokenizer), response_type


@pytest.fixture(scope="session")
def run(normalized):
    """Feed the chunks; return the events of every push, the response, and what went wrong."""

    def stream(side, case):
        processor, response_type = open_stream(side, case)
        response = response_type("resp-1", "m", 0, 3, 1)
        pushes = []

        def push(step, *arguments):
            try:
                events = step(*arguments)
            except RuntimeError as error:
                pushes.append(str(error))
                return
            shown = []
            for event in events:
                name = response_type.sse_event_name(event)
                shown.append([name, normalized(json.loads(event.to_json()))])
                response.accumulate(event)
            pushes.append([shown, processor.finished])
            if case["shows_every_state"]:
                pushes.append(normalized(json.loads(response.to_json())))

        for chunk in case["chunks"]:
            push(processor.push, build_chunk(side.api, *chunk))
        push(processor.finish)
        return pushes, normalized(json.loads(response.to_json()))

    return stream


def test_events_and_responses_equal_the_oracle(agree, draw, run, seeds):
    agree(seeds, draw, run)
