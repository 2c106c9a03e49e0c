"""Measures what drafts give on real text: acceptance, and time against decoding without them.

    python scripts/measure_drafts.py models/SmolLM2-135M-Instruct.Q4_1.gguf --out build/drafts.json

Three kinds of text, one request at a time, greedy, in turns with and without drafts; the quickest
turn of each counts. Free text is where a guard has to keep drafts from costing time. CPU time is
given beside wall clock: with one thread it is the same, and other processes do not disturb it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any

from deepinfer_core import LLM, SamplingParams

STORY = (
    "The lighthouse keeper of Brannoch kept a diary for forty-one years. Every evening he wrote "
    "down the direction of the wind, the height of the waves, and the names of the ships that "
    "passed. On the third of March 1911 he wrote that the steamer Ardent had passed at a quarter "
    "past nine, although no other record of such a ship exists. Historians have looked for the "
    "Ardent in every port between Oban and Bergen, and have found a tavern of that name, but no "
    "steamer. The diary is now kept in the town hall, in a glass case, open at that page. Visitors "
    "may look at it on weekdays, and the mayor reads from it aloud on the third of March."
)
CODE = """\
def read_rows(path):
    rows = []
    with open(path) as file:
        for line in file:
            line = line.strip()
            if not line:
                continue
            name, price, count = line.split(",")
            rows.append({"name": name, "price": float(price), "count": int(count)})
    return rows


def total(rows):
    result = 0.0
    for row in rows:
        result += row["price"] * row["count"]
    return result
"""
TASKS = {
    "quote": [f"Repeat the following text word for word.\n\n{STORY}"],
    "code edit": [
        f"Add a docstring to each function and repeat the whole program.\n\n```python\n{CODE}```"
    ],
    "free text": [
        "Tell me a story about a fox who wants to become a sailor.",
        "Explain why the sky is blue, and why it is red in the evening.",
    ],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--proposers", default="ngram,suffix")
    parser.add_argument("--num-drafts", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--no-guard", action="store_true")
    parser.add_argument("--out")
    given = parser.parse_args()
    common = {"dtype": given.dtype, "num_threads": given.threads, "prefix_caching": False}
    drafted = {"num_drafts": given.num_drafts, "draft_guard": not given.no_guard}
    names = given.proposers.split(",")
    llms = {"none": LLM(given.model, **common)}
    llms |= {name: LLM(given.model, proposer=name, **drafted, **common) for name in names}
    results = [
        row
        for task, questions in TASKS.items()
        for row in measure(llms, task, questions, given.max_tokens, given.turns)
    ]
    for row in results:
        print(json.dumps(row))
    if given.out:
        with open(given.out, "w") as file:
            json.dump({"arguments": vars(given), "results": results}, file, indent=1)


def measure(
    llms: dict[str, LLM], task: str, questions: Sequence[str], max_tokens: int, turns: int
) -> list[dict[str, Any]]:
    """Times of every proposer for one task, and that all give the same answers."""
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    chats = [[{"role": "user", "content": question}] for question in questions]
    seconds: dict[str, list[float]] = {name: [] for name in llms}
    cpu_seconds: dict[str, list[float]] = {name: [] for name in llms}
    answers: dict[str, list[list[int]]] = {}
    drafts: dict[str, tuple[int, int, int]] = {}
    for _ in range(turns):
        for name, llm in llms.items():
            before = llm.metrics()
            elapsed_s, ids, cpu_begun_s = 0.0, [], time.process_time()
            for chat in chats:
                begun_s = time.perf_counter()
                output = llm.chat(chat, params)[0]
                elapsed_s += time.perf_counter() - begun_s - (output.metrics.ttft_s or 0.0)
                ids.append(output.outputs[0].token_ids)
            after = llm.metrics()
            seconds[name].append(elapsed_s)
            cpu_seconds[name].append(time.process_time() - cpu_begun_s)
            answers[name] = ids
            drafts[name] = (
                after.num_draft_steps - before.num_draft_steps,
                after.num_draft_tokens - before.num_draft_tokens,
                after.num_accepted_tokens - before.num_accepted_tokens,
            )
    plain_cpu_s = min(cpu_seconds["none"])
    plain_s, num_tokens = min(seconds["none"]), sum(map(len, answers["none"]))
    return [
        {
            "task": task,
            "proposer": name,
            "tokens": num_tokens,
            "ms_per_token": round(1e3 * min(times) / num_tokens, 2),
            "speed_up": round(plain_s / min(times), 3),
            "cpu_speed_up": round(plain_cpu_s / min(cpu_seconds[name]), 3),
            "equal": answers[name] == answers["none"],
            "draft_steps": drafts[name][0],
            "drafted": drafts[name][1],
            "accepted": drafts[name][2],
        }
        for name, times in seconds.items()
    ]


if __name__ == "__main__":
    main()
