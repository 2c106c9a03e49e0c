"""Requests of the Responses protocol."""

from __future__ import annotations

from ..arguments import check_instance
from ..replies.responses import ResponsesChunkGenerator
from ..replies.responses_object import ResponsesEcho, make_echo
from .converted import ConversationRequest
from .options import ConversionOptions
from .protocol import ProtocolRequest, RequestBody
from .responses_body import ResponsesBody, read_responses_body
from .responses_convert import convert_responses
from .responses_tools import DeclaredTools, declare_tools, echo_tools
from .settings import resolve_model


class ResponsesRequest(ProtocolRequest[ResponsesBody]):
    """A Responses request. Conversion consumes it, even a failed one."""

    def __init__(self, body: RequestBody) -> None:
        """Read a request body.

        Raises:
            ValueError: the body is no JSON, or no request.
        """
        super().__init__(body, read_responses_body)

    def namespace_tool_map(self, options: ConversionOptions) -> dict[str, tuple[str, str]]:
        """Return namespace and own name of each declared namespaced tool, by its full name.

        Raises:
            ConversionError: a tool declaration or the model is not accepted.
            RuntimeError: the request has been consumed.
        """
        body = self._read()
        version = resolve_model(body.model, check_instance("options", options, ConversionOptions))
        declared = DeclaredTools()
        named = [
            tool if tool["type"] in ("function", "namespace") else {"type": "unsupported"}
            for tool in body.tools
        ]
        declare_tools(named, version, options, declared)
        return declared.namespaces

    def echo(self) -> ResponsesEcho:
        """Return the settings that responses repeat.

        Raises:
            RuntimeError: the request has been consumed.
        """
        body = self._read()
        return make_echo(
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            temperature=1.0 if body.temperature is None else body.temperature,
            top_p=1.0 if body.top_p is None else body.top_p,
            top_logprobs=body.top_logprobs or 0,
            user=body.user,
            _reasoning=body.reasoning,
            _text=body.text,
            _tool_choice=body.tool_choice,
            _tools=echo_tools(body.tools),
        )

    def convert(self, options: ConversionOptions) -> ConversationRequest:
        """Convert the request.

        Raises:
            ConversionError: the request breaks a rule of the protocol.
            RuntimeError: the request has been consumed.
        """
        return convert_responses(self._take(options), options)

    @staticmethod
    def chunk_generator(
        request: ConversationRequest, id: str, model: str
    ) -> ResponsesChunkGenerator:
        """Return the generator of the events that answer a request."""
        return ResponsesChunkGenerator(
            id,
            model,
            thinking_mode=request.conversation.thinking_mode,
            client_tools=request.client_tools,
        )
