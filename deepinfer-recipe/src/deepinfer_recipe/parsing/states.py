"""The states of the output parser as data: what ends a state, and what its text is.

Each state has its patterns in order of precedence and one action for all other text. The parser
in `parser` knows how to run any such table and nothing of the markup.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from ..specials import SpecialToken
from .options import ParsingOptions, ThinkingInitialStage
from .patterns import Pattern, PatternSet


class Action(Enum):
    """What happens to text that belongs to no pattern."""

    SKIP = auto()
    CONTENT = auto()
    REASONING = auto()
    SPACE = auto()  # one space of content per run
    NAME = auto()  # collected as the name of a call
    PARAMETER = auto()  # name of a parameter, passed on as it is
    STRING = auto()  # argument text, JSON-escaped
    RAW = auto()  # argument text that should be JSON already


class Effect(Enum):
    """What happens when a pattern has matched."""

    SKIP = auto()
    CONTENT = auto()  # the match is content of its own
    STOP = auto()
    BEGIN_NAME = auto()
    START_CALL = auto()
    ARGUMENTS = auto()  # append `Rule.literal` to the arguments


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern, what its match does, and the state that follows."""

    pattern: Pattern
    target: str
    effect: Effect = Effect.SKIP
    literal: str = ""


@dataclass(frozen=True, slots=True)
class State:
    """One state of the parser."""

    rules: tuple[Rule, ...]
    action: Action
    patterns: PatternSet = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "patterns", PatternSet(tuple(r.pattern for r in self.rules)))


DONE = "done"


def build_states(options: ParsingOptions) -> tuple[dict[str, State], str]:
    """Return the states for these options and the name of the first one."""
    dsml = options.special_tokens.token(SpecialToken.Dsml)
    thinking_end = options.special_tokens.token(SpecialToken.ThinkingEnd)
    stops = [Rule(Pattern(text), DONE, Effect.STOP) for text in options.stop_sequences if text]
    calls = [Rule(_marker("<{}", dsml, takes_newlines=True), "calls")]
    if not options.parse_tool_calls:
        calls = []
    states = _answer_states(options.parse_json_output, stops, calls, thinking_end)
    states |= _call_states(dsml)
    states[DONE] = State((), Action.SKIP)
    return states, _first_state(options)


def _first_state(options: ParsingOptions) -> str:
    if options.starts_in_tool_calls:
        return "calls"
    match options.thinking_initial_stage:
        case ThinkingInitialStage.ReasoningStart:
            return "reasoning_lead"
        case ThinkingInitialStage.ReasoningContinuation:
            return "reasoning"
        case ThinkingInitialStage.ContentContinuation:
            return "content"
        case None:
            return "content_lead"


def _answer_states(
    is_json: bool, stops: list[Rule], calls: list[Rule], thinking_end: str
) -> dict[str, State]:
    newline = Pattern("\n", is_leading_newline=True)
    openings = [
        Rule(Pattern("```json\n"), "json"),
        Rule(Pattern("```\n"), "json"),
        Rule(Pattern("{"), "json", Effect.CONTENT),
        Rule(Pattern("["), "json", Effect.CONTENT),
    ]
    ends = openings if is_json else stops
    text = Action.SPACE if is_json else Action.CONTENT
    thought = [Rule(_marker("{}", thinking_end), "content")]
    thought_nl = [Rule(_marker("{}", thinking_end, takes_newlines=True), "content_lead")]
    return {
        "content_lead": _state([*ends, *calls, Rule(newline, "content_lead"), *thought], text),
        "content": _state([*ends, *calls, *thought], text),
        "json": _state([*stops, Rule(Pattern("\n```"), "after_json")], Action.CONTENT),
        "after_json": _state(calls, Action.SPACE),
        "reasoning_lead": _state(
            [*calls, Rule(newline, "reasoning_lead"), *thought_nl], Action.REASONING
        ),
        "reasoning": _state([*calls, *thought_nl], Action.REASONING),
    }


def _call_states(dsml: str) -> dict[str, State]:
    def literal(pattern: Pattern, target: str, text: str) -> Rule:
        return Rule(pattern, target, Effect.ARGUMENTS, text)

    name_next = Pattern("parameter name=")
    end = _marker("</{}", dsml)
    return {
        "calls": _state(
            [
                Rule(Pattern('invoke name="'), "name", Effect.BEGIN_NAME),
                Rule(_marker("</{}tool_calls>", dsml), DONE),
                Rule(_marker("</{} calls>", dsml), DONE),
            ],
            Action.SKIP,
        ),
        "name": _state([Rule(Pattern('"'), "first_argument", Effect.START_CALL)], Action.NAME),
        "first_argument": _state(
            [literal(name_next, "parameter", "{"), literal(end, "calls", "{}")], Action.SKIP
        ),
        "next_argument": _state(
            [literal(name_next, "parameter", ", "), literal(end, "calls", "}")], Action.SKIP
        ),
        "parameter": _state([literal(Pattern(" "), "type", ": ")], Action.PARAMETER),
        "type": _state(
            [
                literal(Pattern('true">'), "string", '"'),
                Rule(Pattern('false">'), "raw"),
            ],
            Action.SKIP,
        ),
        "string": _state([literal(end, "next_argument", '"')], Action.STRING),
        "raw": _state([Rule(end, "next_argument")], Action.RAW),
    }


def _state(rules: list[Rule], action: Action) -> State:
    return State(tuple(rule for rule in rules if len(rule.pattern)), action)


def _marker(text: str, token: str, *, takes_newlines: bool = False) -> Pattern:
    if not token:  # spelled as nothing: only the text around it is left to find
        return Pattern(text.replace("{}", ""), takes_newlines=takes_newlines)
    return Pattern(text, token, takes_newlines=takes_newlines)
