"""Random requests, most of them with a fault or two: conversion equals the oracle's.

A request that fails to deserialize must fail in both; the words after the prefix are not compared.
Nor are the words of the schema validator inside an error.
"""

import json
import random
import re

import pytest

TEXTS = ["hi", "", "json", "JSON please", "a\nb", "日本", "<｜image｜>", "<think>", "x"]
SCHEMAS = [
    {"type": "object"}, {"type": "object", "properties": {"a": {"type": "string", "minLength": 1}}}, {},
    {"type": "string"}, {"type": "zz"}, True, {"type": "object", "properties": {"a": {"type": "integer",
    "minimum": 1, "description": "d"}, "b": {"anyOf": [{"type": "null"}, {"type": "number", "const": 1.5}]}}},
    {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "boolean"}}}, "required": ["a"],
     "additionalProperties": False}, {"type": "object", "required": ["q"]}, {"type": "object", "pattern": "("},
    {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": "object"}}},
    {"type": "object", "properties": {"a": {"$ref": "#/nope"}}}, {"type": ["object"]}, [1], None, "x",
    {"type": "object", "properties": {"a": {"type": "object"}}}, {"type": "object", "x": 1e-7},
]  # fmt: skip
NAMES = ["f", "g", "f", "g", "h_1", "", "a b", "x" * 129, "n::f", "n__f", "apply_patch", "tool_search"]
IDS = ["1", "2", "1", "2", "3", ""]
IMAGES = ["https://h/a.png", "http:x", "data:image/png;base64,iVBORw0KGgo=", "data:image/bmp;base64,aaaa",
          "data:image/png;base64,a", "data:text/plain,x", "x", "", "data:image/jpg;base64,aa"]  # fmt: skip
ODD = [None, 3, "x", [], {}, True, -1, 1.5]
EFFORTS = ["none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max", "zz"]


def maybe(rng, chance, make):
    return make() if rng.random() < chance else None


def text(rng):
    return rng.choice(TEXTS)


def put(fields, **values):
    return fields | {key: value for key, value in values.items() if value is not None}


def common(rng, limit):
    return put(
        {},
        temperature=maybe(rng, 0.1, lambda: rng.choice([0, 0.5, 2, 2.1, -0.1, 1e39])),
        top_p=maybe(rng, 0.15, lambda: rng.choice([0, 0.3, 0.97, 1, 1.01])),
        stream=maybe(rng, 0.3, lambda: rng.random() < 0.6),
        **{limit: maybe(rng, 0.1, lambda: rng.choice([0, 1, 5000, 393216, 393217, 2**32 - 1]))},
    )


def history(rng, ids):
    """Assistant turns with calls, and results most of which answer them."""
    ids = list(ids)
    answers = list(ids)
    if rng.random() < 0.2:
        answers = rng.choice([answers[1:], [*answers, "1"], answers[::-1], ["9", *answers]])
    return ids, answers


def chat_parts(rng):
    parts = []
    for _ in range(rng.choice([0, 1, 1, 2, 3])):
        kind = rng.choice(["text", "text", "image_url", "file"])
        if kind == "text":
            parts.append({"type": "text", "text": text(rng)})
        elif kind == "image_url":
            image = put({"url": rng.choice(IMAGES)}, detail=maybe(rng, 0.3, lambda: "low"))
            parts.append({"type": "image_url", "image_url": image})
        else:
            file = {
                "file_id": maybe(rng, 0.2, lambda: "i"),
                "file_data": maybe(rng, 0.8, lambda: rng.choice(IMAGES)),
                "filename": maybe(rng, 0.2, lambda: "n"),
            }
            parts.append(put({"type": "file"}, **file))
    return parts


def chat_content(rng):
    return text(rng) if rng.random() < 0.7 else chat_parts(rng)


