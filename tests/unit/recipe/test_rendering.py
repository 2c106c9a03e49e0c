"""Rules of the prompts that only odd conversations show; the vectors hold the common ones."""

import deepinfer_recipe as api

D = "｜DSML｜"


def prompt(messages, encoding=api.DeepseekV4Encoding, **settings):
    conversation = api.Conversation(messages, **{"thinking_mode": False, **settings})
    return encoding().render_conversation(conversation).prompt


def call(call_id):
    return api.ToolCall(call_id, "f", "{}")


def test_v4_puts_results_without_an_id_before_all_others():
    messages = [
        api.AssistantMessage("", None, [call("1"), call("2")]),
        api.ToolMessage("empty", ""),
        api.ToolMessage("none", None),
    ]
    shown = prompt(messages)
    assert shown.index(">none<") < shown.index(">empty<")


def test_v4_sorts_results_only_where_as_many_messages_follow_as_calls():
    calls = api.AssistantMessage("", None, [call("1"), call("2"), call("3")])
    results = [api.ToolMessage("b", "2"), api.ToolMessage("a", "1")]
    assert prompt([calls, *results]).endswith(
        "<tool_result>b</tool_result>\n\n<tool_result>a</tool_result><｜Assistant｜></think>"
    )
    assert "<tool_result>a</tool_result>\n\n<tool_result>b<" in prompt(
        [calls, *results, api.UserMessage("u")]
    )


def test_v41_sorts_a_result_by_the_first_of_calls_with_its_id():
    calls = api.AssistantMessage("", None, [call("1"), call("2"), call("1")])
    results = [api.ToolMessage("b", "2"), api.ToolMessage("a", "1")]
    shown = prompt([calls, *results], api.DeepseekV41Encoding)
    assert shown.index(">a<") < shown.index(">b<")
