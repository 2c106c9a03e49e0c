"""Chat templates give what transformers gives, and whatever goes wrong ends one request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deepinfer_core.errors import ConfigError, RequestError
from deepinfer_core.text.template import ChatTemplate, load_template_file
from deepinfer_core.text.tokenizer import Tokenizer
from transformers.utils.chat_template_utils import render_jinja_template

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
TEMPLATES = {
    "chatml": """{% for message in messages %}
        {%- if loop.first and message.role != 'system' %}
            {{- '<|im_start|>system\\nBe helpful.<|im_end|>\\n' }}
        {%- endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "headers": """{{- bos_token }}
{%- set ns = namespace(system='') %}
{%- if messages[0]['role'] == 'system' %}
    {%- set ns.system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- endif %}
<|header|>system<|end|>

{{ ns.system }}<|eot|>
{% for m in messages if m.role in ['user', 'assistant'] %}
    {%- generation %}
<|header|>{{ m.role }}<|end|>

{{ m.content | trim }}<|eot|>
    {%- endgeneration %}
{% endfor %}
{%- if add_generation_prompt %}<|header|>assistant<|end|>

{% endif %}""",
    "alternating": """{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Roles must alternate user/assistant/user/assistant') }}
{% endif %}
{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}
{% else %}{{ ' ' + message['content'] ~ eos_token }}{% endif %}
{% endfor %}""",
    "tools": """{%- if tools %}
{{- '# Tools\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' }}{{- tool | tojson }}
    {%- endfor %}
{{- '\\n</tools>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'skipped' %}{%- continue %}{%- endif %}
    {{- '<' + message.role + '>' }}
    {%- if message.content is string %}{{- message.content }}{%- endif %}
    {%- for call in message.tool_calls or [] %}
        {{- '<call>' ~ call.function.name }}{{- call.function.arguments | tojson(indent=2) }}
    {%- endfor %}
    {%- if loop.index0 == 3 %}{%- break %}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<assistant>' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<no_think>' }}{%- endif %}
{%- endif %}""",
    "indented": """<
    {% for message in messages %}
        {% if message.role == 'user' %}
    {{ message.content }}
        {% else %}
    [{{ message.role }}]
        {% endif %}
    {% endfor %}
>""",
    "parts": """{% for message in messages %}{{ message.role }}:
{% if message.content is string %}{{ message.content }}
{% else %}{% for part in message.content %}{{ part.text }}|{% endfor %}{% endif %}{% endfor %}""",
}
CHATS: dict[str, list[dict[str, Any]]] = {
    "one": [{"role": "user", "content": "  What is 2 < 3 & 'x'? é 世 \n"}],
    "turns": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "{{ 7 * 7 }} {% raw %}"},
    ],
    "system": [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": ""}],
    "calls": [
        {"role": "user", "content": "weather?"},
        {
            "role": "assistant",
            "tool_calls": [{"function": {"name": "w", "arguments": {"city": "Zürich", "n": 1.5}}}],
        },
        {"role": "tool", "content": '{"t": 3}'},
        {"role": "skipped", "content": "no"},
        {"role": "user", "content": "last"},
    ],
}
TOOLS = [
    {"type": "function", "function": {"name": "w", "description": "<b>&'ü'", "parameters": {}}}
]


def reference(source: str, chat: list[dict[str, Any]], **options: Any) -> str:
    rendered, _ = render_jinja_template(
        conversations=[chat], chat_template=source, **{"tools": None, **SPECIAL, **options}
    )
    return rendered[0]


def outcome(render: Any) -> str:
    try:
        return render()
    except Exception as error:
        return f"error: {str(error).removeprefix('the chat template refused: ')}"


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("prompt", [True, False])
def test_rendering_agrees_with_transformers(template: str, chat: str, prompt: bool) -> None:
    source, messages = TEMPLATES[template], CHATS[chat]
    ours = ChatTemplate(source, special_tokens=SPECIAL)
    assert outcome(lambda: ours.render(messages, add_generation_prompt=prompt)) == outcome(
        lambda: reference(source, messages, add_generation_prompt=prompt)
    )