def chat_messages(rng):
    messages = []
    for _ in range(rng.choice([0, 1, 1, 2, 3, 4])):
        role = rng.choice(["system", "user", "user", "assistant", "calls", "latest_reminder", "tool"])
        if role == "latest_reminder":
            messages.append({"role": role, "content": text(rng)})
        elif role == "tool":
            if rng.random() < 0.15:
                messages.append({"role": role, "content": text(rng), "tool_call_id": rng.choice(IDS)})
        elif role == "assistant":
            message = {"role": role, "content": rng.choice([text(rng), text(rng), None, chat_parts(rng)])}
            message = put(message, reasoning_content=maybe(rng, 0.4, lambda: text(rng)))
            messages.append(put(message, prefix=maybe(rng, 0.15, lambda: True)))
        elif role == "calls":
            ids, answers = history(rng, rng.sample(IDS, rng.choice([0, 1, 1, 2, 2])))
            calls = [
                {"id": i, "type": "function", "function": {"name": "f", "arguments": text(rng)}}
                for i in ids
            ]
            message = {"role": "assistant", "content": rng.choice([None, "t"]), "tool_calls": calls}
            messages.append(put(message, reasoning_content=maybe(rng, 0.5, lambda: text(rng))))
            messages += [
                {"role": "tool", "content": chat_content(rng), "tool_call_id": i} for i in answers
            ]
        else:
            messages.append({"role": role, "content": chat_content(rng)})
    if messages and rng.random() < 0.15:
        messages.append({"role": "assistant", "content": text(rng), "prefix": True,
                         "reasoning_content": rng.choice([None, "", "r"])})  # fmt: skip
    return messages


def chat(rng):
    strict = rng.random() < 0.2
    tools = []
    for _ in range(rng.choice([0, 0, 1, 2])):
        function = put({"name": rng.choice(NAMES)}, description=maybe(rng, 0.5, lambda: text(rng)))
        if rng.random() < 0.8:
            function["parameters"] = rng.choice(SCHEMAS[:2]) if rng.random() < 0.6 else rng.choice(SCHEMAS)
        if strict or rng.random() < 0.05:
            function["strict"] = rng.random() < 0.9
        tools.append({"type": "function", "function": function})
    schema = {"name": "n", "schema": rng.choice(SCHEMAS)} | maybe_strict(rng)
    formats = [{"type": "text"}, {"type": "json_object"}, {"type": "regex", "regex": "("},
               {"type": "json_schema", "json_schema": schema}]  # fmt: skip
    choices = ["none", "auto", "required", {"type": "function", "function": {"name": rng.choice(NAMES)}}]
    return put(
        {"messages": chat_messages(rng)} | common(rng, "max_tokens"),
        tools=maybe(rng, 0.8, lambda: tools),
        tool_choice=maybe(rng, 0.3, lambda: rng.choice(choices)),
        response_format=maybe(rng, 0.2, lambda: rng.choice(formats)),
        thinking=maybe(rng, 0.6, lambda: {"type": rng.choice(["enabled", "disabled", "adaptive"])}),
        reasoning_effort=maybe(rng, 0.3, lambda: rng.choice(EFFORTS)),
        stop=maybe(rng, 0.1, lambda: rng.choice(["", "a", [], ["a", ""], ["a"] * 17, ["a", "b"]])),
        n=maybe(rng, 0.05, lambda: rng.choice([0, 1, 2])),
        seed=maybe(rng, 0.05, lambda: rng.choice([0, 2**63, 2**63 - 1])),
        frequency_penalty=maybe(rng, 0.05, lambda: rng.choice([-2, 2.1])),
        presence_penalty=maybe(rng, 0.05, lambda: rng.choice([-2.1, 0])),
        logprobs=maybe(rng, 0.1, lambda: rng.random() < 0.7),
        top_logprobs=maybe(rng, 0.1, lambda: rng.choice([0, 20, 21])),
        stream_options=maybe(rng, 0.1, lambda: rng.choice([{}, {"include_usage": True}])),
    )


