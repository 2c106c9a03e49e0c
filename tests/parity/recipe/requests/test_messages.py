"""Random Anthropic Messages requests: conversation, options and errors equal the oracle's."""

CALL_IDS = ["1", "2", "3", "", "é"]
TOOLS = ["f", "g", "h"]
INPUTS = [{}, {"a": 1}, {"b": "é", "a": [1.0, 1e-7]}, None, [1], "x"]
MEDIA_TYPES = ["image/png", "image/jpg", "image/jpeg", "image/gif", "image/webp"]
EVERY_BLOCK = [
    "text", "image", "document", "thinking", "tool_use", "tool_result", "tool_addition",
    "server_tool_use", "web_search_tool_result", "redacted_thinking", "search_result",
    "tool_reference",
]  # fmt: skip
USUAL = {
    "max_tokens": [1, 100, 393216, 393217, 2**32 - 1],
    "system": ["", "s", [], [{"type": "text", "text": "a"}, {"type": "text", "text": ""}]],
    "stop_sequences": [[], ["a"], ["a", "b"], ["x"] * 16],
    "stream": [True, False],
    "temperature": [0, 0.1, 1, 2],
    "top_p": [0.1, 0.95, 0.96, 1],
    "top_k": [5],
    "thinking": [
        {"type": "enabled", "budget_tokens": 9}, {"type": "disabled"}, {"type": "disabled"},
        {"type": "adaptive"},
    ],
    "metadata": [{"user_id": "u"}, {"user_id": None}, {}],
    "tool_choice": [
        {"type": "auto"}, {"type": "any"}, {"type": "none"}, {"type": "tool", "name": "f"},
        {"type": "tool", "name": "g", "disable_parallel_tool_use": True},
    ],
}  # fmt: skip
ODD = {
    "max_tokens": [0, 2**32],
    "stop_sequences": [["a", ""], ["x"] * 17],
    "temperature": [2.1, -0.1, 1e40],
    "top_p": [0, 1.01],
    "metadata": [{"user_id": 1}],
    "tool_choice": [{"type": "tool", "name": "z"}, {"type": "tool"}, {"type": "x"}],
    "output_config": [{}, {"effort": "x"}, {"effort": None}],
}


def image_source(rng):
    match rng.pick(["base64", "url"], ["file"]):
        case "base64":
            data = rng.pick(["iVBORw0KGgo=", "", "AA=="], ["AA=", "!", "AB==", "A A A"], 0.1)
            return {
                "type": "base64",
                "media_type": rng.pick(MEDIA_TYPES, ["image/bmp"]),
                "data": data,
            }
        case "url":
            return {"type": "url", "url": rng.pick(["https://h/a", "HTTP://x"], ["ftp://x", ""])}
    return {"type": "file", "file_id": "x"}


def block(rng, kind):
    made = {"type": kind}
    match kind:
        case "text":
            made |= {"text": rng.text()}
        case "image":
            made |= {"source": image_source(rng)}
        case "document":
            source = {"type": "base64", "media_type": "text/plain", "data": "x"}
            made |= {"source": rng.choice([source, {"media_type": None}, {}])}
        case "thinking":
            made |= {"thinking": rng.text(), "signature": "s"}
        case "tool_use":
            made |= {"id": rng.choice(CALL_IDS), "name": "f", "input": rng.choice(INPUTS)}
        case "tool_result":
            made |= {"tool_use_id": rng.choice(CALL_IDS), **result_content(rng)}
        case "tool_addition":
            name = rng.pick(TOOLS, ["z"], 0.1)
            made |= {"tool": {"type": "tool_reference", "name": name}}
        case "server_tool_use":
            made |= {"id": "9", "name": rng.choice(["web_search", "x"]), "input": {}}
        case "web_search_tool_result":
            made |= {"tool_use_id": "9", "content": []}
        case "tool_reference":
            made |= {"tool_name": rng.pick(TOOLS, ["z"], 0.1)}
    return made


def blocks(rng, kinds, least=1):
    return [
        block(rng, rng.pick(kinds, EVERY_BLOCK, 0.02)) for _ in range(rng.choice([least, 1, 2, 3]))
    ]


def result_content(rng):
    kinds = ["text", "text", "image", "document"]
    if rng.random() < 0.2:
        kinds.append("tool_reference")
    made = {"content": rng.choice([rng.text(), rng.text(), blocks(rng, kinds, 0), None])}
    if rng.random() < 0.2:
        made["is_error"] = rng.choice([True, False, None])
    return made if rng.random() < 0.9 else {}


def calls_and_results(rng):
    ids = rng.sample(CALL_IDS, rng.choice([1, 1, 2, 3]))
    if rng.random() < 0.03:
        ids += ids[:1]
    kinds = ["text", "thinking", "text", "server_tool_use", "web_search_tool_result"]
    asked = blocks(rng, kinds[: rng.choice([2, 2, 5])], 0)
    uses = [block(rng, "tool_use") | {"id": call_id} for call_id in ids]
    for made in [*asked, *uses]:
        if rng.random() < 0.02:
            uses.append(made)
    answered = rng.sample(ids, len(ids)) if rng.random() < 0.95 else rng.sample(CALL_IDS, 2)
    results = [block(rng, "tool_result") | {"tool_use_id": call_id} for call_id in answered]
    results += blocks(rng, ["text", "text", "image", "document"], 0)
    if rng.random() < 0.05:
        rng.shuffle(results)
    return [
        {"role": "assistant", "content": asked + uses},
        {"role": "user", "content": results},
    ]


def turn(rng):
    kinds = {
        "user": ["text", "text", "image", "document"],
        "assistant": ["text", "text", "thinking"],
        "system": ["text", "text", "tool_addition"],
    }
    role = rng.choice(["user", "user", "assistant", "assistant", "system", "calls", "calls"])
    if role == "calls":
        return calls_and_results(rng)
    listed = blocks(rng, kinds[role], rng.pick([1], [0]))
    return [{"role": role, "content": rng.text() if rng.random() < 0.5 else listed}]


def tool(rng, name):
    if rng.random() < 0.03:
        return {"type": rng.choice(["web_search_20250305", "bash", "custom", None]), "name": name}
    made = {"name": rng.pick([name], ["f", "a b", "", "é", "x" * 128, "x" * 129])}
    made["input_schema"] = rng.parameters()
    if rng.random() < 0.5:
        made["description"] = rng.choice(["", "what it does", None])
    for field, share in {"defer_loading": 0.3, "strict": 0.1}.items():
        if rng.random() < share:
            made[field] = rng.choice([True, False, None])
    return made


def make_body(rng):
    messages = [message for _ in range(rng.pick([1, 1, 2, 3], [0])) for message in turn(rng)]
    body = {"model": rng.model(), "messages": messages} | rng.settings(USUAL, ODD)
    if rng.random() < 0.6:
        body["tools"] = [tool(rng, name) for name in TOOLS[: rng.choice([0, 1, 2, 3, 3])]]
    if rng.random() < 0.3:
        body["output_config"] = {"effort": rng.effort(), "format": "x"}
    return body


def test_requests_convert_like_the_oracle(agree, drawing, convert, seeds):
    agree(seeds, drawing("MessagesRequest", make_body), convert)
