"""Every compatibility vector: inputs with the outputs that DeepSeek's own library gives."""

import json
import re

import deepinfer_recipe as api
import pytest

REQUESTS = {
    "chat": (api.ChatCompletionRequest, api.ChatCompletionResponse),
    "messages": (api.MessagesRequest, api.MessagesResponse),
    "responses": (api.ResponsesRequest, api.ResponsesResponse),
}
ENCODINGS = {
    "v4": api.DeepseekV4Encoding,
    "v4_1": api.DeepseekV41Encoding,
    "DeepseekV4Pro": api.DeepseekV4Encoding,
    "DeepseekV41Flash": api.DeepseekV41Encoding,
}
CALL_ID = re.compile(r"(call_\d\d_)[A-Za-z0-9]{20}\d{4}")


def normalized(value):
    """Blank what is random or depends on the clock, as the vectors do."""
    if isinstance(value, dict):
        value = {key: normalized(item) for key, item in value.items()}
        for key in ("created", "created_at", "completed_at"):
            if value.get(key) is not None:
                value[key] = 0
        return value
    if isinstance(value, list):
        return [normalized(item) for item in value]
    return CALL_ID.sub(r"\1ID", value) if isinstance(value, str) else value


def build_image(value):
    return api.UrlImageSource(value) if isinstance(value, str) else api.UrlImageSource(**value)


def build_tools(tools):
    return None if tools is None else [api.ToolDefinition(**tool) for tool in tools]


def build_message(given):
    given = dict(given)
    role = given.pop("role")
    if "image_sources" in given:
        given["image_sources"] = [build_image(value) for value in given["image_sources"]]
    if role == "system":
        given["tools"] = build_tools(given.get("tools"))
    if given.get("tool_calls") is not None:
        given["tool_calls"] = [api.ToolCall(**call) for call in given["tool_calls"]]
    kinds = {
        "system": api.SystemMessage,
        "user": api.UserMessage,
        "assistant": api.AssistantMessage,
        "tool": api.ToolMessage,
        "latest_reminder": api.LatestReminderMessage,
    }
    return kinds[role](**given)


def build_conversation(given):
    given = dict(given)
    messages = [build_message(message) for message in given.pop("messages", [])]
    return api.Conversation(messages, tools=build_tools(given.pop("tools", [])), **given)


def build_options(given):
    given = dict(given or {})
    aliases, specials = given.pop("model_aliases", {}), given.pop("special_tokens", None)
    enums = {
        "reasoning_content_behavior": api.ReasoningContentBehavior,
        "responses_web_search": api.WebSearchBehavior,
        "messages_web_search": api.WebSearchBehavior,
    }
    for name, kind in enums.items():
        if name in given:
            given[name] = kind[given[name]]
    options = api.ConversionOptions(**given)
    for model, version in aliases.items():
        options = options.with_model_alias(model, api.ModelVersion[version])
    return options.with_special_tokens(api.SpecialTokens(**specials)) if specials else options


def image_dump(source):
    value = source.url or source.data_url
    return {"kind": source.kind, "detail": source.detail, "path": source.path, "value": value}


def check_prompt(encoding, conversation, expected, tokenizer):
    rendered = encoding.render_conversation(conversation)
    assert rendered.prompt == expected["prompt"]
    assert [list(pair) for pair in rendered.special_ranges] == expected["special_ranges"]
    if "image_sources" in expected:
        assert [image_dump(source) for source in rendered.image_sources] == expected[
            "image_sources"
        ]
    if "ids" in expected:
        assert encoding.with_tokenizer(tokenizer).encode(conversation) == expected["ids"]
    if "encode_error" in expected:
        with pytest.raises(RuntimeError) as caught:
            encoding.with_tokenizer(tokenizer).encode(conversation)
        assert str(caught.value) == expected["encode_error"]


def test_conversations_render_and_encode(vectors, tokenizer):
    for record in vectors("encode_conversations"):
        conversation = build_conversation(record["conversation"])
        for version in ("v4", "v4_1"):
            encoding = ENCODINGS[version]()
            if "special_tokens" in record:
                specials = api.SpecialTokens(**record["special_tokens"])
                encoding = encoding.with_special_tokens(specials)
            check_prompt(encoding, conversation, record[version], tokenizer)


