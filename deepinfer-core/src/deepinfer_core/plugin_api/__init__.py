"""The contract between core and its plugins: hooks, records, protocols and the API version.

All that a plugin needs besides `deepinfer_core.hookimpl`. Imports no torch.
"""

from deepinfer_core.plugin_api.device import (
    CapturedGraph,
    DeviceEvent,
    DeviceInfo,
    DeviceRuntime,
    HostInfo,
    MeasuresMemory,
)
from deepinfer_core.plugin_api.kernel import FEATURES, Caps, KernelSpec, Numerics, Problem, Reason
from deepinfer_core.plugin_api.markers import PROJECT_NAME, hookimpl
from deepinfer_core.plugin_api.recipe import (
    AnswerText,
    EncodedChat,
    ReadsImages,
    ReasoningText,
    Recipe,
    ReplyEvent,
    ReplyParser,
    RgbImage,
    ToolCallArguments,
    ToolCallStart,
)
from deepinfer_core.plugin_api.records import (
    CommandSpec,
    GrammarBackendSpec,
    Issue,
    KernelPolicy,
    KVConnectorSpec,
    KVLayoutSpec,
    ModelFacts,
    ModelSpec,
    PluginInfo,
    ProposerSpec,
    QuantSchemeSpec,
    RecipeSpec,
    StageSpec,
    StatLoggerSpec,
    TargetRecord,
)
from deepinfer_core.plugin_api.target import load_target, target_problem
from deepinfer_core.plugin_api.version import API_VERSION, range_problem

__all__ = [
    "API_VERSION",
    "FEATURES",
    "PROJECT_NAME",
    "AnswerText",
    "Caps",
    "CapturedGraph",
    "CommandSpec",
    "DeviceEvent",
    "DeviceInfo",
    "DeviceRuntime",
    "EncodedChat",
    "GrammarBackendSpec",
    "HostInfo",
    "Issue",
    "KVConnectorSpec",
    "KVLayoutSpec",
    "KernelPolicy",
    "KernelSpec",
    "MeasuresMemory",
    "ModelFacts",
    "ModelSpec",
    "Numerics",
    "PluginInfo",
    "Problem",
    "ProposerSpec",
    "QuantSchemeSpec",
    "ReadsImages",
    "Reason",
    "ReasoningText",
    "Recipe",
    "RecipeSpec",
    "ReplyEvent",
    "ReplyParser",
    "RgbImage",
    "StageSpec",
    "StatLoggerSpec",
    "TargetRecord",
    "ToolCallArguments",
    "ToolCallStart",
    "hookimpl",
    "load_target",
    "range_problem",
    "target_problem",
]
