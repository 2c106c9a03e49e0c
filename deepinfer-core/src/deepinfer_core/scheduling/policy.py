"""Who goes first. A policy is a sort key and the question whether one request may oust another.

Knows only what a request says of itself; keys are total orders, with `request_id` last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from deepinfer_core.errors import ConfigError
from deepinfer_core.request import Request


@dataclass(frozen=True, slots=True)
class Policy:
    """An order of requests."""

    name: str
    key: Callable[[Request], tuple[int, ...]]
    """Smaller runs first. Must not change during a request's life."""
    outranks: Callable[[Request, Request], bool]
    """Whether the first, waiting, may have the second's blocks and row."""


def fcfs(request: Request) -> tuple[int, ...]:
    """First come, first served."""
    return (request.request_id,)


def priority(request: Request) -> tuple[int, ...]:
    """Lower numbers first, then first come."""
    return (request.priority, request.request_id)


POLICIES = {
    "fcfs": Policy("fcfs", fcfs, lambda waiting, running: False),
    "priority": Policy(
        "priority", priority, lambda waiting, running: waiting.priority < running.priority
    ),
}


def get_policy(name: str) -> Policy:
    """Look a policy up.

    Raises:
        ConfigError: there is none of that name.
    """
    if name not in POLICIES:
        raise ConfigError(
            "unknown scheduling policy",
            field="scheduler.policy",
            value=name,
            allowed=", ".join(POLICIES),
        )
    return POLICIES[name]
