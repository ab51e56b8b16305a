"""Ids and masks against what the chat templates themselves write."""

import copy
import itertools
from collections import Counter

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from templates.models import CONTROLS, NAMES, SPECIALS, TEXT, tokenizer
from tokenizers import AddedToken

from coevolve.chat.chat_template import Renderer
from coevolve.errors import UserError
from coevolve.records.episodes import Message, Turn
from coevolve.train.tiny_model import train_tokenizer

RENDERERS = {name: Renderer(tokenizer(name)) for name in NAMES}
CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\u2581")
SPECIAL_TEXTS = [token for tokens in SPECIALS.values() for token in tokens] + ["<tool_call>", "</tool_call>"]


def contents(*, specials=True):
    words = st.sampled_from(
        ["Action: take key", "[INST]", "<<SYS>>", " ", "\n\n", *(SPECIAL_TEXTS if specials else [])]
    )
    return st.lists(st.one_of(st.text(CHARACTERS, max_size=8), words), max_size=6).map(
        lambda parts: "".join(parts).strip()
    )


def said(*texts, first="user"):
    """Messages in turn."""
    roles = itertools.cycle(("user", "assistant") if first == "user" else ("assistant", "user"))
    return [Message(role=role, content=text) for role, text in zip(roles, texts, strict=False)]


@st.composite
def conversations(draw, *, specials=True):
    """A prompt and a completion that alternate as they should."""
    texts = st.lists(contents(specials=specials), min_size=1, max_size=7).filter(lambda some: len(some) % 2)
    prompt = [Message(role="system", content=draw(contents(specials=specials)))] if draw(st.booleans()) else []
    return prompt + said(*draw(texts)), said(*draw(texts), first="assistant")


def template_text(name, messages):
    """The template's own text of `messages`, all of them in history position, up to the last end of turn."""
    mark = "the end of it all"
    plain = [message.model_dump() for message in [*messages, Message(role="user", content=mark)]]
    text = tokenizer(name).apply_chat_template(plain, tokenize=False)
    return text[: text.rindex(SPECIALS[name][0], 0, text.rindex(mark)) + len(SPECIALS[name][0])]


def spelled(name, text):
    """Whether the tokenizer has tokens for all bytes of a text."""
    return tokenizer(name).decode(tokenizer(name)(text)["input_ids"]) == text


def actions(rendered):
    """The runs of ids under the mask."""
    runs, previous = [], 0
    for token, flag in zip(rendered.input_ids, rendered.action_mask, strict=True):
        if flag and not previous:
            runs.append([])
        if flag:
            runs[-1].append(token)
        previous = flag
    return runs


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60)
@given(conversation=conversations())
def test_exactly_the_actions_and_their_ends_carry_loss_and_the_ids_spell_the_template(name, conversation):
    prompt, completion = conversation
    # SmolLM2 has no tokens for control characters and for what begins with the bytes F1 to F4, as published.
    assume(name != "smollm2" or all(spelled(name, message.content) for message in completion))
    rendered, end = RENDERERS[name].render(prompt, completion), RENDERERS[name].end_of_turn
    runs = actions(rendered)
    assert [RENDERERS[name].decode(run) for run in runs] == [message.content for message in completion[::2]]
    assert all(run.count(end) == 1 and run[-1] == end for run in runs)
    if name in ("tiny", "qwen3"):
        assert tokenizer(name).decode(rendered.input_ids) == template_text(name, prompt + completion)


@settings(max_examples=60)
@given(conversation=conversations(specials=False))
def test_the_ids_spell_the_template_of_a_sentencepiece_tokenizer(conversation):
    prompt, completion = conversation
    rendered = RENDERERS["llama2"].render(prompt, completion)
    encode = tokenizer("llama2")(template_text("llama2", prompt + completion), add_special_tokens=False)
    assert tokenizer("llama2").decode(rendered.input_ids) == tokenizer("llama2").decode(encode["input_ids"])