def maybe_strict(rng):
    return rng.choice([{}, {}, {"strict": True}, {"strict": False}])


def message_block(rng, kinds):
    kind = rng.choice(kinds)
    match kind:
        case "text":
            return {"type": kind, "text": text(rng)}
        case "image":
            source = rng.choice([
                {"type": "url", "url": rng.choice(IMAGES)}, {"type": "file", "file_id": "x"},
                {"type": "base64", "media_type": "image/jpg", "data": rng.choice(["aaaa", "aa", "ab=="])},
            ])  # fmt: skip
            return {"type": kind, "source": source}
        case "document":
            return {"type": kind, "source": rng.choice([{}, {"media_type": "text/plain"}])}
        case "thinking":
            return {"type": kind, "thinking": text(rng), "signature": "s"}
        case "tool_use":
            value = rng.choice([{}, {"a": [1, 2.5e-7, "é"]}, None, [1]])
            return {"type": kind, "id": rng.choice(IDS), "name": "f", "input": value}
        case "tool_result":
            return put({"type": kind, "tool_use_id": rng.choice(IDS)}, content=result_content(rng))
        case "tool_addition":
            return {"type": kind, "tool": {"type": "tool_reference", "name": rng.choice(NAMES[:4])}}
        case "server_tool_use":
            return {"type": kind, "id": "9", "name": "web_search", "input": {}}
        case "web_search_tool_result":
            return {"type": kind, "tool_use_id": "9", "content": []}
        case "tool_reference":
            return {"type": kind, "tool_name": rng.choice(NAMES[:4])}


def result_content(rng):
    kinds = ["text", "text", "image", "document", "tool_reference"]
    blocks = [message_block(rng, kinds) for _ in range(rng.randrange(3))]
    return rng.choice([None, text(rng), blocks])


def messages_messages(rng):
    every = ["text", "image", "document", "thinking", "tool_use", "tool_result", "tool_addition",
             "server_tool_use", "web_search_tool_result"]  # fmt: skip
    usual = {
        "user": ["text", "text", "image", "document"],
        "assistant": ["text", "text", "thinking", "document"],
        "system": ["text", "text", "tool_addition"],
    }
    messages = []
    for _ in range(rng.choice([0, 1, 1, 2, 3])):
        role = rng.choice(["user", "user", "assistant", "assistant", "system", "calls"])
        if role == "calls":
            ids, answers = history(rng, rng.sample(IDS, rng.choice([1, 1, 2])))
            blocks = [message_block(rng, usual["assistant"]) for _ in range(rng.randrange(3))]
            blocks += [{"type": "tool_use", "id": i, "name": "f", "input": {"a": 1}} for i in ids]
            messages.append({"role": "assistant", "content": blocks})
            blocks = [
                put({"type": "tool_result", "tool_use_id": i}, content=result_content(rng))
                for i in answers
            ]
            blocks += [message_block(rng, usual["user"]) for _ in range(rng.randrange(3))]
            messages.append({"role": "user", "content": blocks})
            continue
        kinds = every if rng.random() < 0.1 else usual[role]
        blocks = [message_block(rng, kinds) for _ in range(rng.choice([0, 1, 1, 2, 3]))]
        messages.append({"role": role, "content": rng.choice([text(rng), blocks])})
    return messages


