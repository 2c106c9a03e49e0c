"""Random Responses requests: conversation, options, echo and errors equal the oracle's."""

CALL_IDS = ["1", "2", "3", "10", "é"]
NAMES = ["f", "g", "h"]
USUAL = {
    "instructions": ["", "be brief", "json"],
    "max_output_tokens": [1, 100, 393216],
    "temperature": [0, 0.1, 1, 2],
    "top_p": [0.1, 0.95, 0.96, 1],
    "top_logprobs": [0, 5, 20],
    "stream": [True, False],
    "user": ["u"],
    "store": [True],
    "previous_response_id": ["x"],
    "metadata": [{"a": "b"}],
    "truncation": ["auto"],
    "tool_choice": [
        "none", "auto", "required", {"type": "function", "name": "f"}, {"type": "web_search"},
        {"type": "custom", "name": "apply_patch"}, {"type": "function", "name": "n::f"},
    ],
}  # fmt: skip
ODD = {
    "max_output_tokens": [0, 393217, 2**32],
    "temperature": [2.1, -0.1, 1e40],
    "top_p": [0, 1.01],
    "top_logprobs": [21, 256],
    "user": [1],
    "tool_choice": ["x", {"type": "function", "name": "z"}, {"type": "web_search_2025_08_26"},
                    {"type": "x"}, {"type": "function"}],
}  # fmt: skip


def content_block(rng, kinds):
    kind = rng.choice(kinds)
    made = {"type": kind}
    match kind:
        case "input_text" | "output_text":
            made["text"] = rng.text()
        case "input_image":
            made |= {"image_url": rng.image_url()} if rng.random() < 0.95 else {"file_id": "x"}
            if rng.random() < 0.3:
                made["detail"] = rng.pick(["low", "high", "original", "auto", None], ["x"])
            if rng.random() < 0.03:
                made |= {"file_id": "x", "image_url": rng.choice(["", "http://h", None])}
    return made


def content(rng, kinds):
    if rng.random() < 0.5:
        return rng.text()
    return [content_block(rng, kinds) for _ in range(rng.choice([0, 1, 1, 2, 3]))]


def message(rng):
    role = rng.pick(
        ["user", "user", "assistant", "assistant", "system", "developer"], ["tool"], 0.01
    )
    kinds = ["input_text", "output_text"]
    if role != "assistant" or rng.random() < 0.03:
        kinds += ["input_image", "input_file"]
    made = {"role": role, "content": content(rng, kinds)}
    if rng.random() < 0.7:
        made["type"] = "message"
    return made


def reasoning(rng):
    made = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}
    if rng.random() < 0.8:
        texts = [rng.text() for _ in range(rng.choice([0, 1, 1, 2]))]
        parts = [{"type": "reasoning_text", "text": text} for text in texts]
        made["content"] = rng.choice([parts, parts, parts, None])
    return made


def call(rng, kind, call_id):
    made = {"type": kind, "call_id": call_id}
    match kind:
        case "function_call":
            made |= {
                "name": rng.choice(NAMES),
                "arguments": rng.choice(["{}", '{"a": 1}', "", "nope"]),
            }
            if rng.random() < 0.2:
                made["namespace"] = rng.choice(["n", "m", None])
        case "custom_tool_call":
            made |= {"name": rng.pick(["apply_patch"], ["q"]), "input": rng.text()}
        case "tool_search_call":
            made |= {"arguments": rng.choice([{}, {"q": 1e-9, "é": "x"}]), "execution": "client"}
    return made


def output(rng, kind, call_id):
    if kind == "tool_search_call" and rng.random() < 0.95:
        tools = [tool(rng, name) for name in rng.sample([*NAMES, "i", "j"], rng.choice([0, 1, 2]))]
        return {"type": "tool_search_output", "call_id": call_id, "tools": tools}
    kind = kind if kind == "custom_tool_call" else "function_call"
    made = content(rng, ["input_text", "input_text", "input_image", "input_file"])
    return {"type": f"{kind}_output", "call_id": call_id, "output": made}