def tool_dump(tool):
    names = ("name", "description", "parameters", "strict", "defer_loading")
    return {name: getattr(tool, name) for name in names}


def message_dump(message):
    dump = {"role": message.role, "content": message.content}
    if message.role == "assistant":
        dump["reasoning_content"] = message.reasoning_content
        dump["prefix"] = message.prefix
        names = ("id", "name", "arguments")
        calls = message.tool_calls
        dump["tool_calls"] = calls and [
            {name: getattr(call, name) for name in names} for call in calls
        ]
    if message.tool_call_id is not None:
        dump["tool_call_id"] = message.tool_call_id
    if message.image_sources:
        dump["image_sources"] = [image_dump(source) for source in message.image_sources]
    if message.role == "system" and message.tools is not None:
        dump["tools"] = [tool_dump(tool) for tool in message.tools]
    return dump


def parsing_dump(options):
    stage = options.thinking_initial_stage
    return {
        "parse_tool_calls": options.parse_tool_calls,
        "starts_in_tool_calls": options.starts_in_tool_calls,
        "parse_json_output": options.parse_json_output,
        "thinking_initial_stage": None if stage is None else stage.name,
        "stop_sequences": options.stop_sequences,
    }


def request_dump(request):
    conversation, inference = request.conversation, request.inference_options
    constraint = inference.output_constraint
    names = ("thinking_mode", "tool_choice", "reasoning_effort", "response_format",
             "response_schema", "response_regex")  # fmt: skip
    inference_names = ("max_tokens", "temperature", "top_p", "logprobs", "top_logprobs", "seed")
    return {
        "conversation": {
            "messages": [message_dump(message) for message in conversation.messages],
            "tools": [tool_dump(tool) for tool in conversation.tools],
            **{name: getattr(conversation, name) for name in names},
        },
        "inference_options": {
            **{name: getattr(inference, name) for name in inference_names},
            "output_constraint": None
            if constraint is None
            else {"kind": constraint.kind, "schema": constraint.schema},
        },
        "parsing_options": parsing_dump(request.parsing_options),
        "stream": request.stream,
        "model_version": request.model_version.name,
    }


def test_requests_convert(vectors, tokenizer):
    for record in vectors("encode_requests"):
        request = REQUESTS[record["protocol"]][0](record["body"])
        options = build_options(record.get("options"))
        expected = dict(record["expected"])
        if "namespace_tool_map" in expected:
            names = request.namespace_tool_map(options)
            assert {k: list(v) for k, v in names.items()} == expected.pop("namespace_tool_map")
        converted = request.convert(options)
        assert json.loads(json.dumps(request_dump(converted))) == expected, record["id"]
        if "render" in record:
            encoding = ENCODINGS[converted.model_version.name]()
            check_prompt(encoding, converted.conversation, record["render"], tokenizer)


def make_processor(record, tokenizer):
    request_type, response_type = REQUESTS[record["protocol"]]
    request = request_type(record["body"])
    options = api.ConversionOptions()
    is_responses = record["protocol"] == "responses"
    namespaces = request.namespace_tool_map(options) if is_responses else {}
    echo = request.echo() if is_responses else None
    model = request.model
    converted = request.convert(options)
    generator = request_type.chunk_generator(converted, "resp-1", model)
    if is_responses:
        generator = generator.with_namespace_tool_map(namespaces).with_echo(echo)
    parsing = converted.parsing_options
    return api.StreamProcessor(generator, parsing, tokenizer), response_type, parsing


def usage(prompt_tokens, cache_hit):
    return api.PromptUsage(prompt_tokens=prompt_tokens, prompt_cache_hit_tokens=cache_hit)


