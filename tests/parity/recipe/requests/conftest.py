"""Random requests: the parts that protocols share, mutation, and all that shows of a conversion.

Two things are not compared: the wording of what is wrong with a type or a schema, and what a list
means in the place of an object (the oracle's parser takes its items for the fields in the order
of their declaration, an accident that is no part of the protocol; we refuse).
"""

import copy
import json
import random
import re
from unittest.mock import ANY

import deepinfer_recipe
import pytest

LIST_FOR_OBJECT = re.compile(
    "invalid type: sequence, expected (?:struct|internally tagged|a map)"
    "|invalid type: integer .*, expected variant identifier"
)

TEXTS = [
    "", " ", "hi", "Json", "be brief", "<｜image｜>", "x<｜User｜>y", "</think>", "日本😀",
    "\n", "a\n\nb", "[Unsupported Image]", "[IMG]",
]  # fmt: skip
PIXEL = "iVBORw0KGgo="
URLS = [
    "https://h/a.png", "http://h", "HTTP://x", f"data:image/png;base64,{PIXEL}",
    "data:image/webp;base64,", f"DATA:image/JPG;base64,{PIXEL}", "data:image/png;base64,AA==",
    " data:image/png;base64,AAAA",
]  # fmt: skip
ODD_URLS = [
    "ftp://h", "", "data:", "data:,x", "httpx", "data:image/gif;base64,!",
    f"data:image/bmp;base64,{PIXEL}", f"data:text/plain;base64,{PIXEL}",
    f"data:image/png;charset=x;base64,{PIXEL}", "data:;base64,AAAA", f"data:image/png,{PIXEL}",
    "data:image/png;base64,AA=", "data:image/png;base64,AAA", "data:image/png ;base64,AAAA",
    "data:image/png;base64,A A%41A#x", "data:image/png,base64,",
]  # fmt: skip
LEAVES = [
    {"type": "string"}, {"type": "string", "enum": ["a"], "minLength": 1, "description": "d"},
    {"type": "integer", "minimum": 0, "default": 3},
    {"type": "number", "multipleOf": 0.5, "const": 1e-7}, {"type": "boolean"},
    {"type": "null", "title": "t"}, {"type": ["string", "null"]}, {"$ref": "#"},
    {"type": "string", "format": "email"}, {"type": "string", "pattern": "^a+$"},
]  # fmt: skip
ODD_LEAVES = [
    {"type": "string", "format": "odd"}, {}, True, {"type": "x"},
    {"type": "string", "pattern": "("}, {"enum": [1]}, {"type": "integer", "maximum": 2.0},
    {"type": "integer", "minimum": -(2**63)},
]  # fmt: skip


class Draw(random.Random):
    """A source of random values that draws what all protocols have."""

    def pick(self, usual, odd, share=0.04):
        """Return one of the usual values, or rarely an odd one, which most often is an error."""
        return self.choice(odd if self.random() < share else usual)

    def text(self):
        return self.choice(TEXTS)

    def image_url(self):
        return self.pick(URLS, ODD_URLS, 0.2)

    def model(self):
        return self.pick(["DeepSeek-V4-Pro", "DeepSeek-V4.1-Flash"], ["alias", "x"], 0.08)

    def effort(self):
        efforts = ["none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max"]
        return self.pick(efforts, ["x"], 0.02)

    def settings(self, usual, odd):
        """Return some settings with usual values, and now and then one with an odd value."""
        made = {name: self.choice(v) for name, v in usual.items() if self.random() < 0.2}
        if self.random() < 0.15:
            name = self.choice(list(odd))
            made[name] = self.choice(odd[name])
        return made

    def schema(self, depth=2):
        kind = self.randrange(6) if depth else 0
        if kind < 3:
            return copy.copy(self.pick(LEAVES, ODD_LEAVES))
        if kind == 3:
            return {"type": "array", "items": self.schema(depth - 1)}
        if kind == 4:
            return {"anyOf": [self.schema(depth - 1) for _ in range(self.randrange(1, 3))]}
        return self.object_schema(depth - 1)

    def object_schema(self, depth=2):
        properties = {self.choice("abcé"): self.schema(depth) for _ in range(self.randrange(3))}
        made = {"type": "object"}
        if properties or self.random() < 0.5:
            made["properties"] = properties
        if self.random() < 0.5:
            made["required"] = [*properties, *self.pick([[]], [["z"]])]
        if self.random() < 0.4:
            made["additionalProperties"] = self.pick([False], [True], 0.2)
        for name, value in {"$defs": {"k": {}}, "description": "d", "title": "t"}.items():
            if self.random() < 0.15:
                made[name] = value
        return made

    def parameters(self):
        return self.schema() if self.random() < 0.04 else self.object_schema()

    def options(self):
        made = {}
        if self.random() < 0.5:
            made["default_thinking_mode"] = self.random() < 0.3
        if self.random() < 0.3:
            made["reasoning_content_behavior"] = self.choice(["FillEmpty", "Reject"])
        for name in ("responses_web_search", "messages_web_search"):
            if self.random() < 0.3:
                made[name] = self.choice(["Drop", "Reject"])
        if self.random() < 0.1:
            made["thinking_max_tokens_upper_bound"] = self.choice([50, 1, 0])
            made["non_thinking_max_tokens_upper_bound"] = 60
        if self.random() < 0.3:
            made["aliases"] = {"alias": self.choice(["DeepseekV4Pro", "DeepseekV41Flash"])}
        if self.random() < 0.1:
            made["specials"] = {"image": self.choice(["[IMG]", "a"]), "user": "U", "dsml": "D"}
        return made

    def context(self):
        """Return prompt length and limit for the rule of max_tokens, or rather nothing."""
        sizes = [(10, 100), (10, 9), (0, 10**6), (10**5, 10**5), (9, 10)]
        return self.choice(sizes) if self.random() < 0.2 else None


