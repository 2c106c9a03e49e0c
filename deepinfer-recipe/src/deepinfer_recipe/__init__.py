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