def calls_and_outputs(rng):
    ids = rng.sample(CALL_IDS, rng.choice([1, 1, 2, 3]))
    if rng.random() < 0.03:
        ids += rng.choice([ids[:1], [""]])
    kinds = ["function_call", "function_call", "custom_tool_call", "tool_search_call"]
    kind_by_id = {call_id: rng.choice(kinds) for call_id in ids}
    answered = rng.sample(ids, len(ids)) if rng.random() < 0.96 else rng.sample(CALL_IDS, 2)
    outputs = [output(rng, kind_by_id.get(i, "function_call"), i) for i in answered]
    items = [call(rng, kind_by_id[i], i) for i in ids]
    if rng.random() < 0.1:
        items.insert(rng.randrange(len(items) + 1), rng.choice([message, reasoning])(rng))
    items += outputs
    if rng.random() < 0.05:
        rng.shuffle(items)
    return items


def items(rng):
    made = []
    for _ in range(rng.pick([1, 1, 2, 3, 5], [0])):
        kind = rng.randrange(10)
        if kind < 5:
            made.append(message(rng))
        elif kind < 7:
            made.append(reasoning(rng))
        elif kind < 9:
            made += calls_and_outputs(rng)
        else:
            made.append({"type": rng.choice(["web_search_call", "item_reference", "x"]), "id": "x"})
    return made


def function(rng, name):
    made = {
        "type": "function",
        "name": rng.pick([name], ["f", "a b", "", "é", "x" * 129, "n__f"], 0.03),
    }
    if rng.random() < 0.8:
        made["parameters"] = rng.parameters()
    if rng.random() < 0.5:
        made["description"] = rng.choice(["", "what it does", None])
    if rng.random() < 0.1:
        made["defer_loading"] = rng.choice([True, False])
    return made


def tool(rng, name):
    kind = rng.choice(
        ["function"] * 4 + ["namespace", "namespace", "custom", "tool_search", "other"]
    )
    made = {"type": kind}
    match kind:
        case "function":
            return function(rng, name)
        case "namespace":
            names = rng.sample(NAMES, rng.choice([0, 1, 2]))
            made |= {"name": rng.pick(["n", "m", name], ["a b", ""])}
            made["tools"] = [function(rng, member) for member in names]
            if rng.random() < 0.03:
                made["tools"].append(
                    rng.choice([{"type": "custom", "name": "c"}, function(rng, "f")])
                )
            if rng.random() < 0.6:
                made["description"] = rng.choice(["", "D", None])
        case "custom":
            made |= {"name": rng.pick(["apply_patch"], ["q"]), "description": "d", "format": {}}
        case "tool_search":
            made |= {"execution": rng.pick(["client"], ["server", None], 0.2)}
            if rng.random() < 0.5:
                made |= {"description": "d", "parameters": rng.parameters()}
        case "other":
            kinds = ["web_search", "web_search_2025_08_26", "mcp", "file_search"]
            made |= {"type": rng.choice(kinds), "search_context_size": "low"}
            made["user_location"] = rng.choice([None, {"type": "approximate", "city": "x"}])
    return made


def text_config(rng):
    made = {}
    kind = rng.pick(["text", "json_object", "json_schema", "json_schema"], ["x"])
    if rng.random() < 0.9:
        made["format"] = {"type": kind}
        if kind == "json_schema":
            made["format"] |= {"name": "n", "schema": rng.parameters()}
            made["format"] |= rng.choice(
                [{}, {"strict": True}, {"strict": False, "description": "d"}]
            )
    if rng.random() < 0.3:
        made["verbosity"] = rng.pick(["low", "medium", "high", None], ["x"])
    return made


def make_body(rng):
    body = {"model": rng.model()} | rng.settings(USUAL, ODD)
    if rng.random() < 0.97:
        body["input"] = items(rng) if rng.random() < 0.9 else rng.text()
    if rng.random() < 0.6:
        names = rng.sample(NAMES, rng.choice([0, 1, 2, 3]))
        body["tools"] = [tool(rng, name) for name in names]
        if rng.random() < 0.2:
            for made in body["tools"]:
                made["strict"] = rng.pick([True], [False, None], 0.1)
    if rng.random() < 0.5:
        body["reasoning"] = {"effort": rng.choice([rng.effort(), "none"])}
        if rng.random() < 0.3:
            body["reasoning"]["summary"] = rng.pick(["auto", "concise", "detailed", None], ["x"])
    if rng.random() < 0.3:
        body["text"] = text_config(rng)
    return body


def test_requests_convert_like_the_oracle(agree, drawing, convert, seeds):
    agree(seeds, drawing("ResponsesRequest", make_body), convert)