@pytest.mark.parametrize("chat", ["one", "turns", "system"])
def test_the_real_template_agrees_with_transformers(real: Tokenizer, chat: str) -> None:
    ours = ChatTemplate(real.chat_templates, special_tokens=real.special_tokens)
    wanted = reference(real.chat_templates["default"], CHATS[chat], add_generation_prompt=True)
    assert ours.render(CHATS[chat]) == wanted
    ids = real.encode(wanted, add_special_tokens=False)
    assert ids[0] == real.token_to_id("<|im_start|>")


def test_tools_and_other_variables_reach_the_template() -> None:
    ours = ChatTemplate(TEMPLATES["tools"])
    for options in ({}, {"enable_thinking": False}, {"enable_thinking": True}):
        wanted = reference(
            TEMPLATES["tools"], CHATS["calls"], tools=TOOLS, add_generation_prompt=True, **options
        )
        assert ours.render(CHATS["calls"], tools=TOOLS, **options) == wanted
    assert "<b>&'ü'" in wanted


def test_tools_for_a_template_that_takes_none_are_refused() -> None:
    """Rendering without them would answer another question than the one asked."""
    ours = ChatTemplate(TEMPLATES["chatml"])
    with pytest.raises(RequestError, match="takes no tools") as caught:
        ours.render(CHATS["one"], tools=TOOLS)
    assert caught.value.field == "tools"
    assert ours.render(CHATS["one"], tools=[]) == ours.render(CHATS["one"])


def test_named_templates() -> None:
    ours = ChatTemplate({"default": "plain", "tool_use": "{{ tools | length }}", "rag": "rag"})
    assert ours.names == ("default", "rag", "tool_use")
    assert ours.render(CHATS["one"]) == "plain"
    assert ours.render(CHATS["one"], tools=TOOLS) == "1"
    assert ours.render(CHATS["one"], template_name="rag") == "rag"
    with pytest.raises(RequestError, match="no chat template named 'x'; this model has 'default'"):
        ours.render(CHATS["one"], template_name="x")


def test_a_model_without_a_template_says_so() -> None:
    with pytest.raises(RequestError, match="this model has none"):
        ChatTemplate({}).render(CHATS["one"])


@pytest.mark.parametrize("template", ["chatml", "headers", "tools"])
def test_the_last_message_is_continued(template: str) -> None:
    chat = [{"role": "user", "content": "count"}, {"role": "assistant", "content": "one, two,"}]
    ours = ChatTemplate(TEMPLATES[template], special_tokens=SPECIAL)
    text = ours.render(chat, continue_final_message=True)
    assert text.endswith("one, two,")
    assert ours.render(chat, add_generation_prompt=False).startswith(text)


def test_a_continued_message_excludes_the_generation_prompt() -> None:
    ours = ChatTemplate("{{ add_generation_prompt }}: {{ messages[0].content }}")
    assert ours.render([{"role": "assistant", "content": "a"}]) == "True: a"
    text = ours.render([{"role": "assistant", "content": "a"}], continue_final_message=True)
    assert text == "False: a"


def test_a_last_message_that_is_not_written_cannot_be_continued() -> None:
    chat = [{"role": "user", "content": "a"}]
    for source in ("nothing", "{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}"):
        with pytest.raises(RequestError, match="cannot be continued"):
            ChatTemplate(source).render(chat, continue_final_message=True)
    with pytest.raises(RequestError, match="no content to continue"):
        ChatTemplate("x").render([{"role": "user"}], continue_final_message=True)


def test_text_parts_become_one_text_where_the_template_knows_no_parts() -> None:
    chat = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    ]
    plain = ChatTemplate(TEMPLATES["chatml"])
    assert plain.render(chat) == plain.render([{"role": "user", "content": "a\nb"}])
    assert ChatTemplate(TEMPLATES["parts"]).render(chat) == reference(TEMPLATES["parts"], chat)


