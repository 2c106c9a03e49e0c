"""DeepSeek's prompt formats and API protocols: requests to token ids, model output to responses.

The names and call signatures are those of `deepseek-recipe` 0.2.0, so that
`import deepinfer_recipe as deepseek_recipe` runs code written for it. Beyond them there are
`DeepseekV32Encoding`, `encode_fim`, `OutputParser` and `DeepseekRecipe`.
"""

from ._version import __version__
from .conversation import (
    AssistantMessage,
    BytesImageSource,
    Conversation,
    DataUrlImageSource,
    ImageSource,
    LatestReminderMessage,
    Message,
    SystemMessage,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UrlImageSource,
    UserMessage,
)
from .images import (
    CalcResizeError,
    ImageError,
    ImageInfo,
    ImageQuota,
    ImageResolver,
    MultiModalData,
    OpenCvImagePreprocessor,
    PreprocessOptions,
    ReqwestImageFetcher,
)
from .parsing import OutputParser, ParsingOptions, ThinkingInitialStage
from .prompts import (
    DeepseekV4Encoding,
    DeepseekV32Encoding,
    DeepseekV41Encoding,
    RenderedPrompt,
    encode_fim,
)
from .recipe import DeepseekRecipe
from .replies.chat import (
    ChatCompletionChunk,
    ChatCompletionChunkGenerator,
    ChatCompletionResponse,
)
from .replies.messages import MessagesChunkGenerator, MessagesResponse, MessagesStreamEvent
from .replies.responses import ResponsesChunkGenerator, ResponsesResponse, ResponsesStreamEvent
from .replies.responses_object import ResponsesEcho
from .requests.chat import ChatCompletionRequest
from .requests.converted import ConversationRequest, InferenceOptions, OutputConstraint
from .requests.errors import ConversionError
from .requests.messages import MessagesRequest
from .requests.options import (
    ConversionOptions,
    ModelVersion,
    ReasoningContentBehavior,
    WebSearchBehavior,
)
from .requests.responses import ResponsesRequest
from .specials import IMAGE_SPECIAL_TOKEN_ID, SpecialToken, SpecialTokens
from .streaming.chunks import InferenceChunk, InferenceFinishReason, PromptUsage
from .streaming.processor import StreamProcessor
from .tokenizer import Tokenizer

__all__ = [
    "IMAGE_SPECIAL_TOKEN_ID",
    "AssistantMessage",
    "BytesImageSource",
    "CalcResizeError",
    "ChatCompletionChunk",
    "ChatCompletionChunkGenerator",
    "ChatCompletionRequest",
    "ChatCompletionResponse",
    "Conversation",
    "ConversationRequest",
    "ConversionError",
    "ConversionOptions",
    "DataUrlImageSource",
    "DeepseekRecipe",
    "DeepseekV4Encoding",
    "DeepseekV32Encoding",
    "DeepseekV41Encoding",
    "ImageError",
    "ImageInfo",
    "ImageQuota",
    "ImageResolver",
    "ImageSource",
    "InferenceChunk",
    "InferenceFinishReason",
    "InferenceOptions",
    "LatestReminderMessage",
    "Message",
    "MessagesChunkGenerator",
    "MessagesRequest",
    "MessagesResponse",
    "MessagesStreamEvent",
    "ModelVersion",
    "MultiModalData",
    "OpenCvImagePreprocessor",
    "OutputConstraint",
    "OutputParser",
    "ParsingOptions",
    "PreprocessOptions",
    "PromptUsage",
    "ReasoningContentBehavior",
    "RenderedPrompt",
    "ReqwestImageFetcher",
    "ResponsesChunkGenerator",
    "ResponsesEcho",
    "ResponsesRequest",
    "ResponsesResponse",
    "ResponsesStreamEvent",
    "SpecialToken",
    "SpecialTokens",
    "StreamProcessor",
    "SystemMessage",
    "ThinkingInitialStage",
    "Tokenizer",
    "ToolCall",
    "ToolDefinition",
    "ToolMessage",
    "UrlImageSource",
    "UserMessage",
    "WebSearchBehavior",
    "__version__",
    "encode_fim",
]
