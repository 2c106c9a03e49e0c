"""A batch job on scripted tokens: shapes, per-row errors, resume, full disks."""

import json
import os
import resource
import signal
from contextlib import contextmanager

import pytest
from deepinfer_core.batch_job import run_batch
from deepinfer_core.errors import ConfigError, PlatformError
from deepinfer_core.jobs.files import journal_path
from deepinfer_core.jobs.rows import parse_row
from deepinfer_core.structured.spec import StructuredOutput


@pytest.fixture
def paths(tmp_path):
    return tmp_path / "in.jsonl", tmp_path / "out.jsonl"


@pytest.fixture
def batch(llm, paths):
    """Write rows, run the job, return its output lines as JSON."""

    def batch(*rows, **options):
        write(paths[0], *rows)
        run_batch(llm, *paths, **options)
        return read(paths[1])

    return batch


def write(path, *rows):
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    path.write_bytes(b"\n".join(lines) + b"\n")


def read(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def plain(number, **fields):
    return {"id": f"row-{number}", "prompt": f"text {number}", "max_tokens": 50, **fields}


def openai(custom_id, url="/v1/chat/completions", **body):
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": "m", **body}}


def test_one_line_for_each_row_in_their_order(batch):
    rows = [plain(n, max_tokens=60 - n) for n in range(50)]
    results = batch(*rows)
    assert [r["id"] for r in results] == [r["id"] for r in rows]
    assert [r["outputs"][0]["text"] for r in results] == [r["prompt"][::-1] for r in rows]
    assert results[7]["usage"] == {
        "prompt_tokens": 6,
        "completion_tokens": 7,
        "total_tokens": 13,
    }


def test_rows_may_have_messages_ids_blank_lines_and_no_id(batch, engine):
    messages = [{"role": "user", "content": "hi"}]
    ids = engine.tokenizer.encode("abc")
    results = batch(
        b"\xef\xbb\xbf" + json.dumps({"prompt": "ab", "max_tokens": 9}).encode(),
        b"   ",
        {"id": 7, "messages": messages, "max_tokens": 9, "tools": []},
        {"prompt_token_ids": ids, "max_tokens": 9, "n": 2, "logprobs": 0},
    )
    assert [r["id"] for r in results] == [1, 7, 4]
    assert results[0]["outputs"][0]["text"] == "ba"
    assert [o["text"] for o in results[2]["outputs"]] == ["cba", "cba"]
    assert results[2]["outputs"][0]["cumulative_logprob"] == -1.0
    assert results[1]["outputs"][0]["finish_reason"] == "length"


BAD_ROWS = [
    (b'{"id": "a", "prompt": ', "not JSON"),
    (b"[1, 2]", "a row is a JSON object, not list"),
    (b'{"id": "a", "prompt": "\xff"}', "not UTF-8"),
    (b"[" * 100_000, "nested too deeply"),
    ({"id": "ok-1", "prompt": "x"}, "already used on line 1"),
    ({"id": "b"}, "exactly one of prompt and messages"),
    ({"id": "c", "prompt": "x", "messages": []}, "exactly one of prompt and messages"),
    ({"id": "d", "prompt": "x", "temprature": 1}, "temprature"),
    ({"id": "e", "prompt": "x", "top_p": 7}, "top_p"),
    ({"id": "f", "prompt": ""}, "empty"),
    ({"id": "g", "prompt": "x" * 5000}, "5000 tokens"),
    ({"id": "h", "prompt": "\ud800"}, "surrogate"),
    ({"id": "i", "messages": "hi"}, "messages is a list"),
    ({"id": "j", "messages": [{"content": "no role"}]}, "role"),
    ({"id": ["k"], "prompt": "x"}, "id is text or a whole number"),
    ({"id": "l", "prompt": 5}, "not int"),
    ({"id": "m", "prompt": "x", "tools": []}, "tools needs messages"),
    ({"id": "n", "prompt": [99999]}, "unknown token id"),
    ({"id": "o", "messages": [{"role": "user"}], "chat_template_kwargs": 3}, "an object"),
]


def test_a_bad_row_costs_only_itself_and_names_its_line(batch):
    good = [{"id": f"ok-{n}", "prompt": "abc", "max_tokens": 9} for n in (1, 2)]
    results = batch(good[0], *(row for row, _ in BAD_ROWS), good[1])
    assert len(results) == len(BAD_ROWS) + 2
    assert results[0]["outputs"][0]["text"] == results[-1]["outputs"][0]["text"] == "cba"
    for line, (result, (_, message)) in enumerate(zip(results[1:-1], BAD_ROWS, strict=True), 2):
        assert message in result["error"]["message"], result
        assert result["line"] == line


def test_openai_chat_rows(batch, engine, say):
    say("hello END")
    message = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
    (result,) = batch(
        openai(
            "c1",
            messages=[message],
            max_completion_tokens=30,
            stop=["END"],
            logprobs=True,
            top_logprobs=0,
            logit_bias={"5": 1.0},
            user="someone",
            seed=5,
            stream=False,
            temperature=None,
        )
    )
    assert result["custom_id"] == "c1"
    assert result["error"] is None
    assert result["response"]["status_code"] == 200
    body = result["response"]["body"]
    assert body["object"] == "chat.completion"
    assert body["model"] == "m"
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "hello ", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert "".join(e["token"] for e in choice["logprobs"]["content"]) == "hello END"
    assert bytes(choice["logprobs"]["content"][0]["bytes"]) == b"h"
    usage = body["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_openai_completion_rows(batch):
    url = "/v1/completions"
    (result,) = batch(openai("c2", url, prompt="abc", max_tokens=9, logprobs=1, top_k=3))
    body = result["response"]["body"]
    assert body["object"] == "text_completion"
    assert body["choices"][0]["text"] == "cba"
    assert body["choices"][0]["logprobs"]["tokens"][:3] == ["c", "b", "a"]


BAD_OPENAI_ROWS = [
    (openai("a", messages=[{"role": "user", "content": "x"}], stream=True), "stream"),
    (openai("b", messages=[], max_tokens=1), "at least one message"),
    (openai("c", url="/v1/embeddings", input="x"), "/v1/embeddings"),
    (openai("d", prompt="x"), "exactly messages"),
    (openai("e", url="/v1/completions", prompt="x", echo=True), "echo"),
    (openai("f", messages=[{"role": "user", "content": "x"}], nope=1), "nope"),
    (
        openai("g", messages=[{"role": "user", "content": "x"}], tool_choice="required"),
        "tool_choice",
    ),
    (
        openai("h", messages=[{"role": "user", "content": "x"}], response_format={"type": "json"}),
        "response_format",
    ),
    ({"custom_id": "i", "url": "/v1/completions", "body": 5}, "body is a JSON object"),
    ({**openai("j", messages=[]), "method": "GET"}, "GET"),
    ({"body": {}}, "custom_id is missing"),
    (openai("k", messages=[{"role": "user", "content": "x"}], logprobs=3), "true or false"),
    ({**openai("l", messages=[]), "extra": 1}, "extra"),
]


def test_bad_openai_rows_keep_their_shape(batch):
    results = batch(*(row for row, _ in BAD_OPENAI_ROWS))
    for line, (result, (row, message)) in enumerate(zip(results, BAD_OPENAI_ROWS, strict=True), 1):
        assert result["custom_id"] == row.get("custom_id")
        assert result["response"]["status_code"] == 400
        error = result["response"]["body"]["error"]
        assert message in error["message"], error
        assert error["message"].startswith(f"line {line}: ")


@pytest.mark.usefixtures("recipe")
def test_what_a_recipe_read_is_in_the_rows(batch, say):
    say("(why)so[f:{}]")
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 90}
    results = batch(
        openai("c1", **chat, logprobs=True), {"id": 2, **chat}, {"id": 3, "prompt": "p"}
    )
    calls = [{"id": "call_0", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    message = {
        "role": "assistant",
        "content": "so",
        "reasoning_content": "why",
        "tool_calls": calls,
    }
    (choice,) = results[0]["response"]["body"]["choices"]
    assert choice["message"] == {**message, "refusal": None}
    assert choice["finish_reason"] == "tool_calls"
    spelled = "".join(e["token"] for e in choice["logprobs"]["content"])
    assert spelled.startswith("(why)so[f:{}]")
    (output,) = results[1]["outputs"]
    assert output["message"] == message
    assert (output["finish_reason"], output["text"]) == ("stop", "(why)so[f:{}]")
    assert "message" not in results[2]["outputs"][0]


@pytest.mark.usefixtures("recipe")
@pytest.mark.parametrize(
    ("field", "text", "reason"),
    [
        ({"max_tokens": 10}, "so[f:{}]" + "x" * 9, "length"),
        ({"stop": "END"}, "so[f:{}]END", "stop"),
        ({}, "so", "stop"),
    ],
)
def test_only_a_model_that_ends_by_itself_ends_with_tool_calls(batch, say, field, text, reason):
    say(text)
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 90, **field}
    (result,) = batch(openai("c1", **body))
    assert result["response"]["body"]["choices"][0]["finish_reason"] == reason


@pytest.mark.usefixtures("recipe")
def test_an_answer_that_cannot_be_read_costs_only_its_row(batch, engine):
    replies = {"good": "so", "bad": "so#"}
    engine._reply = lambda prompt, index: engine.tokenizer.encode(
        replies["bad" if "bad" in engine.tokenizer.decode(prompt) else "good"]
    )
    rows = [{"id": w, "messages": [{"role": "user", "content": w}]} for w in ("good", "bad")]
    good, bad = batch(*rows, defaults={"max_tokens": 50})
    assert good["outputs"][0]["message"]["content"] == "so"
    assert "could not read the answer" in bad["error"]["message"]


@pytest.mark.usefixtures("recipe")
def test_a_response_format_of_openai_is_a_form():
    chat = {"messages": [{"role": "user", "content": "x"}]}

    def form(wanted):
        row = openai("1", **chat, response_format=wanted)
        return parse_row(row, "1", {}).params.structured

    schema = {"type": "object"}
    assert form({"type": "text"}) is None
    assert form({"type": "json_object"}) == StructuredOutput(json_object=True)
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    assert form(wanted) == StructuredOutput(json_schema=schema)
    plain_row = {"id": 1, **chat, "structured": {"regex": "a+"}, "thinking_budget": 3}
    assert parse_row(plain_row, 1, {}).params.structured == StructuredOutput(regex="a+")


def test_what_cannot_be_held_fails_its_own_row_with_what_to_do(batch):
    chat = {"messages": [{"role": "user", "content": "x"}]}
    bodies = [
        {"response_format": {"type": "grammar"}},
        {"response_format": "json"},
        {"tool_choice": "required"},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": "no"}}},
    ]
    results = batch(*(openai(str(n), **chat, **body) for n, body in enumerate(bodies)))
    errors = [r["response"]["body"]["error"] for r in results]
    assert [e["param"] for e in errors] == [*["response_format"] * 2, "tool_choice", "structured"]
    assert "type is text, json_object, or json_schema" in errors[0]["message"]
    assert "allowed: 'auto', 'none'" in errors[2]["message"]


def test_defaults_serve_rows_that_do_not_say(batch):
    results = batch(
        {"id": 1, "prompt": "abcdef"},
        {"id": 2, "prompt": "abcdef", "max_tokens": 2},
        defaults={"max_tokens": 4},
    )
    assert [r["outputs"][0]["text"] for r in results] == ["fedc", "fe"]


def test_rows_without_a_seed_get_one_of_their_own_that_does_not_change(llm, paths, tmp_path):
    write(paths[0], plain(1), plain(2), plain(3, seed=5))
    run_batch(llm, *paths)
    run_batch(llm, paths[0], tmp_path / "other.jsonl")
    seeds = [r["outputs"][0]["seed"] for r in read(paths[1])]
    assert len(set(seeds)) == 3
    assert seeds[2] == 5
    assert paths[1].read_bytes() == (tmp_path / "other.jsonl").read_bytes()


def test_what_is_in_the_way_is_not_overwritten(batch, paths, llm):
    batch(plain(1))
    with pytest.raises(ConfigError, match="--resume"):
        run_batch(llm, *paths)
    journal_path(paths[1]).unlink()
    with pytest.raises(ConfigError, match="the output exists"):
        run_batch(llm, *paths)
    with pytest.raises(ConfigError, match="nothing to resume"):
        run_batch(llm, *paths, resume=True)
    with pytest.raises(ConfigError, match="same file"):
        run_batch(llm, paths[0], paths[0])


def test_paths_that_cannot_be_used(llm, paths, tmp_path):
    with pytest.raises(ConfigError, match="cannot read"):
        run_batch(llm, *paths)
    write(paths[0], plain(1))
    with pytest.raises(ConfigError, match="does not exist"):
        run_batch(llm, paths[0], tmp_path / "no" / "out.jsonl")
    with pytest.raises(ConfigError, match="is a directory"):
        run_batch(llm, paths[0], tmp_path)
    with pytest.raises(ConfigError, match="cannot read"):
        run_batch(llm, tmp_path, paths[1])
    assert list(tmp_path.iterdir()) == [paths[0]]
    journal_path(paths[1]).mkdir()
    with pytest.raises(ConfigError, match="cannot write"):
        run_batch(llm, *paths, resume=True)


def test_an_empty_file_gives_an_empty_file(batch, paths):
    assert batch(b"") == []
    assert paths[1].read_bytes() == b""


def test_resume_computes_only_what_is_missing(batch, engine, paths, llm):
    rows = [plain(n) for n in range(10)]
    batch(*rows)
    whole = paths[1].read_bytes()
    journal = journal_path(paths[1])
    lines = journal.read_bytes().splitlines(keepends=True)
    # Four results, and a fifth that a kill tore in the middle.
    journal.write_bytes(b"".join(lines[:5]) + lines[5][:-9])
    paths[1].unlink()
    engine.num_added = 0
    summary = run_batch(llm, *paths, resume=True)
    assert engine.num_added == 6
    assert (summary.num_rows, summary.num_done, summary.num_resumed) == (10, 10, 4)
    assert paths[1].read_bytes() == whole
    engine.num_added = 0
    run_batch(llm, *paths, resume=True)
    assert engine.num_added == 0
    assert paths[1].read_bytes() == whole


@pytest.mark.parametrize("num_kept", [2, 4, 6])
def test_errors_of_an_earlier_run_are_counted_too(batch, paths, llm, num_kept):
    """A job that was done already was reported without the errors that its output holds."""
    bad_chat = b'{"custom_id": "b", "method": "POST", "url": "/v1/completions", "body": {"n": 0}}'
    looks_bad = b'{"id": "c", "prompt": "\\"error\\":{\\"type\\":"}'
    batch(plain(1), b'{"id": "a", "prompt": 7}', bad_chat, looks_bad, b"no json", plain(2))
    journal = journal_path(paths[1])
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[: 1 + num_kept]))
    summary = run_batch(llm, *paths, resume=True)
    assert (summary.num_resumed, summary.num_errors) == (num_kept, 3)


