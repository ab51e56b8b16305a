"""The native tool format, compared with what chat templates of models with tools write themselves."""

import copy
from pathlib import Path

import pytest
from builders import turn
from envs.setups import section, setup_of
from templates.models import tokenizer

from coevolve.chat.chat_template import Renderer
from coevolve.envs.bfcl import calls, env, scenarios, synthesis, tasks, tools
from coevolve.records.episodes import Message

pytest.importorskip("bfcl_eval", reason="the wheel of envs_setup/bfcl.lock is not installed; run `make setup`")
trl = pytest.importorskip("trl", reason="it ships the chat templates of models with tools")
NATIVE = section("bfcl", tools="hermes", rules={"calls": "json"}, workers=1)
#: Chat templates with tools: the system message differs, the blocks do not.
TEMPLATES = ("qwen2_5", "qwen3_instruct_2507")


@pytest.fixture(params=TEMPLATES)
def native(request):
    """Qwen's tokenizer of the tests with the real chat template of a model with tools."""
    file = Path(trl.__file__).parent / f"chat_templates/{request.param}.jinja"
    if not file.is_file():
        pytest.skip(f"this version of TRL has no {file.name}")
    chosen = copy.copy(tokenizer("qwen3"))
    chosen.chat_template = file.read_text()
    return chosen


@pytest.fixture
def played():
    """A task's opening and two turns: a call that is executed, and two in one message, of which the second fails."""
    world = env.Bfcl(NATIVE)
    task = tasks.task_of(
        "base", next(i for i in range(200) if "TradingBot" in scenarios.scenario("base", i).classes), "t"
    )
    opening = world.start(task)
    requests = ("get_stock_info(symbol='NVDA')", "get_watchlist()", "no_such_tool(x=1)")
    first, *both = (env.write_call(NATIVE, tasks.scenario_of(task), call) for call in requests)
    texts = [first, "\n".join(both)]
    turns = [turn(world.parse(text), world.step(world.parse(text)).observation, text=text) for text in texts]
    return task, opening, turns


def test_tools_calls_and_results_are_those_of_the_template(native, played):
    """The definitions, the calls and the results stand in the template's own text of a conversation with tools."""
    task, opening, turns = played
    documents = [doc for api in tasks.scenario_of(task).classes for doc in scenarios.tool_documents(api).values()]
    definitions = [tools.function_definition(document) for document in documents]
    messages = [{"role": "user", "content": "Hello."}]
    for each in turns:
        requests = [calls.parse_call(action) for action in each.action.split("\n")]
        functions = [{"type": "function", "function": {"name": c.name, "arguments": c.kwargs}} for c in requests]
        messages.append({"role": "assistant", "content": "", "tool_calls": functions})
        outputs = each.observation.removeprefix("<tool_response>\n").removesuffix("\n</tool_response>")
        blocks = outputs.split("\n</tool_response>\n<tool_response>\n")
        messages += [{"role": "tool", "content": block} for block in blocks]
    text = native.apply_chat_template(messages, tools=definitions, tokenize=False)
    listed = opening.partition("Tools:\n")[2].partition("\n\nUser:")[0]
    assert listed.count("\n") == len(documents) + 1 and listed in text
    for each in turns:
        assert f"<|im_start|>assistant\n{each.text}<|im_end|>\n<|im_start|>user\n{each.observation}<|im_end|>" in text


def test_the_conversation_is_rendered_as_the_template_renders_it(native, played):
    """The kit's token ids are those of the template's text, but for the tags, which contents spell out."""
    _, opening, turns = played
    prompt = [Message(role="user", content=opening)]
    completion = [
        m
        for t in turns
        for m in (Message(role="assistant", content=t.text), Message(role="user", content=t.observation))
    ]
    rendered = Renderer(native).render(prompt, completion[:-1])
    plain = [message.model_dump() for message in [*prompt, *completion]]
    text = native.apply_chat_template(plain, tokenize=False)
    assert native.decode(rendered.input_ids) == text[: text.rindex("<|im_end|>", 0, text.rindex("<|im_start|>")) + 10]


def test_a_sampled_tag_is_a_token_and_is_read(played):
    """A model samples `<tool_call>` as one token; the text of its ids parses."""
    qwen = tokenizer("qwen3")
    text = played[2][0].text
    sampled = qwen(text, add_special_tokens=False)["input_ids"]
    assert sampled[0] == qwen.convert_tokens_to_ids("<tool_call>")
    assert env.Bfcl(NATIVE).parse(Renderer(qwen).decode(sampled)) == "get_stock_info(symbol='NVDA')"


def test_blocks_hide_nothing_from_exploration_and_refusals(played):
    task, _, (good, _) = played
    setup = setup_of(NATIVE)
    assert synthesis.executed(setup, [good]) == ("get_stock_info(symbol='NVDA')",)
    bad = env.Bfcl(NATIVE)
    bad.start(task)
    refused = turn("no_such_tool()", bad.step("no_such_tool()").observation)
    assert refused.observation.startswith("<tool_response>\nError") and synthesis.executed(setup, [refused]) == ()
    goal = synthesis.goal_task(setup, task, "new", synthesis.describe(setup, task, ("get_watchlist()",)))
    replayed = env.Bfcl(NATIVE)
    replayed.start(goal)
    result = [replayed.step(replayed.parse(text)) for text in synthesis.solution_texts(setup, goal)][-1]
    assert (result.reward, result.done) == (1.0, True)


def test_the_format_of_calls_must_fit():
    with pytest.raises(ValueError, match=r"`tools: hermes` needs `rules\.calls: json`"):
        section("bfcl", tools="hermes", workers=1)
