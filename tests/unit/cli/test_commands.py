"""The commands on scripted tokens: what they print, and their exit codes."""

import io
import json
import re
import signal
import sys

import pytest
import typer
from deepinfer_core import cli
from deepinfer_core.errors import EngineError
from deepinfer_core.plugin_api import CommandSpec, PluginInfo, hookimpl
from deepinfer_core.plugins import PluginHost
from deepinfer_core.testing.fake_engine import FakeEngine
from deepinfer_core.testing.fake_recipe import FakeRecipe, FakeRecipePlugin


class Terminal(io.StringIO):
    def isatty(self):
        return True


TERMINAL = Terminal()


@pytest.fixture
def engine(monkeypatch):
    engine = FakeEngine()
    monkeypatch.setattr(
        "deepinfer_core.faces.setup.Engine.from_config", lambda config, host: engine
    )
    return engine


@pytest.fixture
def say(engine):
    def say(text):
        ids = engine.tokenizer.encode(text)
        engine._reply = lambda prompt, index: ids

    return say


@pytest.fixture
def run(engine, capsys, monkeypatch):
    """Run a command line; returns exit code, standard output and standard error."""

    def run(*words, stdin=""):
        monkeypatch.setattr(sys, "stdin", stdin if stdin is TERMINAL else io.StringIO(stdin))
        with pytest.raises(SystemExit) as ended:
            cli.main([str(word) for word in words])
        captured = capsys.readouterr()
        return ended.value.code or 0, captured.out, captured.err

    return run


M = ("-m", "fake")


@pytest.fixture
def interrupt_at_step(engine):
    """Press Ctrl-C in a step; it works as at a terminal, also where tests run in the background."""
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda number: _interrupt_at_step(engine, number)
    signal.signal(signal.SIGINT, old)


def _interrupt_at_step(engine, number):
    advance, steps = engine.advance, []

    def advance_and_interrupt():
        steps.append(1)
        if len(steps) == number:
            signal.raise_signal(signal.SIGINT)
        return advance()

    engine.advance = advance_and_interrupt


@pytest.fixture
def run_in_ascii(run, monkeypatch):
    """As `run`, with the standard output of a system that has few letters; returns its bytes."""

    def run_in_ascii(*words):
        # Not before the test has begun, when pytest puts its own in place.
        stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", stdout)
            code, _, err = run(*words)
        assert code == 0, err
        return stdout.buffer.getvalue()

    return run_in_ascii


# ---- generate


@pytest.mark.parametrize("options", [[], ["--stream"]])
def test_what_the_terminal_cannot_show_is_replaced(run_in_ascii, say, options):
    """A traceback used to take the place of the answer."""
    say("tschüß 😀")
    assert run_in_ascii("generate", *M, "a", *options) == b"tsch?? ?\n"


def test_headings_show_what_they_can_of_prompts(run_in_ascii):
    assert b"0  h?llo" in run_in_ascii("generate", *M, "héllo", "b")


def test_json_escapes_what_the_terminal_cannot_show(run_in_ascii, say):
    say("tschüß 😀")
    (result,) = json.loads(run_in_ascii("generate", *M, "é", "--json"))["results"]
    assert (result["prompt"], result["outputs"][0]["text"]) == ("é", "tschüß 😀")


def test_one_answer_is_printed_plainly(run):
    code, out, err = run("generate", *M, "abc")
    assert (code, out) == (0, "cba\n")
    assert re.search(r"prompt 3 tokens, [\d.,]+/s; output 4 tokens, [\d.,]+/s", err)


def test_several_answers_have_headings(run):
    _, out, _ = run("generate", *M, "abc", "xyz", "--n", "2")
    assert [line for line in out.splitlines() if "─" not in line] == ["cba", "cba", "zyx", "zyx"]
    assert "0.1  abc" in out


def test_generate_json(run):
    code, out, _ = run("generate", *M, "abc", "", "--json", "--logprobs", "0", "--seed", "9")
    assert code == 1
    answer = json.loads(out)
    first, second = answer["results"]
    assert first["prompt"] == "abc"
    assert first["outputs"][0]["text"] == "cba"
    assert first["outputs"][0]["seed"] == 9
    assert len(first["outputs"][0]["logprobs"]) == len(first["outputs"][0]["token_ids"]) == 4
    assert "empty" in second["error"]["message"]
    assert answer["speed"]["num_output_tokens"] == 4


def test_a_failed_prompt_is_told_and_the_others_answered(run):
    code, out, err = run("generate", *M, "abc", "x" * 5000)
    assert code == 1
    assert "cba" in out
    assert "prompt 1: prompt has 5000 tokens" in err