def test_a_mended_row_and_a_new_one_are_computed_on_resume(batch, engine, paths, llm):
    batch(plain(1), b'{"id": "row-2", "prompt": ', plain(3))
    write(paths[0], plain(1), plain(2), plain(3), plain(4))
    engine.num_added = 0
    run_batch(llm, *paths, resume=True)
    assert engine.num_added == 2
    assert [r["outputs"][0]["text"] for r in read(paths[1])] == [f"{n} txet" for n in (1, 2, 3, 4)]


def test_a_kill_before_the_first_result_can_be_resumed(batch, paths, llm):
    batch(plain(1))
    whole = paths[1].read_bytes()
    header = journal_path(paths[1]).read_bytes().splitlines(keepends=True)[0]
    for rest in (b"", header[:20], header):
        paths[1].unlink()
        journal_path(paths[1]).write_bytes(rest)
        run_batch(llm, *paths, resume=True)
        assert paths[1].read_bytes() == whole


def test_changed_settings_are_refused_by_name(batch, paths, llm):
    batch(plain(1), defaults={"temperature": 0.5})
    with pytest.raises(ConfigError, match=r"sampling\.temperature: 0\.5 -> 0\.7"):
        run_batch(llm, *paths, resume=True, defaults={"temperature": 0.7})