def messages(rng):
    tools = []
    for _ in range(rng.choice([0, 0, 1, 2, 3])):
        if rng.random() < 0.1:
            tools.append({"type": rng.choice(["web_search_1", "bash", "custom"]), "name": "q"})
            continue
        name = rng.choice(NAMES[:4]) if rng.random() < 0.8 else rng.choice(NAMES)
        tool = put({"name": name}, description=maybe(rng, 0.5, lambda: text(rng)))
        tool["input_schema"] = SCHEMAS[0] if rng.random() < 0.8 else rng.choice(SCHEMAS)
        tools.append(put(tool, defer_loading=maybe(rng, 0.3, lambda: rng.random() < 0.7)))
    choices = [{"type": "auto"}, {"type": "any"}, {"type": "none"},
               {"type": "tool", "name": rng.choice(NAMES[:4])}]  # fmt: skip
    systems = ["", "s", [], [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]]
    return put(
        {"messages": messages_messages(rng)} | common(rng, "max_tokens"),
        tools=maybe(rng, 0.8, lambda: tools),
        tool_choice=maybe(rng, 0.3, lambda: rng.choice(choices)),
        system=maybe(rng, 0.3, lambda: rng.choice(systems)),
        thinking=maybe(rng, 0.6, lambda: {"type": rng.choice(["enabled", "disabled", "adaptive"])}),
        output_config=maybe(rng, 0.3, lambda: {"effort": rng.choice(EFFORTS)}),
        stop_sequences=maybe(rng, 0.1, lambda: rng.choice([[], ["a", ""], ["a"] * 17, ["a"]])),
    )


def responses_tool(rng, *, nested=False):
    kind = rng.choice(["function"] * 5 + ([] if nested else ["namespace", "custom", "tool_search",
                                                            "web_search", "mcp"]))  # fmt: skip
    if nested and rng.random() < 0.05:
        kind = "custom"
    match kind:
        case "namespace":
            members = [responses_tool(rng, nested=True) for _ in range(rng.randrange(3))]
            tool = {"type": kind, "name": rng.choice(["n", "n", "m", "a b"]), "tools": members}
            return put(tool, description=maybe(rng, 0.5, lambda: rng.choice(["", "D"])))
        case "custom":
            return {"type": kind, "name": "apply_patch" if rng.random() < 0.8 else "q"}
        case "tool_search":
            tool = {"type": kind, "execution": rng.choice(["client", "client", "server"])}
            return put(tool, parameters=maybe(rng, 0.2, lambda: rng.choice(SCHEMAS)))
        case "function":
            name = rng.choice(NAMES[:5]) if rng.random() < 0.9 else rng.choice(NAMES)
            tool = put({"type": kind, "name": name}, description=maybe(rng, 0.5, lambda: text(rng)))
            tool = put(tool, strict=maybe(rng, 0.1, lambda: rng.random() < 0.7))
            parameters = maybe(rng, 0.5, lambda: SCHEMAS[0] if rng.random() < 0.8 else rng.choice(SCHEMAS))
            return put(tool, parameters=parameters, defer_loading=maybe(rng, 0.1, lambda: True))
    return {"type": kind}


def input_blocks(rng, kinds):
    blocks = []
    for _ in range(rng.choice([0, 1, 1, 2])):
        kind = rng.choice(kinds)
        if kind in ("input_text", "output_text"):
            blocks.append({"type": kind, "text": text(rng)})
        elif kind == "input_image":
            image = {
                "image_url": maybe(rng, 0.8, lambda: rng.choice(IMAGES)),
                "file_id": maybe(rng, 0.1, lambda: "x"),
            }
            blocks.append(put({"type": kind}, **image))
        else:
            blocks.append({"type": kind})
    return blocks