def test_sampling_options_reach_the_request(run, say):
    say("one two three")
    _, out, _ = run("generate", *M, "p", "--stop", "two", "--stop", "zzz")
    assert out == "one \n"
    _, out, _ = run("generate", *M, "p", "--stop", "two", "--include-stop-str-in-output")
    assert out == "one two\n"
    _, out, _ = run("generate", *M, "p", "--max-tokens", "2")
    assert out == "one\n"


def test_generate_ends_after_256_tokens_unless_told_otherwise(run):
    _, out, _ = run("generate", *M, "x" * 300)
    assert out == "x" * 256 + "\n"
    _, out, _ = run("generate", *M, "x" * 300, "--max-tokens", "0")
    assert out == "x" * 300 + "\n"


def test_the_prompt_may_come_through_a_pipe(run):
    assert run("generate", *M, stdin="abc")[1] == "cba\n"


def test_generate_stream(run):
    code, out, _ = run("generate", *M, "--stream", "abc", "xyz")
    assert (code, out) == (0, "cba\nzyx\n")
    code, out, _ = run("generate", *M, "--stream", "--json", "abc", "")
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 1
    assert "".join(line["text"] for line in lines[:-1]) == "cba"
    assert lines[-2]["finish_reason"] == "stop"
    assert lines[-1]["prompt"] == 1
    assert "empty" in lines[-1]["error"]["message"]


def test_ctrl_c_prints_what_there_is_and_exits_with_130(run, interrupt_at_step):
    interrupt_at_step(30)
    code, out, _ = run("generate", *M, "abc", "x" * 3000, "--max-tokens", "0")
    assert code == 130
    assert "cba" in out
    assert "xxxx" in out


# ---- chat


def test_chat_keeps_the_conversation(run, engine):
    prompts = []

    def reply(prompt, index):
        prompts.append(engine.tokenizer.decode(prompt, skip_special_tokens=False))
        return engine.tokenizer.encode(f"answer {len(prompts)}")

    engine._reply = reply
    lines = "first\n\nsecond\n/reset\nthird\n/system Be brief.\nfourth\n/exit\nfifth\n"
    code, out, err = run("chat", *M, stdin=lines)
    assert (code, out) == (0, "answer 1\nanswer 2\nanswer 3\nanswer 4\n")
    user = "<|im_start|>user\n{}<|im_end|>".format
    assistant = "<|im_start|>assistant\n"
    assert prompts == [
        user("first") + assistant,
        user("first") + assistant + "answer 1<|im_end|>" + user("second") + assistant,
        user("third") + assistant,
        "<|im_start|>system\nBe brief.<|im_end|>" + user("fourth") + assistant,
    ]
    assert "tokens" in err


def test_chat_once_and_json(run, say):
    say("hello")
    assert run("chat", *M, "--once", "hi")[1] == "hello\n"
    _, out, _ = run("chat", *M, "--once", "hi", "--json", "--system", "s")
    assert json.loads(out)["content"] == "hello"
    assert json.loads(out)["finish_reason"] == "stop"


def test_a_turn_that_fails_is_forgotten(run, engine):
    code, out, err = run("chat", *M, stdin=f"{'x' * 5000}\nab\n")
    assert code == 1
    assert "/reset" in err
    assert out.endswith("\n")
    assert "x" not in out


def test_a_chat_explains_its_commands(run):
    code, out, err = run("chat", *M, stdin="/help\n")
    assert (code, out) == (0, "")
    assert "/system TEXT" in err


def test_a_piped_line_that_only_looks_like_a_command_is_a_message(run, say):
    say("a folder")
    code, out, err = run("chat", *M, stdin="/etc is what?\n")
    assert (code, out) == (0, "a folder\n")
    assert "/system TEXT" not in err


def test_ctrl_c_stops_an_answer_and_keeps_what_was_said(run, engine, monkeypatch):
    """At a terminal the conversation goes on; the partial answer is part of it."""
    from deepinfer_core.cli import chat_cmd

    answers = iter(["a" * 3000, "done"])
    prompts = []

    def reply(prompt, index):
        prompts.append(engine.tokenizer.decode(prompt, skip_special_tokens=False))
        return engine.tokenizer.encode(next(answers))

    engine._reply = reply
    monkeypatch.setattr(chat_cmd, "_typed_lines", lambda: iter(["one", "two"]))
    from deepinfer_core.faces.streams import TokenStream

    take, taken = TokenStream.__next__, []

    def take_and_interrupt(stream):
        taken.append(1)
        if len(taken) == 5:
            raise KeyboardInterrupt
        return take(stream)

    monkeypatch.setattr(TokenStream, "__next__", take_and_interrupt)
    code, out, err = run("chat", *M, "--max-tokens", "0", stdin=TERMINAL)
    assert code == 0
    assert out == "aaaa\ndone\n"
    assert "stopped" in err
    assert "assistant\naaaa<|im_end|>" in prompts[1]


