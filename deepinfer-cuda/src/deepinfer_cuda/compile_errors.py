"""Which exceptions of a kernel say that it does not compile for this GPU."""

from __future__ import annotations

from deepinfer_core.errors import PlatformError
from triton.errors import TritonError

FAILED_PASS = "PassManager::run failed"
"""What Triton says, in a bare RuntimeError, where its compiler gives up half-way."""


class SourceError(PlatformError):
    """CUDA C++ does not compile; the message has what the compiler said."""


def compile_failure(error: Exception) -> str | None:
    """See `KernelSpec.compile_failure`.

    Programs that want more shared memory than the GPU has are among those of Triton: it finds that
    out before it launches one.
    """
    is_failed_pass = isinstance(error, RuntimeError) and FAILED_PASS in str(error)
    if is_failed_pass or isinstance(error, (TritonError, SourceError)):
        return f"{type(error).__name__}: {error}"
    return None
