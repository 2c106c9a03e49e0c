"""JSON objects as grammars: which pairs are there, and the commas between them."""

from __future__ import annotations

from deepinfer_core.structured.ebnf import Rules, repeat
from deepinfer_core.structured.json_values import refuse


class ObjectWriter:
    """The pairs of an object in their order, with commas between those that are there.

    Args:
        pairs: each with whether it must be there.
        more: a pair that may follow any number of times; None: none may.
    """

    def __init__(
        self, rules: Rules, space: str, pairs: list[tuple[str, bool]], more: str | None
    ) -> None:
        self._rules, self._space, self._pairs, self._more = rules, space, pairs, more

    def body(self, least: int, most: int | None, path: str) -> str:
        """The whole object.

        Raises:
            GrammarError: so many pairs cannot be counted.
        """
        needed = sum(is_required for _, is_required in self._pairs)
        num_optional = len(self._pairs) - needed
        if least > needed + 1:
            refuse(f"{path}/minProperties", "only what is required can be counted, and one more; "
                   "name further ones as required")  # fmt: skip
        limit: int | None = None
        if most is not None and (self._more is not None or most < len(self._pairs)):
            if num_optional:
                refuse(f"{path}/maxProperties", "cannot be counted beside optional properties; "
                       "leave it out")  # fmt: skip
            limit = most - needed
        inner = self._first(0, limit, must_have=least > needed)
        return f'"{{" {self._space} ({inner}) "}}"'

    def _first(self, index: int, limit: int | None, *, must_have: bool) -> str:
        """The pairs from an index on when none is written yet."""
        if index == len(self._pairs):
            if self._more is None or limit == 0:
                return '""'
            rest = repeat(
                f'"," {self._space} {self._more}', 0, limit if limit is None else limit - 1
            )
            optional = "" if must_have else "?"
            return f"({self._more} {rest}){optional}"
        pair, is_required = self._pairs[index]
        here = f"{pair} {self._rest(index + 1, limit, must_have=must_have and is_required)}"
        if is_required:
            return here
        later = self._rules.add("later", self._first(index + 1, limit, must_have=must_have))
        return f"{here} | {later}"

    def _rest(self, index: int, limit: int | None, *, must_have: bool) -> str:
        """The pairs from an index on behind another."""
        if index == len(self._pairs):
            if self._more is None or limit == 0:
                return '""'
            return repeat(f'"," {self._space} {self._more}', int(must_have), limit)
        pair, is_required = self._pairs[index]
        rest = self._rest_rule(index + 1, limit, must_have=must_have)
        comma = f'"," {self._space} {pair}'
        if is_required:
            return f"{comma} {rest}"
        if not must_have:
            return f"({comma})? {rest}"
        free = self._rest_rule(index + 1, limit, must_have=False)
        return f"({comma} {free} | {rest})"

    def _rest_rule(self, index: int, limit: int | None, *, must_have: bool) -> str:
        return self._rules.add("rest", self._rest(index, limit, must_have=must_have))