@pytest.fixture
def answers(engine, monkeypatch):
    """Let a recipe read these answers, one after the other; returns the prompts they were to."""
    make = PluginHost

    def make_host(**options):
        host = make(load_entry_points=False)
        host.register(FakeRecipePlugin(), name="fake")
        return host

    monkeypatch.setattr("deepinfer_core.faces.setup.PluginHost", make_host)
    prompts = []

    def answers(*texts):
        def reply(prompt, index):
            prompts.append(json.loads(engine.tokenizer.decode(prompt)))
            return engine.tokenizer.encode(texts[len(prompts) - 1])

        engine._reply = reply
        return prompts

    return answers


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


@pytest.fixture
def with_tools(tmp_path):
    path = tmp_path / "tools.json"
    path.write_text(json.dumps(TOOLS))
    return ("--tools", path)


def test_chat_shows_reasoning_beside_the_answer_and_keeps_it(run, answers):
    prompts = answers("(let me see)it is 4", "no")
    code, out, err = run("chat", *M, stdin="2+2?\nsure?\n")
    assert (code, out) == (0, "it is 4\nno\n")
    assert "let me see\n" in err
    assert prompts[1] == [
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "it is 4", "reasoning_content": "let me see"},
        {"role": "user", "content": "sure?"},
    ]


