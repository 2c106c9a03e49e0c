"""One process per job: an advisory lock on an open file, where the system has them."""

from __future__ import annotations

try:
    import fcntl
except ImportError:  # optional: systems without POSIX locks run unguarded
    fcntl = None  # type: ignore[assignment]


def lock_file(fd: int) -> bool:
    """Lock until the file is closed or the process ends. False: another process holds it."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
