"""DeepSeek's prompt formats and API protocols: requests to token ids, model output to responses."""

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
from .prompts import DeepseekV4Encoding, DeepseekV41Encoding, RenderedPrompt
from .specials import IMAGE_SPECIAL_TOKEN_ID, SpecialToken, SpecialTokens
from .tokenizer import Tokenizer
from .parsing import ParsingOptions, ThinkingInitialStage
from .replies.chat import ChatCompletionChunk, ChatCompletionChunkGenerator, ChatCompletionResponse
from .replies.messages import MessagesChunkGenerator, MessagesResponse, MessagesStreamEvent
from .replies.responses_object import ResponsesEcho
from .replies.responses import ResponsesChunkGenerator, ResponsesResponse, ResponsesStreamEvent
from .requests.chat import ChatCompletionRequest
from .requests.converted import ConversationRequest, InferenceOptions, OutputConstraint
from .requests.messages import MessagesRequest
from .requests.responses import ResponsesRequest
from .requests.errors import ConversionError
from .requests.options import (
    ConversionOptions,
    ModelVersion,
    ReasoningContentBehavior,
    WebSearchBehavior,
)
from .streaming.chunks import InferenceChunk, InferenceFinishReason, PromptUsage
from .streaming.processor import StreamProcessor
