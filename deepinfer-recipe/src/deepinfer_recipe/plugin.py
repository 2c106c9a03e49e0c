"""What `deepinfer` finds of this package: recipes for DeepSeek models, and a command.

The only module that imports core, and only core's plugin host imports it.
"""

from __future__ import annotations

from deepinfer_core import hookimpl
from deepinfer_core.plugin_api import CommandSpec, PluginInfo, RecipeSpec

from ._version import __version__
from .recipe import ARCHITECTURES


@hookimpl
def deepinfer_plugin_info() -> PluginInfo:
    """Say who this is."""
    return PluginInfo(
        name="recipe", version=__version__, vendor="The DeepInfer authors", api=">=1.0,<2"
    )


@hookimpl
def deepinfer_recipes() -> list[RecipeSpec]:
    """List the recipes."""
    return [RecipeSpec("deepseek", "deepinfer_recipe.recipe:DeepseekRecipe", ARCHITECTURES)]


@hookimpl
def deepinfer_commands() -> list[CommandSpec]:
    """List the commands."""
    help_text = "Look at prompts and outputs of DeepSeek models: render, encode, parse."
    return [CommandSpec("recipe", "deepinfer_recipe.cli:app", help_text)]