def test_reasoning_is_dim_on_a_terminal(run, answers, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    answers("(why)so")
    _, out, err = run("chat", *M, "--once", "?")
    assert out == "so\n"
    assert "".join(re.findall("\x1b\\[2m(.)\x1b", err)).startswith("why")


def test_chat_shows_tool_calls_and_takes_their_results(run, answers, with_tools):
    prompts = answers('(w)[f:{"a": 1}][g:{}]', "let me call[f:{}]", "done")
    lines = "start\none\ntwo\nthree\n"
    code, out, err = run("chat", *M, *with_tools, stdin=lines)
    assert (code, out) == (0, 'f({"a": 1})\ng({})\nlet me call\nf({})\ndone\n')
    assert err.count("the result of f") == 2
    assert err.count("the result of g") == 1
    roles = [message["role"] for message in prompts[-1]]
    assert roles == ["user", "assistant", "tool", "tool", "assistant", "tool"]
    first = prompts[-1][1]["tool_calls"]
    assert [c["function"] for c in first] == [
        {"name": "f", "arguments": '{"a": 1}'},
        {"name": "g", "arguments": "{}"},
    ]
    results = [m for m in prompts[-1] if m["role"] == "tool"]
    assert [m["content"] for m in results] == ["one", "two", "three"]
    assert [m["tool_call_id"] for m in results][:2] == [c["id"] for c in first]


def test_images_go_with_the_next_message(run, answers, tmp_path):
    prompts = answers("so", "no")
    for name in "abc":
        (tmp_path / f"{name}.png").write_bytes(name.encode())
    options = ("--image", tmp_path / "a.png", "--image", tmp_path / "b.png")
    code, _, _ = run("chat", *M, *options, stdin=f"one\n/image {tmp_path / 'c.png'}\ntwo\n")
    assert code == 0
    for message, names in ((prompts[1][0], ["YQ==", "Yg=="]), (prompts[1][2], ["Yw=="])):
        *images, text = message["content"]
        urls = [image["image_url"]["url"] for image in images]
        assert urls == [f"data:image/png;base64,{name}" for name in names]
        assert text["type"] == "text"


def test_what_fails_takes_its_images_along(run, answers, tmp_path, monkeypatch):
    """A file that the recipe could not read went with every later message, and failed it too."""
    encode = FakeRecipe.encode

    def refuse(recipe, chat):
        if "image_url" in json.dumps(chat):
            raise ValueError("unsupported image")
        return encode(recipe, chat)

    monkeypatch.setattr(FakeRecipe, "encode", refuse)
    prompts = answers("fine", "still")
    (tmp_path / "a.png").write_bytes(b"no image")
    image = f"/image {tmp_path / 'a.png'}"
    lines = [image, "one", "two", image, "/reset", "three"]
    code, out, err = run("chat", *M, stdin="\n".join(lines))
    assert (code, out) == (1, "fine\nstill\n")
    assert err.count("unsupported image") == 1
    assert [[message["content"] for message in prompt] for prompt in prompts] == [
        ["two"],
        ["three"],
    ]


def test_files_that_are_no_images_are_refused(run, tmp_path):
    code, _, err = run("chat", *M, "--image", tmp_path / "a.txt", "--once", "?")
    assert code and "is not named as an image" in err
    assert "allowed: names of image files, such as x.png" in err
    assert "No such file" in run("chat", *M, "--image", tmp_path / "a.webp", "--once", "?")[2]
    code, out, err = run("chat", *M, stdin="/image a.txt\nab\n")
    assert code == 1 and out and "is not named as an image" in err


def test_chat_json_has_what_the_recipe_read(run, answers, with_tools):
    answers("(w)so[f:{}]")
    _, out, _ = run("chat", *M, "--once", "?", "--json", *with_tools)
    answer = json.loads(out)
    assert (answer["content"], answer["reasoning_content"]) == ("so", "w")
    assert answer["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}
    assert answer["finish_reason"] == "stop"


def test_a_tool_call_that_was_cut_short_is_not_kept(run, answers, with_tools):
    prompts = answers("[f:" + "x" * 30 + "]", "ok")
    code, out, _ = run("chat", *M, *with_tools, "--max-tokens", 9, stdin="a\nb\n")
    assert (code, out) == (0, "f(xxxxxx)\nok\n")
    assert prompts[1][1:] == [
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "b"},
    ]


def test_a_result_that_cannot_be_served_may_be_given_again(run, answers, with_tools):
    prompts = answers("[f:{}]", "done")
    code, out, _ = run("chat", *M, *with_tools, stdin=f"a\n{'x' * 5000}\nshort\n")
    assert code == 1
    assert out.startswith("f({})\n")
    assert prompts[1][-1]["content"] == "short"
    assert prompts[1][-1]["role"] == "tool"


def test_reset_forgets_open_calls(run, answers, with_tools):
    prompts = answers("[f:{}]", "done")
    assert run("chat", *M, *with_tools, stdin="a\n/reset\nb\n")[0] == 0
    assert prompts[1] == [{"role": "user", "content": "b"}]


@pytest.mark.parametrize(("text", "message"), [("{}", "no JSON list"), ("[", "cannot be read")])
def test_a_file_that_holds_no_tools_is_told_before_the_model_is_loaded(
    run, engine, tmp_path, text, message
):
    path = tmp_path / "tools.json"
    path.write_text(text)
    code, _, err = run("chat", *M, "--tools", path)
    assert code != 0
    assert message in err
    assert not engine.is_closed
    assert "No such file" in run("chat", *M, "--tools", tmp_path / "none")[2]


# ---- batch


def test_batch_writes_the_file_and_says_how_fast(run, tmp_path):
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows = [{"id": n, "prompt": f"text {n}"} for n in range(5)]
    source.write_text("\n".join(map(json.dumps, rows)) + "\nbad\n")
    code, out, err = run("batch", source, output, *M, "--max-tokens", "4")
    assert (code, out) == (0, "")
    assert "6 of 6 rows done, 1 with an error" in err
    assert re.search(r"prompt 30 tokens, .*; output 20 tokens, .*/s", err)
    results = [json.loads(line) for line in output.read_text().splitlines()]
    assert [r["outputs"][0]["text"] for r in results[:5]] == [f"{n} tx"[:4] for n in range(5)]
    assert results[5]["line"] == 6

    code, _, err = run("batch", source, output, *M)
    assert code == 2
    assert "--resume" in err
    code, out, _ = run("batch", source, output, *M, "--max-tokens", "4", "--resume", "--json")
    assert code == 0
    assert json.loads(out)["num_resumed"] == 6
    code, out, _ = run("batch", source, output, *M, "--overwrite", "--json")
    assert json.loads(out)["num_resumed"] == 0
    assert run("batch", source, output, *M, "--overwrite", "--resume")[0] == 2


def test_batch_refuses_bad_paths_and_options_before_the_model_is_loaded(run, tmp_path, monkeypatch):
    def load(config, host):
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("deepinfer_core.faces.setup.Engine.from_config", load)
    source = tmp_path / "in.jsonl"
    code, _, err = run("batch", source, tmp_path / "out.jsonl", *M)
    assert code == 2
    assert "cannot read" in err
    source.write_text("{}\n")
    assert run("batch", source, tmp_path / "no" / "out.jsonl", *M)[0] == 2
    assert run("batch", source, tmp_path / "out.jsonl", *M, "--top-p", "7")[0] == 1
    assert run("batch", source, source, *M, "--overwrite")[0] == 2
    assert source.exists()


def test_batch_ctrl_c_exits_with_130_and_says_how_to_go_on(run, interrupt_at_step, tmp_path):
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps({"id": n, "prompt": "abc"}) + "\n" for n in range(50)))
    interrupt_at_step(8)
    code, _, err = run("batch", source, output, *M)
    assert code == 130
    assert "--resume" in err
    assert run("batch", source, output, *M, "--resume")[0] == 0
    assert len(output.read_text().splitlines()) == 50