JUNK = [
    None, True, False, 0, 1, -1, 1.5, 300, 2**31, 2**32, 2**63, 2**64 - 1, -(2**63), 1e300,
    -0.0, "", "x", "json", "auto", "text", [], {}, [None], ["x"], [[]],
    {"type": "text", "text": "x"}, {"type": "function"}, {"type": "x"}, {"x": 1},
]  # fmt: skip


def places(value):
    """Yield (container, key) of every value inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in list(items):
        yield value, key
        if isinstance(item, dict | list):
            yield from places(item)


def mutated(rng, body):
    """Return a JSON object with one value replaced, removed, doubled or copied to another place."""
    body = copy.deepcopy(body)
    container, key = rng.choice(list(places(body)))
    match rng.randrange(4):
        case 0:
            container[key] = copy.deepcopy(rng.choice(JUNK))
        case 1:
            del container[key]
        case 2:
            other, name = rng.choice(list(places(body)))
            container[key] = copy.deepcopy(other[name])
        case 3:
            if isinstance(container, list):
                container.insert(key, copy.deepcopy(container[key]))
            else:
                container[rng.choice(["x", "type", "strict", "name", "content"])] = rng.choice(JUNK)
    return body


def as_sent(rng, body):
    """Return a body as it may arrive: mutated or not, a dict or JSON text, now and then damaged."""
    for _ in range(rng.choice([0, 0, 0, 0, 1, 1, 3])):
        body = mutated(rng, body)
        if not body:
            break
    if rng.random() < 0.8:
        return body
    text = json.dumps(body, ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, 1]))
    if rng.random() < 0.3:
        place = rng.randrange(len(text))
        text = text[:place] + rng.choice(["", *'"{}[]:,0-\\\n', "1e999"]) + text[place + 1 :]
    return text if rng.random() < 0.7 else text.encode()


@pytest.fixture(scope="session")
def drawing():
    """Return a function of seeds that draws cases with a protocol's own function for bodies."""

    def make(request, draw_body):
        def draw(seed):
            rng = Draw(seed)
            case = {"request": request, "options": rng.options(), "context": rng.context()}
            return case | {"body": as_sent(rng, draw_body(rng))}

        return draw

    return make


@pytest.fixture(scope="session")
def convert(normalized):
    """Convert a request; return everything that can be seen of the result, or the error."""

    def run(side, case):
        try:
            return converted(side, case, normalized)
        except side.api.ConversionError as error:
            return [error.status_code, hard_part(json.loads(error.body))]
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            if side.api is deepinfer_recipe and LIST_FOR_OBJECT.search(str(error)):
                return ANY
            kind = type(error).__name__
            kind = "ValueError" if kind in ("BodyError", "JsonTextError") else kind
            return [kind, re.match(r"invalid [\w ]+:|", str(error)).group()]

    return run


