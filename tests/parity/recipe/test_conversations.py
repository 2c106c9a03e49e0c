"""Random conversations: prompt, special ranges, images and ids equal the oracle's."""

import json
import math
import random
import struct

WORDS = [
    "", " ", "a", "hi", "\n", "\n\n", "日本", "😀", "é", "<｜User｜>", "</think>", "<think>",
    "｜DSML｜", "<｜image｜>", "[IMG]", "<｜System｜>", "\x00", "\x7f", '"', "\\", "json",
    "<｜begin▁of▁sentence｜>", "<tool_result>", "12345", "\u2028", "x" * 40, "e\u0301", "\r\n",
    "\t", "🇩🇪", "👩\u200d👧", "don't", "  \n ", "\ufeff", "١٢٣", "ǅ", "\U0010ffff", "<|User|>",
    "｜", "▁",
]  # fmt: skip
VALUES = [
    None, True, False, 0, -1, 1.0, 1e-7, 0.00012345, 1e16, 123456789012345678, 2**63, 1.5e300, -0.0,
    "", "s", "é\n", [], {}, [1, [2.5, None]], {"k": {"n": [1e-5]}, "m": "x"},
]  # fmt: skip
ARGUMENTS = [
    "", "{}", "[]", "nope", '{"a":1}', '{"a":"x","b":[1,2.0]}', '{"a":1,"a":"z","b":null}', " {} ",
    '{"a":NaN}', '{"a":1} x', '{"a":"\\ud800"}', '{"a":"\\ud83d\\ude00"}', "[" * 200, '"str"', "1",
    '{"a":' + "[" * 126 + "]" * 126 + "}", '{"a":' + "[" * 127 + "]" * 127 + "}", '{"a":1e400}',
    '{"a":1e-7,"b":123456789012345678901,"c":-0}', '{"a b":"<｜DSML｜","\\"":"</think>"}', "null",
    '{"a":"\n"}', '{"t":"\\u0000\\b\\f"}', '\ufeff{"a":1}', '{"a":01}', '{"é":1.0}',
]  # fmt: skip
IDS = ["", "1", "2", "10", "b", "a", "é", "call_00"]


def text(rng):
    return "".join(rng.choice(WORDS) for _ in range(rng.randrange(4)))


def number(rng):
    kind = rng.randrange(4)
    if kind == 0:
        return rng.randrange(-(2**63), 2**64)
    if kind == 1:
        return rng.randrange(10**6) * 10.0 ** rng.randrange(-12, 20)
    (value,) = struct.unpack("<d", rng.randbytes(8))
    return value if math.isfinite(value) else rng.randrange(-9, 99)


def value(rng, depth=3):
    kind = rng.randrange(6 if depth else 4)
    if kind == 0:
        return rng.choice(VALUES)
    if kind in (1, 2):
        return number(rng)
    if kind == 3:
        return text(rng)
    if kind == 4:
        return [value(rng, depth - 1) for _ in range(rng.randrange(3))]
    return {text(rng): value(rng, depth - 1) for _ in range(rng.randrange(3))}


def arguments(rng):
    """JSON text of a call, at times with one character changed."""
    if rng.random() < 0.4:
        return rng.choice(ARGUMENTS)
    made = json.dumps({text(rng): value(rng) for _ in range(rng.randrange(4))},
                      ensure_ascii=rng.random() < 0.3, indent=rng.choice([None, 1]))  # fmt: skip
    if rng.random() < 0.3:
        place = rng.randrange(len(made))
        made = made[:place] + rng.choice(["", *'"\\{}[],:0e-.\n', "\\ud800"]) + made[place + 1 :]
    return made


def tool(rng):
    return {
        "name": rng.choice(["f", "g", "", 'q"', "get_tide"]),
        "description": rng.choice([None, "", text(rng)]),
        "parameters": rng.choice([None, value(rng), {"type": "object", "x": value(rng)}]),
        "defer_loading": rng.random() < 0.2,
    }


