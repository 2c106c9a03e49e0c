"""Random Chat Completions requests: conversation, options, prompt and errors equal the oracle's."""

CALL_IDS = ["1", "2", "3", "", "é"]


def function(rng, names="fgh"):
    made = {"name": rng.pick([*names, "a-b_1", "x" * 128], ["a b", "", "é"], 0.02)}
    if rng.random() < 0.8:
        made["parameters"] = rng.parameters()
    if rng.random() < 0.5:
        made["description"] = rng.choice(["", "what it does", None])
    if rng.random() < 0.5:
        made["strict"] = rng.choice([True, True, True, False, None])
    return made


def block(rng):
    kind = rng.randrange(5)
    if kind < 3:
        return {"type": "text", "text": rng.text()}
    if kind == 3:
        image = {"url": rng.image_url()}
        if rng.random() < 0.5:
            image["detail"] = rng.pick(["low", "high", "original", "auto", None], ["x"])
        return {"type": "image_url", "image_url": image}
    fields = {"file_data": 0.9, "file_id": 0.1, "filename": 0.3}
    kept = {name: "x" for name, share in fields.items() if rng.random() < share}
    return {"type": "file"} | {name: rng.image_url() for name in kept}


def content(rng):
    if rng.random() < 0.6:
        return rng.text()
    return [block(rng) for _ in range(rng.randrange(4))]


def turn(rng):
    """Messages of one step of a conversation; results mostly answer the calls."""
    kind = rng.randrange(8)
    if kind == 0:
        return [{"role": "system", "content": content(rng)}]
    if kind in (1, 2):
        return [{"role": "user", "content": content(rng), "name": "n"}]
    if kind == 3:
        return [{"role": "latest_reminder", "content": rng.text()}]
    made = {"role": "assistant", "content": rng.text() if rng.random() < 0.8 else content(rng)}
    if rng.random() < 0.4:
        made["reasoning_content"] = rng.choice(["", "why", None])
    if rng.random() < 0.1:
        made["prefix"] = rng.pick([False], [True], 0.2)
    if rng.random() < (0.03 if kind in (4, 5) else 0.4):
        made["content"] = None
    if kind in (4, 5):
        return [made]
    ids = rng.sample(CALL_IDS, rng.pick([1, 1, 2, 3], [0]))
    if rng.random() < 0.05:
        ids += ids[:1]
    made["tool_calls"] = [
        {"id": i, "type": "function", "function": {"name": rng.choice("fg"), "arguments": "{}"}}
        for i in ids
    ]
    answered = rng.sample(ids, len(ids)) if rng.random() < 0.96 else rng.sample(CALL_IDS, 2)
    results = [{"role": "tool", "content": content(rng), "tool_call_id": i} for i in answered]
    return [made, *results]


def response_format(rng):
    kind = rng.choice(["text", "json_object", "json_schema", "json_schema", "regex"])
    made = {"type": kind}
    if kind == "json_schema":
        made["json_schema"] = {"name": "n", "schema": rng.parameters()}
        if rng.random() < 0.5:
            made["json_schema"]["strict"] = rng.choice([True, False])
    if kind == "regex":
        made["regex"] = rng.choice(["a+", "(", ""])
    return made


USUAL = {
    "frequency_penalty": [0, 2, -2],
    "presence_penalty": [0, 1.99],
    "logprobs": [True, True, False],
    "max_tokens": [1, 100, 393216],
    "n": [1],
    "seed": [0, 7, 2**63 - 1],
    "stop": ["a", ["a", "b"], [], ["x"] * 16],
    "stream": [True, False],
    "temperature": [0, 0.1, 1, 2],
    "top_p": [0.1, 0.95, 0.96, 1],
    "parallel_tool_calls": [True, False],
    "thinking": [
        {"type": "enabled"},
        {"type": "disabled"},
        {"type": "disabled"},
        {"type": "adaptive"},
    ],
    "max_completion_tokens": [5],
    "user": ["u"],
}
ODD = {
    "frequency_penalty": [2.5],
    "presence_penalty": [-2.01],
    "top_logprobs": [0, 5, 20, 21, 256],
    "max_tokens": [0, 393217, 2**32],
    "n": [2, 0],
    "seed": [2**63],
    "stop": ["", ["a", ""], ["x"] * 17],
    "stream_options": [{}, {"include_usage": True}],
    "temperature": [2.1, -0.1, 1e40],
    "top_p": [0, 1.01],
}


def settings(rng):
    made = rng.settings(USUAL, ODD)
    if rng.random() < 0.3:
        made["reasoning_effort"] = rng.effort()
    if made.get("stream") and rng.random() < 0.5:
        made["stream_options"] = {"include_usage": rng.choice([True, False])}
    if made.get("logprobs") and rng.random() < 0.5:
        made["top_logprobs"] = rng.choice([0, 5, 20])
    if rng.random() < 0.25:
        made["response_format"] = response_format(rng)
    return made


def tool_choice(rng):
    if rng.random() < 0.7:
        return rng.pick(["none", "auto", "required"], ["x"])
    return {"type": "function", "function": {"name": rng.choice("fgz")}}


def make_body(rng):
    messages = [message for _ in range(rng.pick([1, 1, 2, 3, 5], [0])) for message in turn(rng)]
    body = {"model": rng.model(), "messages": messages}
    if messages and rng.random() < 0.1:
        last = {"role": "assistant", "content": rng.text(), "prefix": True}
        messages.append(last | {"reasoning_content": rng.choice([None, "", "r"])})
    elif rng.random() < 0.6:
        names = rng.sample("fghijk", rng.choice([0, 1, 2, 3]))
        functions = [function(rng, rng.pick([name], names)) for name in names]
        if rng.random() < 0.9:
            is_strict = rng.choice([True, False])
            functions = [made | {"strict": is_strict} for made in functions]
        body["tools"] = [{"type": "function", "function": made} for made in functions]
    if rng.random() < 0.4:
        body["tool_choice"] = tool_choice(rng)
    return body | settings(rng)


def test_requests_convert_like_the_oracle(agree, drawing, convert, seeds):
    agree(seeds, drawing("ChatCompletionRequest", make_body), convert)
