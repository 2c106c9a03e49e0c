"""Random regular expressions in schemas: accepted or refused as by the oracle.

Also under drafts 4 and 7, which hold a pattern to ECMA 262, the latter where nothing uses it. Only
the size of the compiled program, which validators limit, is not modelled but for one character.
"""

import random

SITE = "http://json-schema.org/draft"
DRAFTS = ["", "", f"{SITE}-04/schema#", f"{SITE}-07/schema#"]
PARTS = [
    "a", "b", ".", "^", "$", "*", "+", "?", "{2}", "{2,}", "{,2}", "{1,3}", "{3,1}", "{",
    "}", "(", ")", "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?<n>", "(?P<n>", "(?<m>", "(?>", "[",
    "]", "[^", "-", "a-z", "z-a", "|", "\\d", "\\D", "\\w", "\\s", "\\b", "\\B", "\\n", "\\\\",
    "\\p{L}", "\\p{Zz}", "\\pL", "\\u0041", "\\x41", "\\u{41}", "\\x{41}", "\\1", "\\2", "\\k<n>",
    "\\k", "\\c", "\\cA", "\\-", "\\/", "\\é", "é", "日", "\n", " ", "(?i)", "(?i:", "(?ii)",
    "(?-i)", "[[:alpha:]]", "&&", "\\", "\\z", "\\A", "\\Z", "\\_", "\\8", "\\0", "\\h", "\\q",
    "\\a", "#", "=", "{99999999999999999999}",
]  # fmt: skip


def draw(seed):
    rng = random.Random(seed)
    pattern = "".join(rng.choice(PARTS) for _ in range(rng.choice([1, 2, 3, 4, 5, 7])))
    return pattern, rng.choice(DRAFTS)


def run(side, case):
    pattern, draft = case
    schema = {"type": "object", "$schema": draft}
    schema["definitions" if "07" in draft else "properties"] = {"a": {"pattern": pattern}}
    body = {
        "model": "DeepSeek-V4-Pro",
        "messages": [{"role": "user", "content": "q"}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
    }
    try:
        side.api.ChatCompletionRequest(body).convert(side.api.ConversionOptions())
    except side.api.ConversionError:
        return False
    return True


def test_patterns_are_judged_like_the_oracle(agree, seeds):
    agree(seeds, draw, run)
