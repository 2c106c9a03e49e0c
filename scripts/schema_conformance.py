"""Run the JSON-Schema-Test-Suite through the grammars of answers, byte by byte.

    python scripts/schema_conformance.py TESTS [--backend xgrammar] [--json OUT]

TESTS is a folder of the suite, such as `json/tests/draft2020-12` of the source distribution of
`jsonschema`; its optional tests of formats are run, too. These counts come out: valid documents
that can be produced (accepted), invalid ones that cannot (enforced), documents whose schema is
refused with its path (refused), and the rest (wrong). Some formats are narrower than their
standards, which is counted of its own. A valid document counts as produced in any order of its
keys, since an order is chosen.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deepinfer_core.errors import GrammarError, RequestError
from deepinfer_core.plugin_api import GrammarBackendSpec
from deepinfer_core.plugin_api.grammar import CompiledGrammar, GrammarBackend, Vocabulary
from deepinfer_core.plugins import PluginHost
from deepinfer_core.structured.json_values import canonical, parse
from deepinfer_core.structured.notation import to_notation
from deepinfer_core.structured.spec import StructuredOutput

MAX_ORDERED_KEYS = 5
BYTES = Vocabulary([bytes([byte]) for byte in range(256)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tests", type=Path)
    parser.add_argument("--backend", default="xgrammar")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    backend = load_backend(arguments.backend)
    totals: Counter[str] = Counter()
    schemas: Counter[str] = Counter()
    wrong: list[dict[str, Any]] = []
    # Where formats are annotations, as the suite has them by default, nothing is held to them.
    plain = [path for path in arguments.tests.glob("*.json") if path.stem != "format"]
    for path in sorted([*plain, *arguments.tests.glob("optional/format/*.json")]):
        for group in json.loads(path.read_text(), parse_float=str_number):
            counts, failures = run_group(backend, group, is_narrow=path.parent.name == "format")
            totals += counts
            schemas["refused" if counts["refused"] else "compiled"] += 1
            wrong += [{"file": path.stem, "group": group["description"], **f} for f in failures]
    for failure in wrong:
        print(json.dumps(failure, default=str))
    result = {"documents": dict(totals), "schemas": dict(schemas), "wrong": len(wrong)}
    print(json.dumps(result))
    if arguments.json:
        arguments.json.write_text(json.dumps({**result, "failures": wrong}, default=str) + "\n")
    return 1 if wrong else 0


def str_number(text: str) -> Any:
    """A number with a point or an exponent, exactly."""
    return parse(text)


def load_backend(name: str) -> GrammarBackend:
    host = PluginHost(load_entry_points=False)
    (spec,) = [spec for spec in host.targets(GrammarBackendSpec) if spec.name == name]
    backend: GrammarBackend = spec.load()(vocabulary=BYTES)
    return backend


def run_group(
    backend: GrammarBackend, group: dict[str, Any], *, is_narrow: bool
) -> tuple[Counter[str], list[dict[str, Any]]]:
    """The counts of one schema's documents, and those that are wrong.

    Args:
        is_narrow: the schema is about a format, of which some texts cannot be produced.
    """
    tests = group["tests"]
    try:
        form = StructuredOutput(json_schema=canonical(group["schema"]))
        notation, text = to_notation(form, max_whitespace=2)
        compiled = backend.compile(notation, text)
    except GrammarError as error:
        reason = str(error)
        if ": #" not in reason:
            return Counter(), [{"test": "refused without a path", "reason": reason}]
        if reason.endswith("nothing is valid"):
            return judge_nothing(tests)
        return Counter(refused=len(tests)), []
    except (RequestError, ValueError) as error:
        return Counter(), [{"test": "not compiled", "reason": repr(error)}]
    counts: Counter[str] = Counter()
    failures = []
    for test in tests:
        accepted = any(accepts(compiled, text) for text in writings(test["data"]))
        if test["valid"] and not accepted and is_narrow:
            counts["narrower"] += 1
            continue
        if accepted != test["valid"]:
            failures.append({"test": test["description"], "data": test["data"]})
        counts["accepted" if accepted else "enforced"] += accepted == test["valid"]
    return counts, failures


def judge_nothing(tests: list[dict[str, Any]]) -> tuple[Counter[str], list[dict[str, Any]]]:
    """A schema that nothing is valid for is refused, and rightly so."""
    failures = [{"test": test["description"]} for test in tests if test["valid"]]
    return Counter(refused=len(tests) - len(failures)), failures


def writings(value: Any) -> Iterator[str]:
    """Texts of a document: as it is, and with its keys in other orders."""
    for ordered in orders(value):
        yield canonical(ordered)


def orders(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        keys = list(value)
        many = len(keys) > MAX_ORDERED_KEYS
        for order in [keys] if many else itertools.permutations(keys):
            for parts in itertools.product(*(list(orders(value[key])) for key in order)):
                yield dict(zip(order, parts, strict=True))
    elif isinstance(value, list):
        for parts in itertools.product(*(list(orders(part)) for part in value)):
            yield list(parts)
    else:
        yield value


def accepts(compiled: CompiledGrammar, text: str) -> bool:
    matcher = compiled.matcher()
    return all(matcher.accept(byte) for byte in text.encode()) and matcher.can_end


if __name__ == "__main__":
    sys.exit(main())