def test_the_same_settings_are_the_same_however_they_are_written(batch, paths, llm, engine):
    defaults = {"stop": ("zzz",), "logit_bias": {5: 1.0}, "max_tokens": 9}
    batch(plain(1), defaults=defaults)
    engine.num_added = 0
    run_batch(llm, *paths, resume=True, defaults={**defaults, "stop": ["zzz"]})
    assert engine.num_added == 0


def test_a_damaged_journal_is_not_trusted(batch, paths, llm):
    batch(plain(1), plain(2))
    journal = journal_path(paths[1])
    journal.write_bytes(journal.read_bytes().replace(b"1 txet", b"9 txet"))
    with pytest.raises(ConfigError, match="line 2 of the journal is damaged"):
        run_batch(llm, *paths, resume=True)
    journal.write_text("something else\nand more\n")
    with pytest.raises(ConfigError, match="not a batch journal"):
        run_batch(llm, *paths, resume=True)


@pytest.fixture
def ctrl_c():
    """Ctrl-C works as at a terminal, also where the tests run in the background."""
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, old)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_keeps_what_is_done(batch, engine, paths, llm):
    advance, steps = engine.advance, []

    def advance_and_interrupt():
        steps.append(1)
        if len(steps) == 12:
            signal.raise_signal(signal.SIGINT)
        return advance()

    engine.advance = advance_and_interrupt
    rows = [plain(n) for n in range(30)]
    write(paths[0], *rows)
    summary = run_batch(llm, *paths)
    assert summary.interrupted
    assert 0 < summary.num_done < 30
    assert not paths[1].exists()
    engine.num_added = 0
    summary = run_batch(llm, *paths, resume=True)
    assert engine.num_added == 30 - summary.num_resumed
    assert [r["id"] for r in read(paths[1])] == [r["id"] for r in rows]


