"""`deepinfer batch` is killed at random moments; resuming loses and repeats nothing."""

import json
import random
import subprocess
import sys
import time
from collections import Counter

import pytest
from deepinfer_core.testing.tiny import write_tiny_checkpoint

NUM_ROWS = 80


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "llama", "llama")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Greedy and seeded rows, rows without a seed, OpenAI rows, bad rows."""
    rng = random.Random(7)
    path = tmp_path_factory.mktemp("rows") / "in.jsonl"
    lines = []
    for number in range(NUM_ROWS):
        text = "".join(rng.choices("abcdefgh ", k=rng.randint(1, 60)))
        row = {"id": f"row-{number}", "prompt": text, "max_tokens": rng.randint(1, 60)}
        row |= rng.choice([{"temperature": 0}, {"seed": number}, {}, {"n": 2, "logprobs": 1}])
        if number % 10 == 3:
            message = {"role": "user", "content": text}
            row = {
                "custom_id": f"row-{number}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {"model": "tiny", "messages": [message], "max_tokens": 20},
            }
        lines.append(json.dumps(row) if number % 17 else f"{number} is bad")
    path.write_text("\n".join(lines) + "\n")
    return path


def command(model, source, output, *options):
    words = ["batch", source, output, "-m", model, "--max-num-seqs", "4", "--max-model-len", "128"]
    settings = ["--batch-invariant", "--dtype", "float32", "--num-blocks", "64", "--json"]
    return [sys.executable, "-m", "deepinfer_core", *map(str, words), *settings, *options]


def run(*arguments):
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_kill_and_resume_gives_the_bytes_of_an_uninterrupted_run(model, source, tmp_path):
    whole = tmp_path / "whole.jsonl"
    summary = run(model, source, whole)
    assert summary["num_done"] == NUM_ROWS
    assert summary["num_errors"] == len(range(0, NUM_ROWS, 17))

    output = tmp_path / "out.jsonl"
    journal = tmp_path / "out.jsonl.journal"
    rng = random.Random()
    num_seen = 0
    for attempt in range(4):
        process = subprocess.Popen(
            command(model, source, output, *(["--resume"] if attempt else [])),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        # Somewhere in the middle: after some more results, or, once, right at the beginning.
        goal = num_seen + rng.randint(1, 15) if attempt != 1 else 0
        while process.poll() is None and num_results(journal) < goal:
            time.sleep(0.001)
        time.sleep(rng.random() * 0.02)
        process.kill()
        process.wait()
        assert num_results(journal) >= num_seen
        num_seen = num_results(journal)
    assert 4 <= num_seen < NUM_ROWS

    summary = run(model, source, output, "--resume")
    assert summary["num_resumed"] == num_seen
    assert output.read_bytes() == whole.read_bytes()
    keys = Counter(line.split(b" ")[0] for line in journal.read_bytes().splitlines()[1:])
    assert set(keys.values()) == {1}
    assert len(keys) == NUM_ROWS

    before = journal.read_bytes()
    summary = run(model, source, output, "--resume")
    assert summary["num_output_tokens"] == 0
    assert journal.read_bytes() == before
    assert output.read_bytes() == whole.read_bytes()


def num_results(journal):
    """Whole results in the journal of a running job."""
    return max(0, journal.read_bytes().count(b"\n") - 1) if journal.exists() else 0
