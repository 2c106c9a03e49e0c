"""The version of the plugin contract, and whether a plugin's range contains it.

Minor: an optional keyword, a new hook, record or feature flag. Major: anything else.
"""

from __future__ import annotations

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

API_VERSION = "1.0"


def range_problem(api: str, *, version: str = API_VERSION) -> str | None:
    """Say why a plugin with this API range does not fit; None if it does.

    Args:
        api: a version range such as `>=1.0,<2`.
        version: the host's.
    """
    try:
        allowed = SpecifierSet(api)
    except InvalidSpecifier:
        return f"its API range {api!r} is not a version range such as '>=1.0,<2'"
    if not api.strip():
        return "its API range is empty; say one such as '>=1.0,<2'"
    if Version(version) in allowed:
        return None
    remedy = "upgrade deepinfer-core" if _wants_newer(allowed, version) else "upgrade the plugin"
    return f"it needs plugin API {api}, this deepinfer-core serves {version}; {remedy}"


def _wants_newer(allowed: SpecifierSet, version: str) -> bool:
    """Whether the range lies above the version."""
    lower = [Version(s.version.removesuffix(".*")) for s in allowed if s.operator in _LOWER_BOUNDS]
    return any(bound >= Version(version) for bound in lower)


_LOWER_BOUNDS = (">=", ">", "==", "~=", "===")
