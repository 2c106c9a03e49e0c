"""The one name of the plugin system, and its two markers."""

from __future__ import annotations

import pluggy

PROJECT_NAME = "deepinfer"
"""Of the markers, the plugin manager and the entry-point group alike."""

hookspec = pluggy.HookspecMarker(PROJECT_NAME)
hookimpl = pluggy.HookimplMarker(PROJECT_NAME)