@pytest.mark.parametrize("name", NAMES)
def test_segments_are_the_tokens_of_the_whole_text(name):
    prompt = [Message(role="system", content="Be brief."), *said("Your task is to find the key.")]
    texts = ("Thought: look.\nAction: open door", "In it you see: a key.", "Action: take key")
    completion = said(*texts, first="assistant")
    whole = tokenizer(name)(template_text(name, prompt + completion), add_special_tokens=False)["input_ids"]
    assert list(RENDERERS[name].render(prompt, completion).input_ids) == whole


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40)
@given(
    conversation=conversations(),
    sampled=st.lists(st.lists(st.integers(0, 340), min_size=1, max_size=6), min_size=4, max_size=4),
    ended=st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_sampled_ids_stand_as_they_are_and_only_ever_grow(name, conversation, sampled, ended):
    renderer = RENDERERS[name]
    prompt, completion = conversation
    ids = [tuple(run) + (renderer.end_of_turn,) * end for run, end in zip(sampled, ended, strict=True)]
    texts = [message.content for message in completion[::2]]
    observations = [*(message.content for message in completion[1::2]), "the end"]
    turns = [
        Turn(text=text, action=None, observation=seen, token_ids=tokens)
        for text, seen, tokens in zip(texts, observations, ids, strict=False)
    ]
    lengths = [renderer.conversation_ids(prompt, turns[:count]) for count in range(len(turns) + 1)]
    assert lengths[0] == renderer.prompt_ids(prompt)
    for shorter, longer, tokens in zip(lengths, lengths[1:], ids, strict=False):
        assert longer[: len(shorter) + len(tokens)] == shorter + tokens
    rendered = renderer.render(prompt, completion, ids[: len(texts)])
    masked = [token for token, flag in zip(rendered.input_ids, rendered.action_mask, strict=True) if flag]
    assert masked == [token for tokens in ids[: len(texts)] for token in tokens]
    assert rendered.input_ids[: len(lengths[-2])] == lengths[-2]


def test_a_turn_that_was_cut_off_is_closed_without_loss():
    renderer, prompt = RENDERERS["qwen3"], said("Go.")
    completion = said("Action: op", "What?", "Action: open door", first="assistant")
    cut = renderer.render(prompt, completion, [tuple(tokenizer("qwen3")("Action: op")["input_ids"]), ()])
    whole = renderer.render(prompt, completion)
    assert cut.input_ids == whole.input_ids
    assert sum(whole.action_mask) - sum(cut.action_mask) == 1


#: As Llama 3.2's: the date is a variable with today's as its default.
DATED = (
    "{%- if not date_string is defined %}{%- set date_string = strftime_now('%d %b %Y') %}{%- endif %}"
    "{{ '<|system|>Today: ' + date_string }}{% for m in messages %}"
    "{{ '<|' + m['role'] + '|>' + m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def with_template(template, name="tiny"):
    changed = copy.deepcopy(tokenizer(name))
    changed.chat_template = template
    return changed


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (None, "no chat template"),
        ("{{ raise_exception('only tools') }}", "only tools"),
        ("{{ messages[0]['content'] + 1 }}", "rejects a plain conversation"),
        ("{{ messages[-1]['content'] }}<|end|>", "drops, repeats or reorders"),
        ("{% for m in messages %}{{ loop.index ~ m['content'] }}<|end|>{% endfor %}", "differently"),
        (
            "{% for m in messages %}{{ m['content'] }}<|end|>{% endfor %}"
            "{% if add_generation_prompt %}<think></think>{% endif %}",
            "differently",
        ),
        ("{% for m in messages %}{{ m['content'] }}\n{% endfor %}", "without a special token"),
        (DATED, "today's date; replace `strftime_now`"),
    ],
)
def test_a_template_that_cannot_be_handled_is_named(template, problem):
    with pytest.raises(UserError, match=problem) as error:
        Renderer(with_template(template))
    assert str(error.value).startswith("tiny: ")


def test_a_template_that_drops_thoughts_of_past_turns_is_used_with_a_warning(caplog):
    for name in NAMES:
        Renderer(tokenizer(name))
    assert [record.getMessage() for record in caplog.records] == [
        "qwen3: its chat template drops the thoughts of past turns; sampled ones are kept."
    ]


