"""The error tree, split by what the caller can do about it.

    DeepInferError
    ├── ConfigError              fix your configuration
    ├── RequestError             fix this request; the engine is fine
    │   ├── PromptTooLongError
    │   ├── UnsupportedSamplingError
    │   └── GrammarError
    ├── PluginError              fix or block this plugin
    ├── ModelLoadError           fix the checkpoint
    ├── PlatformError            this machine can't
    │   ├── UnsupportedOpError
    │   └── OutOfDeviceMemoryError
    └── EngineError              a bug or a lost device; the engine must stop
        ├── IntegrityError
        └── DeviceLostError

Messages say what, the two numbers, and what to do. Imports nothing of the package.
"""

from __future__ import annotations

from collections.abc import Sequence


class DeepInferError(Exception):
    """Base of every error that DeepInfer raises on purpose."""


class ConfigError(DeepInferError):
    """A configuration value is not usable.

    Args:
        message: what is wrong and what to do.
        field: dotted path of the field, such as `scheduler.max_num_seqs`.
        value: what was given.
        allowed: what would be accepted, in words.
        source: where the value came from: a file, an environment variable, a flag.
    """

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        value: object = None,
        allowed: str | None = None,
        source: str | None = None,
    ) -> None:
        self.field, self.value, self.allowed, self.source = field, value, allowed, source
        parts = [message]
        if field is not None:
            parts.append(f"field {field} = {value!r}")
        if allowed is not None:
            parts.append(f"allowed: {allowed}")
        if source is not None:
            parts.append(f"from {source}")
        super().__init__("; ".join(parts))


class RequestError(DeepInferError):
    """One request cannot be served. Ends that request only.

    Args:
        message: what is wrong and what to do.
        field: the request field at fault, if there is one.
    """

    def __init__(self, message: str, *, field: str | None = None) -> None:
        self.field = field
        super().__init__(message)


class PromptTooLongError(RequestError):
    """The prompt does not fit. The message holds both numbers."""


class UnsupportedSamplingError(RequestError):
    """A sampling parameter is unknown, malformed, or not possible with this model."""


class GrammarError(RequestError):
    """A structured-output specification is malformed or not enforceable."""


class PluginError(DeepInferError):
    """A plugin failed, clashed, or is of the wrong version.

    Args:
        message: what happened and what to do.
        distribution, version: of the plugin at fault.
        hook: the hook or stage in which it failed, such as `import` or `deepinfer_kernels`.
    """

    def __init__(
        self,
        message: str,
        *,
        distribution: str | None = None,
        version: str | None = None,
        hook: str | None = None,
    ) -> None:
        self.distribution, self.version, self.hook = distribution, version, hook
        where = " ".join(part for part in (distribution, version) if part)
        prefix = f"plugin {where}" if where else "plugin"
        super().__init__(f"{prefix}{f' in {hook}' if hook else ''}: {message}")


class ModelLoadError(DeepInferError):
    """A checkpoint cannot be loaded. Lists of names are sorted.

    Args:
        message: what is wrong and what to do.
        missing: names that the model needs and the checkpoint lacks.
        unexpected: names that the checkpoint has and the model does not know.
        mismatched: `name: wanted shape and dtype, found shape and dtype`.
    """

    def __init__(
        self,
        message: str,
        *,
        missing: Sequence[str] = (),
        unexpected: Sequence[str] = (),
        mismatched: Sequence[str] = (),
    ) -> None:
        self.missing = sorted(missing)
        self.unexpected = sorted(unexpected)
        self.mismatched = sorted(mismatched)
        lines = [message]
        for title, names in (
            ("missing", self.missing),
            ("unexpected", self.unexpected),
            ("mismatched", self.mismatched),
        ):
            if names:
                lines.append(f"{title} ({len(names)}):")
                lines.extend(f"  {name}" for name in names)
        super().__init__("\n".join(lines))


class PlatformError(DeepInferError):
    """This machine lacks what was asked for. Says what was wanted and what was found."""


class UnsupportedOpError(PlatformError):
    """No provider can serve an op. Holds one reason for each candidate."""

    def __init__(self, op: str, reasons: Sequence[tuple[str, str]]) -> None:
        self.op, self.reasons = op, tuple(reasons)
        lines = [f"no provider can serve op {op}:"]
        lines.extend(f"  {provider}: {reason}" for provider, reason in reasons)
        super().__init__("\n".join(lines))


class OutOfDeviceMemoryError(PlatformError):
    """An allocation cannot fit. Says bytes wanted, bytes free, and the knob to turn."""

    def __init__(self, *, wanted_bytes: int, free_bytes: int, hint: str) -> None:
        self.wanted_bytes, self.free_bytes, self.hint = wanted_bytes, free_bytes, hint
        super().__init__(f"wanted {wanted_bytes:,} bytes, {free_bytes:,} bytes are free; {hint}")


class EngineError(DeepInferError):
    """A bug or a lost device. The engine must stop."""


class IntegrityError(EngineError):
    """Block accounting does not add up. The message holds the arithmetic."""


class DeviceLostError(EngineError):
    """The device stopped answering."""
