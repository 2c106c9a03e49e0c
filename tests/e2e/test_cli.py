"""The command line as a person runs it: whole processes, real models."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from deepinfer_core.testing.tiny import write_tiny_checkpoint

ROOT = Path(__file__).parents[2]
SMOLLM2 = ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
needs_smollm2 = pytest.mark.skipif(not SMOLLM2.exists(), reason="needs the model of `make model`")


def words_of(*words):
    return [sys.executable, "-m", "deepinfer_core", *map(str, words), "--num-blocks", "500"]


def run(*words, stdin=""):
    return subprocess.run(
        words_of(*words), input=stdin, capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny")
    return write_tiny_checkpoint(path, "qwen3", max_position_embeddings=2**20)


@needs_smollm2
def test_a_chat_answers_and_remembers():
    lines = "My name is Alice. Remember it.\nWhat is my name?\n"
    done = run("chat", "-m", SMOLLM2, "--temperature", 0, "--max-tokens", 40, stdin=lines)
    assert done.returncode == 0, done.stderr
    assert "Alice" in done.stdout
    assert done.stderr.count("/s") == 2


@needs_smollm2
def test_generate_continues_text():
    words = ["generate", "-m", SMOLLM2, "The capital of France is", "--temperature", 0]
    done = run(*words, "--max-tokens", 12)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(" Paris")


def test_the_same_text_streamed_and_not(tiny):
    words = ["generate", "-m", tiny, "Hello", "--seed", 5, "--max-tokens", 30]
    whole, streamed = run(*words), run(*words, "--stream")
    assert whole.returncode == streamed.returncode == 0
    assert len(whole.stdout) > 5
    assert whole.stdout == streamed.stdout


def test_errors_are_one_message_on_standard_error(tiny, tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF and nothing more")
    for words, code in (
        (["generate", "-m", tmp_path / "none", "x"], 1),
        (["generate", "-m", broken, "x"], 1),
        (["generate", "-m", tiny, "x", "--max-num-seqs", 0], 2),
    ):
        done = run(*words)
        assert done.returncode == code, done.stderr
        assert done.stdout == ""
        assert "Traceback" not in done.stderr
        assert str(words[2]) in done.stderr or "max_num_seqs" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
@pytest.mark.parametrize("words", [["config", "explain", "--json"], ["doctor"]], ids=" ".join)
def test_an_output_that_is_full_is_one_message(words):
    command = [sys.executable, "-m", "deepinfer_core", *words]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=300)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "output cannot be written: No space left on device" in done.stderr


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_ctrl_c_ends_a_process_cleanly(tiny, stream):
    """What there is is printed, the exit code is that of an interrupt, nothing is dumped."""
    words = ["generate", "-m", tiny, "short", "x", "--max-tokens", 0, "--ignore-eos", "--json"]
    process = subprocess.Popen(
        words_of("-v", *words, *(["--stream"] if stream else [])),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "400"},
        # Where tests run in the background, children would inherit that Ctrl-C is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    if stream:
        assert process.stdout.readline()
    else:
        assert any("is ready" in " ".join(line.split()) for line in process.stderr)
        time.sleep(1)  # the answer, of a million tokens, has begun
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    if not stream:
        results = json.loads(out)["results"]
        assert [r["outputs"][0]["finish_reason"] for r in results] == ["abort", "abort"]