def test_complete_outputs_decode(vectors, tokenizer):
    for record in vectors("decode"):
        processor, response_type, _ = make_processor(record, tokenizer)
        prompt_usage = usage(*record["usage"])
        events = processor.push(
            api.InferenceChunk.ready(prompt_usage=prompt_usage, system_fingerprint="fp_x")
        )
        steps = [
            api.InferenceChunk.text(record["text"], token_count=record["text_tokens"]),
            api.InferenceChunk.finish(api.InferenceFinishReason[record["finish"]]),
        ]
        for step in steps:
            if not processor.finished:
                events += processor.push(step)
        response = response_type("resp-1", record["body"]["model"], 0, *record["usage"])
        for event in events:
            response.accumulate(event)
        assert normalized(json.loads(response.to_json())) == record["expected"], record["id"]


def build_chunk(kind, *values):
    match kind:
        case "ready":
            return api.InferenceChunk.ready(
                prompt_usage=usage(values[0], values[1]), system_fingerprint=values[2]
            )
        case "text":
            return api.InferenceChunk.text(*values)
        case "tokens":
            return api.InferenceChunk.tokens(*values)
        case "finish":
            return api.InferenceChunk.finish(api.InferenceFinishReason[values[0]])


def test_chunked_outputs_stream(vectors, tokenizer):
    for record in vectors("stream"):
        processor, response_type, parsing = make_processor(record, tokenizer)
        assert parsing_dump(parsing) == record["parsing_options"]
        pushes = []
        for chunk in record["chunks"][: record["chunks_used"]]:
            pushes.append(processor.push(build_chunk(*chunk)))
        assert processor.finished == record["finished_early"]
        pushes.append(processor.finish())
        shown = [
            [
                {
                    "event": response_type.sse_event_name(event),
                    "data": normalized(json.loads(event.to_json())),
                }
                for event in events
            ]
            for events in pushes
        ]
        assert shown == record["events_per_push"], record["id"]


def test_invalid_requests_fail(vectors):
    for record in vectors("errors"):
        request_type = REQUESTS[record["protocol"]][0]
        body = record.get("raw", record.get("body"))
        kind = api.ConversionError if record["error"] == "ConversionError" else ValueError
        with pytest.raises(kind) as caught:
            request_type(body).convert(build_options(record.get("options")))
        if kind is api.ConversionError:
            assert caught.value.status_code == record["status_code"], record["id"]
            assert json.loads(caught.value.body) == record["response_body"], record["id"]
        else:
            prefix = record["message"].split(": ")[0]
            assert str(caught.value).startswith(prefix), record["id"]


def test_max_tokens_resolve(vectors):
    for record in vectors("misc")["resolve_max_tokens"]:
        request = api.ChatCompletionRequest(record["body"]).convert(api.ConversionOptions())
        arguments = record["prompt_tokens"], record["context_limit"]
        if "max_tokens" in record["expected"]:
            assert request.resolve_max_tokens(*arguments) == record["expected"]["max_tokens"]
            continue
        with pytest.raises(api.ConversionError) as caught:
            request.resolve_max_tokens(*arguments)
        assert json.loads(caught.value.body) == record["expected"]["response_body"]


def test_tokenizer_reads_special_tokens_in_text(vectors, tokenizer):
    for record in vectors("misc")["tokenizer_encode"]:
        assert tokenizer.encode(record["text"]) == record["ids"]


def test_parser_follows_special_token_spellings(vectors):
    for record in vectors("misc")["parser_special_tokens"]:
        request = api.ChatCompletionRequest(record["body"])
        model = request.model
        converted = request.convert(api.ConversionOptions())
        generator = api.ChatCompletionRequest.chunk_generator(converted, "resp-1", model)
        stage = record["thinking_initial_stage"]
        options = api.ParsingOptions(
            parse_tool_calls=record["parse_tool_calls"],
            thinking_initial_stage=stage and api.ThinkingInitialStage[stage],
            special_tokens=api.SpecialTokens(**record["special_tokens"]),
        )
        processor = api.StreamProcessor(generator, options)
        response = api.ChatCompletionResponse("resp-1", model, 0, 0, 0)
        stop = api.InferenceFinishReason.Stop
        text = api.InferenceChunk.text(record["text"], token_count=1)
        for chunk in (text, api.InferenceChunk.finish(stop)):
            for event in processor.push(chunk):
                response.accumulate(event)
        assert normalized(json.loads(response.to_json())) == record["expected"]