def test_one_job_at_a_time(batch, paths, llm):
    from deepinfer_core.jobs.journal import Journal

    batch(plain(1))
    journal = Journal(journal_path(paths[1]))
    with pytest.raises(ConfigError, match="another process"):
        run_batch(llm, *paths, resume=True)
    journal.close()
    run_batch(llm, *paths, resume=True)


@contextmanager
def file_limit(num_bytes):
    """Let files of this process grow to so many bytes only, as on a disk that fills up.

    Not for longer than the job: pytest's own output may be a file too.
    """
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


@pytest.mark.parametrize("num_bytes", [10, 2000, 3000])
def test_a_disk_that_fills_up_loses_nothing(llm, engine, paths, num_bytes):
    rows = [plain(n) for n in range(30)]
    write(paths[0], *rows)
    with file_limit(num_bytes), pytest.raises(PlatformError, match="--resume"):
        run_batch(llm, *paths)
    assert not paths[1].exists()
    assert not list(paths[1].parent.glob("*.partial"))
    engine.num_added = 0
    summary = run_batch(llm, *paths, resume=True)
    assert engine.num_added == 30 - summary.num_resumed
    assert [r["id"] for r in read(paths[1])] == [r["id"] for r in rows]
    assert (summary.num_resumed > 0) == (num_bytes > 1000)