def hard_part(body):
    """Cut what is no part of the protocol: the wording of schema validators, and which one of
    several unanswered calls is named (the oracle takes them in random order)."""
    message = body["error"]["message"]
    if "schema must be a JSON Schema of" not in message:
        message = re.sub(r"^(Invalid schema for function '.*?': ).*", r"\1", message, flags=re.S)
    message = re.sub(
        r"^(Invalid (?:json|tool parameters) schema ?: ).*", r"\1", message, flags=re.S
    )
    message = re.sub(r"^(No tool output found for tool call ).*", r"\1", message, flags=re.S)
    body["error"]["message"] = message
    return body


def converted(side, case, normalized):
    api = side.api
    request_type = getattr(api, case["request"])
    request = request_type(case["body"])
    options = build_options(api, case["options"])
    dump = {"model": request.model}
    namespaces, echo = {}, None
    if case["request"] == "ResponsesRequest":
        namespaces, echo = request.namespace_tool_map(options), request.echo()
        names = (
            "instructions",
            "max_output_tokens",
            "temperature",
            "top_p",
            "top_logprobs",
            "user",
        )
        dump["echo"] = {name: getattr(echo, name) for name in names}
        dump["namespaces"] = namespaces
    result = request.convert(options)
    generator = request_type.chunk_generator(result, "resp-1", "m")
    if echo is not None:
        generator = generator.with_namespace_tool_map(namespaces).with_echo(echo)
    processor = api.StreamProcessor(generator, result.parsing_options)
    events = processor.push(api.InferenceChunk.ready()) + processor.finish()
    dump["events"] = [normalized(json.loads(event.to_json())) for event in events]
    dump |= request_dump(result)
    specials = {"special_tokens": options.special_tokens}
    encoding = side.encodings[dump["version"]].with_special_tokens(**specials)
    prompt = encoding.render_conversation(result.conversation)
    dump["prompt"] = [prompt.prompt, [tuple(pair) for pair in prompt.special_ranges]]
    dump["images"] = [image_dump(image) for image in prompt.image_sources]
    if case["context"] is not None:
        dump["max_tokens"] = result.resolve_max_tokens(*case["context"])
    return dump


def build_options(api, given):
    given = dict(given)
    aliases, specials = given.pop("aliases", {}), given.pop("specials", None)
    kinds = {
        "reasoning_content_behavior": api.ReasoningContentBehavior,
        "responses_web_search": api.WebSearchBehavior,
        "messages_web_search": api.WebSearchBehavior,
    }
    for name, kind in kinds.items():
        if name in given:
            given[name] = getattr(kind, given[name])
    options = api.ConversionOptions(**given)
    for model, version in aliases.items():
        options = options.with_model_alias(model, getattr(api.ModelVersion, version))
    return options.with_special_tokens(api.SpecialTokens(**specials)) if specials else options


def image_dump(image):
    return [image.kind, image.url or image.data_url, image.detail, image.path]


def tool_dump(tool):
    names = ("name", "description", "parameters", "strict", "defer_loading")
    return json.dumps({name: getattr(tool, name) for name in names})  # the order of keys matters


def message_dump(message):
    dump = {
        name: getattr(message, name)
        for name in ("role", "content", "reasoning_content", "tool_call_id", "prefix")
    }
    dump["images"] = [image_dump(image) for image in message.image_sources]
    calls = message.tool_calls
    dump["calls"] = calls and [[call.id, call.name, call.arguments] for call in calls]
    tools = getattr(message, "tools", None)
    dump["tools"] = tools and [tool_dump(tool) for tool in tools]
    return dump


def request_dump(result):
    conversation, inference = result.conversation, result.inference_options
    parsing, constraint = result.parsing_options, inference.output_constraint
    settings = (
        "thinking_mode",
        "tool_choice",
        "reasoning_effort",
        "response_format",
        "response_regex",
    )
    sampling = ("max_tokens", "temperature", "top_p", "logprobs", "top_logprobs", "seed")
    flags = ("parse_tool_calls", "starts_in_tool_calls", "parse_json_output", "stop_sequences")
    stage = parsing.thinking_initial_stage
    return {
        "messages": [message_dump(message) for message in conversation.messages],
        "tools": [tool_dump(tool) for tool in conversation.tools],
        "settings": [getattr(conversation, name) for name in settings],
        "schema": json.dumps(conversation.response_schema),
        "inference": {name: getattr(inference, name) for name in sampling},
        "constraint": constraint and [constraint.kind, constraint.schema],
        "parsing": [getattr(parsing, name) for name in flags],
        "stage": stage and str(stage).rpartition(".")[2],
        "stream": result.stream,
        "version": str(result.model_version).rpartition(".")[2],
    }