def input_items(rng):
    items = []
    outputs = ["input_text", "input_text", "input_image", "input_file"]
    for _ in range(rng.choice([0, 1, 1, 2, 3, 4])):
        kind = rng.choice(["message", "message", "reasoning", "calls", "calls", "unknown", "output"])
        if kind == "message":
            role = rng.choice(["user", "user", "assistant", "system", "developer"])
            kinds = ["input_text", "output_text", "output_text"] + outputs[2:] * (rng.random() < 0.5)
            content = text(rng) if rng.random() < 0.6 else input_blocks(rng, kinds)
            items.append({"type": "message", "role": role, "content": content})
        elif kind == "reasoning":
            parts = [{"type": "reasoning_text", "text": text(rng)} for _ in range(rng.randrange(3))]
            items.append({"type": kind, "summary": [], "content": rng.choice([None, parts, parts])})
        elif kind == "unknown":
            items.append({"type": "web_search_call", "id": "x"})
        elif kind == "output":
            if rng.random() < 0.15:
                item = {"type": "function_call_output", "call_id": rng.choice(IDS), "output": "o"}
                items.append(item)
        else:
            ids, answers = history(rng, rng.sample(IDS[:5], rng.choice([1, 1, 2])))
            forms = {}
            for i in ids:
                forms[i] = rng.choice(["function", "function", "custom", "search"])
                items.append(call_item(rng, forms[i], i))
            for i in answers:
                items.append(output_item(rng, forms.get(i, "function"), i, outputs))
    return items


def call_item(rng, form, call_id):
    if form == "custom":
        return {"type": "custom_tool_call", "call_id": call_id, "name": "apply_patch", "input": 'a"é'}
    if form == "search":
        return {"type": "tool_search_call", "call_id": call_id, "arguments": {"q": 1e-9}}
    item = {"type": "function_call", "call_id": call_id, "name": "f", "arguments": text(rng)}
    return put(item, namespace=maybe(rng, 0.2, lambda: "n"))


def output_item(rng, form, call_id, kinds):
    if form == "search" and rng.random() < 0.9:
        tools = [responses_tool(rng) for _ in range(rng.randrange(3))]
        return {"type": "tool_search_output", "call_id": call_id, "tools": tools}
    output = text(rng) if rng.random() < 0.6 else input_blocks(rng, kinds)
    kind = "custom_tool_call_output" if form == "custom" else "function_call_output"
    return {"type": kind, "call_id": call_id, "output": output}


def responses(rng):
    tools = [responses_tool(rng) for _ in range(rng.choice([0, 0, 1, 2, 3]))]
    choices = ["none", "auto", "required", {"type": "function", "name": rng.choice(["f", "n::f", "g"])},
               {"type": "custom", "name": "apply_patch"}, {"type": "web_search"}]  # fmt: skip
    schema = {"type": "json_schema", "name": "n", "schema": rng.choice(SCHEMAS)} | maybe_strict(rng)
    formats = [{"type": "text"}, {"type": "json_object"}, schema]
    return put(
        common(rng, "max_output_tokens"),
        input=rng.choice([None, text(rng), input_items(rng), input_items(rng), input_items(rng)]),
        instructions=maybe(rng, 0.3, lambda: text(rng)),
        tools=maybe(rng, 0.8, lambda: tools),
        tool_choice=maybe(rng, 0.3, lambda: rng.choice(choices)),
        reasoning=maybe(rng, 0.6, lambda: {"effort": rng.choice([*EFFORTS, "none", "none"])}),
        text=maybe(rng, 0.2, lambda: {"format": rng.choice(formats)}),
        top_logprobs=maybe(rng, 0.1, lambda: rng.choice([0, 20, 21])),
        user=maybe(rng, 0.1, lambda: "u"),
    )


def draw(seed, _=None):
    rng = random.Random(seed)
    protocol = rng.choice(["chat", "messages", "responses"])
    body = {"model": rng.choice(["DeepSeek-V4-Pro", "DeepSeek-V4.1-Flash"] * 8 + ["zz"])}
    body |= {"chat": chat, "messages": messages, "responses": responses}[protocol](rng)
    if rng.random() < 0.08:
        body[rng.choice([*body, "tools", "stop", "metadata"])] = rng.choice(ODD)
    options = {
        "default_thinking_mode": rng.random() < 0.6,
        "reject_reasoning": rng.random() < 0.3,
        "messages_drop": rng.random() < 0.5,
        "responses_reject": rng.random() < 0.3,
        "image": rng.choice([None, None, None, "[I]"]),
    }
    return protocol, body, options