def test_an_output_that_does_not_fit_leaves_the_journal(batch, paths, llm):
    batch(*(plain(n, logprobs=0) for n in range(5)))
    paths[1].unlink()
    with file_limit(1000), pytest.raises(PlatformError, match=r"in the journal.*--resume"):
        run_batch(llm, *paths, resume=True)
    assert sorted(p.name for p in paths[1].parent.iterdir()) == ["in.jsonl", "out.jsonl.journal"]


def test_a_journal_on_a_device_is_refused(llm, paths):
    write(paths[0], plain(1))
    journal_path(paths[1]).symlink_to("/dev/full")
    with pytest.raises(ConfigError, match="not a regular file"):
        run_batch(llm, *paths, resume=True)


def test_a_full_device_is_a_platform_error(tmp_path):
    from deepinfer_core.jobs.journal import Journal

    journal = Journal(tmp_path / "j")
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, journal._fd)
    os.close(full)
    with pytest.raises(PlatformError, match="No space left"):
        journal.append(b"k" * 16, {"a": 1})
    journal.close()


def test_only_a_window_of_rows_is_in_flight(batch, engine, llm, monkeypatch):
    most, add = 0, engine.add

    def counting_add(*args, **kwargs):
        nonlocal most
        requests = add(*args, **kwargs)
        most = max(most, len(engine._live))
        return requests

    engine.add = counting_add
    batch(*(plain(n) for n in range(200)))
    assert most == 16


def test_the_journal_grows_as_rows_finish(batch, engine, paths):
    """A result is final once it exists, not when the job ends."""
    seen = []

    def report(summary):
        lines = journal_path(paths[1]).read_bytes().splitlines()
        seen.append((summary.num_done, len(lines) - 1))

    batch(*(plain(n) for n in range(20)), report=report)
    assert seen == [(n, n) for n in range(1, 21)]