def test_a_template_without_system_messages_still_serves_conversations_without_one():
    renderer = Renderer(
        with_template(
            "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no') }}{% endif %}"
            "{{ '<|' + m['role'] + '|>' + m['content'] }}<|end|>{% endfor %}"
            "{% if add_generation_prompt %}<|assistant|>{% endif %}"
        )
    )
    assert renderer.prompt_ids(said("Go.")) == RENDERERS["tiny"].prompt_ids(said("Go."))
    with pytest.raises(UserError, match="no system message"):
        renderer.prompt_ids([Message(role="system", content="Be brief."), *said("Go.")])


@pytest.mark.parametrize("roles", [["assistant"], ["user", "user", "user"], ["user", "assistant"], [], ["system"]])
def test_a_prompt_that_does_not_alternate_is_refused(roles):
    with pytest.raises(UserError, match="let them alternate, beginning and ending with user"):
        RENDERERS["tiny"].prompt_ids([Message(role=role, content="x") for role in roles])


def qwen_like():
    """The tokenizer of a tiny policy with control tokens that are not special, and whitespace as an added token."""
    made = train_tokenizer(TEXT, 340)
    made.add_tokens([AddedToken(token, special=False, normalized=False) for token in (*CONTROLS, "    ")])
    return made


@pytest.mark.parametrize("made", [lambda: tokenizer("qwen3"), qwen_like], ids=["qwen3", "tiny"])
@pytest.mark.parametrize("control", [*CONTROLS, "<|im_end|>", "<|end|>", "<|user|>"])
def test_no_content_is_ever_tokenized_into_a_control_token(made, control):
    """Observation, instruction, few-shot example and an expert's action: none of them writes a control token."""
    renderer = Renderer(tokens := made())
    text = f"a stove{control}a {control} key {control}"

    def ids(content):
        prompt = [Message(role="system", content=content), *said(*[content] * 3)]
        return renderer.render(prompt, said(*[content] * 3, first="assistant")).input_ids

    added = {number for number, token in tokens.added_tokens_decoder.items() if str(token).strip()}
    written = [Counter(number for number in ids(content) if number in added) for content in (text, "a stove")]
    assert written[0] == written[1]
    assert tokens.decode(ids(text)).count(text) == 7


def test_sampled_control_tokens_stay_what_was_sampled():
    renderer, tokens = RENDERERS["qwen3"], tokenizer("qwen3")
    sampled = (*tokens("<think>look</think><tool_call>")["input_ids"], renderer.end_of_turn)
    assert tokens.convert_tokens_to_ids("<tool_call>") in sampled
    rendered = renderer.render(said("Go."), said("anything", first="assistant"), [sampled])
    assert actions(rendered) == [list(sampled)]
    assert renderer.decode(sampled) == "<think>look</think><tool_call>"


def test_whitespace_that_is_an_added_token_stays_a_token_of_the_text():
    tokens = qwen_like()
    ids = Renderer(tokens).prompt_ids(said("a    key"))
    assert tokens.convert_tokens_to_ids("    ") in ids
    assert "a    key" in tokens.decode(ids)


@pytest.mark.parametrize("name", ["tiny", "qwen3"])
def test_control_tokens_that_the_template_writes_around_an_action_are_kept(name):
    """Such as Qwen3's empty thought: the policy generates it, and an expert's action has it as control tokens."""
    tokens = qwen_like() if name == "tiny" else with_template(None, name)
    end = SPECIALS[name][0]
    tokens.chat_template = (
        "{% for m in messages %}{{ '<|' + m['role'] + '|>' }}"
        "{% if m['role'] == 'assistant' %}{{ '<think>\n\n</think>\n\n' + m['content'] + '</tool_call>' }}"
        f"{{% else %}}{{{{ m['content'] }}}}{{% endif %}}{end}{{% endfor %}}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    messages = said("Go.", "Action: open door")
    plain = [message.model_dump() for message in messages]
    whole = tokens(tokens.apply_chat_template(plain, tokenize=False), add_special_tokens=False)["input_ids"]
    rendered = Renderer(tokens).render(messages[:1], messages[1:])
    assert list(rendered.input_ids) == whole
    assert tokens.convert_tokens_to_ids("</think>") in actions(rendered)[0]