# ---- score


def test_score_prints_a_table_or_json(run):
    code, out, _ = run("score", *M, "--context", "ab", "cd", "e")
    assert code == 0
    assert "'cd'" in out
    _, out, _ = run("score", *M, "--context", "ab", "cd", "--json")
    (result,) = json.loads(out)
    assert result["total_logprob"] == -1.0
    assert result["num_context_tokens"] == 2


def test_score_reads_pairs_from_a_file(run, tmp_path):
    file = tmp_path / "pairs.jsonl"
    file.write_text(
        '{"context": "ab", "continuation": "c"}\n\n{"context": [5], "continuation": [6]}\n'
    )
    _, out, _ = run("score", *M, "--file", file, "--json")
    assert [r["num_context_tokens"] for r in json.loads(out)] == [2, 1]
    for bad in ("nonsense", '{"context": "a"}', "[1]"):
        file.write_text(f'{{"context": "a", "continuation": "b"}}\n{bad}\n')
        code, _, err = run("score", *M, "--file", file)
        assert code == 2
        assert "line 2" in err
    assert run("score", *M, "--file", tmp_path / "none")[0] == 2
    assert run("score", *M)[0] == 2


def test_a_pair_that_cannot_be_scored_is_told(run):
    code, out, _ = run("score", *M, "--context", "ab", "", "c", "--json")
    assert code == 1
    first, second = json.loads(out)
    assert "empty" in first["error"]["message"]
    assert second["is_greedy"] in (True, False)


# ---- errors and plugins


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["generate", "x"], 2, "no model: give a path with --model"),
        (["generate", "-m", "x", "--set", "nope=1", "x"], 2, "unknown field nope"),
        (["generate", "-m", "x", "--dtype", "float7", "x"], 2, "float7"),
        (["generate", "-m", "x", "--nope", "x"], 2, "No such option"),
        (["generate", "-m", "x", "--max-tokens", "many", "x"], 2, "integer"),
        (["generate", "-m", "x", "--temperature=-1", "x"], 1, "temperature"),
        (["generate", "-m", "x", "--logit-bias", "5", "x"], 2, "ID=BIAS"),
        (["generate", "-m", "x", "--config", "/no/such.toml", "x"], 2, "/no/such.toml"),
        (["nope"], 2, "nope"),
        (["config", "nope"], 2, "nope"),
    ],
)
def test_what_is_wrong_is_said_in_one_message(run, words, code, message):
    got, out, err = run(*words)
    assert got == code
    assert message in " ".join(err.split())
    assert "Traceback" not in err
    assert out == ""


def test_the_traceback_is_shown_on_request(run, engine):
    engine.fail_next_step = EngineError("boom")
    code, _, err = run("generate", *M, "x")
    assert code == 1
    assert err.strip() == "EngineError: boom"
    _, _, err = run("--debug", "generate", *M, "x")
    assert "Traceback" in err


def test_version_and_no_command(run):
    assert run("--version")[1].startswith("deepinfer 0.")
    _, out, err = run()
    assert "generate" in out + err


class WithCommands:
    @hookimpl
    def deepinfer_plugin_info(self):
        return PluginInfo("acme", "1", "Acme", api=">=1.0,<2")

    @hookimpl
    def deepinfer_commands(self):
        return [
            CommandSpec("greet", f"{__name__}:greet", "Greet somebody."),
            CommandSpec("tools", f"{__name__}:tools", "Several."),
            CommandSpec("chat", f"{__name__}:greet", "Takes a name of core's."),
        ]


def greet(name: str) -> None:
    typer.echo(f"hello {name}")


tools = typer.Typer()
tools.command("one")(lambda: typer.echo("one"))
tools.command("two")(lambda: typer.echo("two"))


def test_commands_of_plugins(run, monkeypatch):
    host = PluginHost(load_entry_points=False)
    host.register(WithCommands(), name="acme")
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    monkeypatch.setattr(cli, "PluginHost", lambda: host)
    assert run("greet", "you")[:2] == (0, "hello you\n")
    assert run("tools", "two")[:2] == (0, "two\n")
    _, out, err = run("--help")
    assert "Greet somebody." in out
    assert "command chat of a plugin is core's already" in err