def test_null_fields_of_clients_are_absent_but_for_content() -> None:
    source = "{{ 'tool_calls' in messages[0] }} {{ messages[0].content is none }}"
    chat = [{"role": "assistant", "content": None, "tool_calls": None}]
    assert ChatTemplate(source).render(chat) == "False True"


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "at least one message"),
        ("hi", "must be a list"),
        ({"role": "user"}, "must be a list"),
        ([{"role": "user"}, "hi"], r"messages\[1\] must be an object with a 'role'"),
        ([{"content": "a"}], r"messages\[0\] must be an object with a 'role'"),
        ([{"role": 3, "content": "a"}], r"messages\[0\] must be an object with a 'role'"),
        ([{"role": "user", "content": 3}], r"messages\[0\]\.content.*only text"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            r"content\[0\] is 'image_url'; without a recipe",
        ),
        ([{"role": "user", "content": "a", "x": {1, 2}}], r"messages\[0\]\.x must be JSON"),
    ],
)
def test_malformed_messages_are_refused(messages: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        ChatTemplate("{{ messages[0].content }}").render(messages)


def test_tools_and_variables_must_be_plain() -> None:
    ours = ChatTemplate("{{ tools }}")
    with pytest.raises(RequestError, match="list of JSON schemas"):
        ours.render(CHATS["one"], tools=[print])  # type: ignore[list-item]
    with pytest.raises(RequestError, match="must be JSON data, not builtin_function"):
        ours.render(CHATS["one"], extra=print)
    with pytest.raises(RequestError, match="cannot be named messages"):
        ours.render(CHATS["one"], messages=[])


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ raise_exception('only odd turns') }}", "refused: only odd turns"),
        ("{{ messages[0].content + 3 }}", "refused: .*str"),
        ("{{ nothing.at.all }}", "refused: 'nothing' is undefined"),
        ("{{ 1 // 0 }}", "refused: .*zero"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "refused: .*recursion"),
        ("{{ range(10 ** 6) | list }}", "refused: Range too big"),
        ("{% for x in %}", "is no valid jinja2, line 1"),
        ("{{ messages[0].content.format(x) }}\n{% nope %}", "line 2: .*nope"),
    ],
)
def test_what_a_template_does_wrong_ends_one_request(source: str, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        ChatTemplate(source).render(CHATS["one"])


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ raise_exception.__globals__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{% include '/etc/passwd' %}",
    ],
)
def test_a_template_reaches_nothing_outside(source: str) -> None:
    """Templates come with checkpoints, from strangers."""
    try:
        text = ChatTemplate(source).render(CHATS["one"])
    except RequestError:
        return
    assert text == ""


def test_a_list_that_holds_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(RequestError, match="tools is nested deeper than 100"):
        ChatTemplate("{{ tools }}").render(CHATS["one"], tools=[{"a": endless}])


def test_half_a_character_in_a_message_is_found_when_it_is_encoded(byte_level: Tokenizer) -> None:
    text = ChatTemplate(TEMPLATES["tools"]).render([{"role": "user", "content": "a\ud800"}])
    with pytest.raises(RequestError, match="lone surrogate"):
        byte_level.encode(text)


def test_rendering_changes_no_message() -> None:
    chat = [{"role": "user", "content": [{"type": "text", "text": "a"}]}]
    ChatTemplate(TEMPLATES["chatml"]).render(chat, continue_final_message=True)
    assert chat == [{"role": "user", "content": [{"type": "text", "text": "a"}]}]


def test_the_date_is_todays() -> None:
    assert len(ChatTemplate("{{ strftime_now('%Y-%m-%d') }}").render(CHATS["one"])) == 10


def test_a_template_file_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text("{{ bos_token }}é{{ messages[0].content }}", encoding="utf-8")
    assert load_template_file(file, SPECIAL).render([{"role": "user", "content": "a"}]) == "<s>éa"


@pytest.mark.parametrize("content", [None, b"\xff\xff", b"line\n{% for %}"])
def test_an_unusable_template_file_is_a_configuration_error(
    tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "mine.jinja"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match="chat template cannot be used") as caught:
        load_template_file(file, SPECIAL)
    assert caught.value.field == "model.chat_template"
    assert str(file) in str(caught.value)