def message(rng):
    role = rng.choice(["system", "user", "user", "assistant", "assistant", "tool", "tool",
                       "latest_reminder"])  # fmt: skip
    made = {"role": role, "content": text(rng)}
    if role in ("system", "user", "tool") and rng.random() < 0.25:
        made["images"] = [
            (
                f"https://h/{rng.randrange(9)}",
                rng.choice(["low", "high", "original", "auto"]),
                text(rng),
            )
            for _ in range(rng.randrange(4))
        ]
        made["image_token"] = rng.choice([None, None, "[IMG]", "a"])
    if role == "system" and rng.random() < 0.3:
        made["tools"] = [tool(rng) for _ in range(rng.randrange(3))]
    if role == "tool":
        made["id"] = rng.choice([None, *IDS])
    if role == "assistant":
        made["reasoning"] = rng.choice([None, "", text(rng)])
        made["prefix"] = rng.random() < 0.2
        if rng.random() < 0.5:
            made["calls"] = [
                (rng.choice(IDS), rng.choice(["f", 'g"', ""]), arguments(rng))
                for _ in range(rng.randrange(4))
            ]
    return made


def draw(seed):
    rng = random.Random(seed)
    made = {
        "messages": [message(rng) for _ in range(rng.choice([0, 1, 2, 3, 5, 8]))],
        "thinking_mode": rng.random() < 0.6,
        "tools": [tool(rng) for _ in range(rng.choice([0, 0, 1, 3]))],
        "tool_choice": rng.choice(["auto", "auto", "none", "required"]),
        "reasoning_effort": rng.choice([None, "low", "high", "xhigh", "max"]),
    }
    kind = rng.randrange(6)
    if kind == 0:
        made["response_format"] = "json_object"
    elif kind == 1:
        made["response_schema"] = value(rng)
    elif kind == 2:
        made["response_regex"] = text(rng)
    specials = {}
    if rng.random() < 0.2:
        for name in rng.sample(
            ["bos", "eos", "user", "dsml", "thinking_end", "system", "image"], 3
        ):
            specials[name] = rng.choice(["", "X", "<｜User｜>", "[IMG]"])
    return made, specials


def build_message(api, made):
    images = [api.UrlImageSource(u, d, path=p) for u, d, p in made.get("images", ())]
    token = {"image_token": made["image_token"]} if made.get("image_token") else {}
    role, content = made["role"], made["content"]
    if role == "system":
        tools = made.get("tools")
        tools = None if tools is None else [api.ToolDefinition(**t) for t in tools]
        return api.SystemMessage(content, images, tools, **token)
    if role == "user":
        return api.UserMessage(content, images, **token)
    if role == "tool":
        return api.ToolMessage(content, made["id"], images, **token)
    if role == "latest_reminder":
        return api.LatestReminderMessage(content)
    calls = made.get("calls")
    calls = None if calls is None else [api.ToolCall(*call) for call in calls]
    return api.AssistantMessage(content, made["reasoning"], calls, made["prefix"])


def build_conversation(api, made):
    made = dict(made)
    messages = [build_message(api, message) for message in made.pop("messages")]
    tools = [api.ToolDefinition(**tool) for tool in made.pop("tools")]
    return api.Conversation(messages, tools=tools, **made)


def run(side, case):
    made, specials = case
    conversation = build_conversation(side.api, made)
    results = []
    for encoding in side.encodings.values():
        if specials:
            encoding = encoding.with_special_tokens(side.api.SpecialTokens(**specials))
        prompt = encoding.render_conversation(conversation)
        images = [(image.url, image.detail, image.path) for image in prompt.image_sources]
        try:
            ids = encoding.encode(conversation)
        except RuntimeError as error:
            ids = str(error)
        results.append([prompt.prompt, [tuple(r) for r in prompt.special_ranges], images, ids])
    return results


def test_prompts_ranges_and_ids_equal_the_oracle(agree, seeds):
    agree(seeds, draw, run)


def draw_text(seed):
    rng = random.Random(seed)
    return "".join(rng.choice(WORDS) for _ in range(rng.randrange(12)))


def test_texts_with_spelled_out_markers_encode_like_the_oracle(agree, seeds):
    agree(seeds, draw_text, lambda side, text: side.tokenizer.encode(text))