def build_options(api, given):
    fill, reject = api.ReasoningContentBehavior.FillEmpty, api.ReasoningContentBehavior.Reject
    drop, refuse = api.WebSearchBehavior.Drop, api.WebSearchBehavior.Reject
    options = api.ConversionOptions(
        default_thinking_mode=given["default_thinking_mode"],
        reasoning_content_behavior=reject if given["reject_reasoning"] else fill,
        messages_web_search=drop if given["messages_drop"] else refuse,
        responses_web_search=refuse if given["responses_reject"] else drop,
    )
    if given["image"]:
        options = options.with_special_tokens(api.SpecialTokens(image=given["image"]))
    return options


def tool_dump(tool):
    names = ("name", "description", "parameters", "strict", "defer_loading")
    return [getattr(tool, name) for name in names]


def message_dump(message):
    calls = message.tool_calls
    return [
        message.role,
        message.content,
        message.reasoning_content,
        message.prefix,
        message.tool_call_id,
        None if calls is None else [(c.id, c.name, c.arguments) for c in calls],
        [(s.kind, s.url, s.data_url, s.detail, s.path) for s in message.image_sources],
        [tool_dump(t) for t in message.tools or ()] if message.role == "system" else None,
    ]


def dump(api, request):
    conversation, inference = request.conversation, request.inference_options
    parsing, constraint = request.parsing_options, inference.output_constraint
    stage = parsing.thinking_initial_stage
    encoding = api.DeepseekV4Encoding()
    if request.model_version == api.ModelVersion.DeepseekV41Flash:
        encoding = api.DeepseekV41Encoding()
    prompt = encoding.render_conversation(conversation)
    names = ("thinking_mode", "tool_choice", "reasoning_effort", "response_format", "response_schema",
             "response_regex")  # fmt: skip
    inference_names = ("max_tokens", "temperature", "top_p", "logprobs", "top_logprobs", "seed")
    return {
        "messages": [message_dump(m) for m in conversation.messages],
        "tools": [tool_dump(t) for t in conversation.tools],
        "conversation": [getattr(conversation, name) for name in names],
        "inference": [getattr(inference, name) for name in inference_names],
        "constraint": constraint and (constraint.kind, constraint.schema),
        "parsing": [parsing.parse_tool_calls, parsing.starts_in_tool_calls, parsing.parse_json_output,
                    stage and str(stage).split(".")[-1], parsing.stop_sequences],
        "stream": request.stream,
        "prompt": [prompt.prompt, [tuple(r) for r in prompt.special_ranges]],
    }  # fmt: skip


VALIDATOR = re.compile(r"(Invalid schema for function '[^']*':|Invalid json schema:) .*", re.DOTALL)


def run(api, case, _=None):
    protocol, body, options = case
    kinds = {"chat": api.ChatCompletionRequest, "messages": api.MessagesRequest}
    try:
        request = kinds.get(protocol, api.ResponsesRequest)(body)
    except (ValueError, OverflowError) as error:
        return str(error).split(": ")[0]
    options = build_options(api, options)
    names = None
    try:
        if protocol == "responses":
            names = request.namespace_tool_map(options)
        return names, dump(api, request.convert(options))
    except api.ConversionError as error:
        message = json.loads(error.body)["error"]["message"]
        if "got 'type:" not in message and "field is required" not in message:
            message = VALIDATOR.sub(r"\1", message)
        return error.status_code, message, json.loads(error.body) | {"error": None}


@pytest.mark.parametrize(
    "seeds", [range(2000), pytest.param(range(2000, 100_000), marks=pytest.mark.slow)], ids=len
)
def test_conversions_equal_the_oracle(oracle, ours, seeds):
    for seed in seeds:
        case = draw(seed)
        assert run(ours, case) == run(oracle, case), (seed, json.dumps(case, ensure_ascii=False))
