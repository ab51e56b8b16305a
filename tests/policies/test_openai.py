"""The policy behind an endpoint, against a server on a real socket with policies of the kit."""

import time
import traceback

import pytest
from policies import talk
from policies.chatserver import KEY, MODEL, closing, refusing, serving, stalling
from policies.played import ENDPOINT, Local, play
from templates.models import tokenizer

from coevolve import seeds
from coevolve.chat.chat_template import Renderer
from coevolve.chat.prompts import prompt_messages, write_action
from coevolve.errors import UserError
from coevolve.policies import endpoint, openai
from coevolve.policies.base import Completion, Conversation, ScriptedPolicy
from coevolve.policies.endpoint import Usage
from coevolve.policies.openai import OpenAIPolicy
from coevolve.records.episodes import Sampling, StopReason, Turn
from coevolve.storage import files, jsonl

SAMPLING = Sampling(temperature=0.0, max_new_tokens=10)
CONTEXT = 160  # some of the episodes do not fit


def reads(conversation):
    """Opens any door: reads the conversation."""
    seen = [message.content for message in conversation.prompt if message.role == "user"]
    has_key = any("You have the key" in text for text in seen)
    here = next(text for text in reversed(seen) if "You are in room" in text)
    if "A key lies here" in here and not has_key:
        return write_action("take key")
    return write_action("open door" if has_key and "room 3" in here else "go right")


PLAYER = ScriptedPolicy(reads)
STALL = stalling(0.4)


@pytest.fixture
def server(monkeypatch):
    with serving(PLAYER) as running:
        monkeypatch.setenv("OPENAI_BASE_URL", running.url)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        yield running


@pytest.fixture
def journal(tmp_path):
    opened = jsonl.Journal(tmp_path / "usage.jsonl", Usage)
    yield opened
    opened.close()


def connect(journal, context=4096, **changes):
    section = ENDPOINT.model_copy(update={"model": MODEL, **changes})
    return OpenAIPolicy(section, context=context, journal=journal)


def conversation(number=0, *turns):
    return Conversation(f"door{number}#0", number, prompt_messages(f"You are in room {number}."), turns)


def ask(journal, **changes):
    """The completion of one conversation."""
    (completion,) = connect(journal, **changes).complete([conversation()], SAMPLING)
    return completion


def sending(content):
    """A fault: another content."""
    return lambda chat: chat.send(200, content) or True


def test_episodes_through_http_are_those_played_here(monkeypatch, tmp_path, journal):
    renderer = Renderer(tokenizer("tiny"))
    whole, cut = talk.policy(context=512), talk.policy(context=CONTEXT, kind=Local)
    with serving(whole, count=lambda messages: len(renderer.prompt_ids(messages))) as running:
        monkeypatch.setenv("OPENAI_BASE_URL", running.url)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        remote = play(connect(journal, context=CONTEXT), tmp_path / "remote.jsonl", max_new_tokens=10)
    assert remote == play(cut, tmp_path / "local.jsonl", max_new_tokens=10)
    assert {episode.stop.value for episode in remote} == {"context"}
    assert {turn.truncated for episode in remote for turn in episode.turns} == {True}
    assert not any(turn.token_ids for episode in remote for turn in episode.turns)
    spent = endpoint.spending(journal.records, 2.0, 8.0)
    assert spent["answers"] == len(running.bodies) == sum(len(e.turns) + 1 for e in remote)
    assert spent["served"] == {f"{MODEL}-2026 fp_1": spent["answers"]}
    for episode in remote:
        lengths = [
            len(renderer.conversation_ids(episode.prompt, episode.turns[:t])) for t in range(len(episode.turns) + 1)
        ]
        assert spent["episodes"][f"{episode.task.task_id}#0"]["prompt_tokens"] == sum(lengths)
    assert spent["cost"] == pytest.approx((2 * spent["prompt_tokens"] + 8 * spent["completion_tokens"]) / 1e6)


def test_a_player_that_reads_opens_every_door_with_a_seed_for_each_turn_and_leaves_no_key(server, tmp_path, journal):
    episodes = play(connect(journal), tmp_path / "episodes.jsonl", max_new_tokens=10)
    assert [episode.reward for episode in episodes] == [1.0] * 6
    sent = [body["seed"] for body in server.bodies]
    assert len(set(sent)) == len(sent) and all(0 <= seed < 2**31 for seed in sent)
    assert not [path for path in tmp_path.rglob("*") if KEY in path.read_text()]


@pytest.mark.parametrize(
    ("fault", "pause"),
    [
        (refusing(429, Retry_After="1"), 1.0),
        (refusing(429, retry_after_ms="30"), 0.03),
        (refusing(500), 0.3),
        (refusing(503), 0.3),
        (closing, 0.3),
    ],
)
def test_transient_errors_are_retried(server, journal, fault, pause):
    server.faults.append(fault)
    began = time.monotonic()
    assert ask(journal).text == "Action: go right"
    assert len(server.bodies) == 2
    assert time.monotonic() - began >= pause
    assert len(journal.records) == 1


def test_a_stalled_response_is_asked_for_again(server, journal):
    server.faults.append(stalling(2.5))
    began = time.monotonic()
    assert ask(journal, timeout_seconds=2.0).text == "Action: go right"
    assert time.monotonic() - began >= 2.3
    assert len(server.bodies) >= 2, "more where a busy machine answers late"
    assert len(journal.records) == 1


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (refusing(401, f"Incorrect API key provided: {KEY}"), "OPENAI_API_KEY is not accepted"),
        (refusing(403, f"{KEY} may not"), "has no access to model `tiny`"),
        (refusing(404, f"none for {KEY}"), "model `tiny` was not found .*correct `endpoint.model` or OPENAI_BASE_URL"),
        (refusing(400, f"no seed for {KEY}"), "rejected.*`endpoint` section"),
        (refusing(422, f"no top_p for {KEY}"), "rejected.*`endpoint` section"),
        (refusing(429, f"{KEY} is out of credit"), "too many requests .*kept"),
        (refusing(429, "come tomorrow", Retry_After="86400"), "too many requests .*kept"),
        (refusing(500, f"trouble with {KEY}"), "still failing .*kept"),
        (closing, r"no response .*\(Connection error.*kept"),
        (STALL, r"no response .*\(Request timed out.*kept"),
        # A limit of the key is not a full context.
        (refusing(413, f"{KEY}: too large, tokens per minute"), "too large for the key's limit .*lower `concurrency`"),
        (refusing(400, "'temperature' does not support 0.0 with this model"), "add `temperature` to its key `omit`"),
    ],
)
def test_persistent_errors_are_a_sentence_without_the_key(server, journal, fault, sentence):
    server.faults.extend([fault] * 2)
    with pytest.raises(UserError, match=sentence) as raised:
        ask(journal, retries=1, timeout_seconds=0.2 if fault is STALL else 60.0)
    assert KEY not in "".join(traceback.format_exception(raised.value))
    assert f"127.0.0.1:{server.server_port}" in str(raised.value)


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("x", "use max_completion_tokens, not *** or sk-42secret"),
        ("max", "use max_completion_tokens, not x or sk-42secret"),
        ("sk-42secret", "use max_completion_tokens, not x or ***"),
        ("42secret", "use max_completion_tokens, not x or sk-***"),
        ("completion", "use max_***_tokens, not x or sk-42secret"),
    ],
)
def test_a_key_that_is_a_short_word_is_hidden_only_where_it_is_one(journal, monkeypatch, key, shown):
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with serving(PLAYER, key=key) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        server.faults.append(refusing(400, "use max_completion_tokens, not x or sk-42secret"))
        with pytest.raises(UserError) as raised:
            ask(journal)
    assert shown in str(raised.value)


GOOD = {
    "id": "chat", "object": "chat.completion", "created": 0, "model": MODEL,
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Action: wait"}}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
}  # fmt: skip


def answering(**changes):
    """A fault: a chat completion with other values; the text is not a valid one."""
    return lambda chat: chat.send(200, {**GOOD, **changes}) or True


def choice(**changes):
    return answering(choices=[{**GOOD["choices"][0], **changes}])


def saying(content):
    return choice(message={"role": "assistant", "content": content})


@pytest.mark.parametrize(
    "fault",
    [
        *(answering(choices=choices) for choices in (None, 7, {}, [], ["text"], [None])),
        *(choice(message=message) for message in (None, "text")),
        *(saying(content) for content in (7, ["Action: wait"])),
        answering(usage="many"),
        *(answering(usage={"prompt_tokens": tokens, "completion_tokens": 2}) for tokens in ("3", -3, 10**400)),
        *(sending(content) for content in ([], "null", "", "{torn", "[" * 100_000, "\xff{")),
        lambda chat: chat.send(200, "<html>hello</html>", kind="text/html") or True,
    ],
)
def test_a_malformed_completion_is_retried_and_then_a_sentence(server, journal, monkeypatch, fault):
    monkeypatch.setattr(openai, "LONGEST_PAUSE_SECONDS", 0.01)
    server.faults.append(fault)
    assert ask(journal).text == "Action: go right"
    assert len(server.bodies) == 2
    server.faults.extend([fault] * 3)
    with pytest.raises(UserError, match=rf":{server.server_port}: the response is not a chat completion, 3 times"):
        ask(journal)
    assert len(server.bodies) == 5
    assert len(journal.records) == 1


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (answering(), Completion("Action: wait")),
        (choice(finish_reason="length"), Completion("Action: wait", truncated=True)),
        (choice(finish_reason="model_length"), Completion("Action: wait", truncated=True)),
        (choice(finish_reason="MAX_TOKENS"), Completion("Action: wait", truncated=True)),
        (choice(finish_reason=None), Completion("Action: wait")),
        (choice(message={"role": "assistant"}, finish_reason=7), Completion("")),
        (
            saying([{"type": "thinking", "thinking": [{"text": "hm"}]}, {"type": "text", "text": "Action: wait"}]),
            Completion("Action: wait"),
        ),
        (saying([{"type": "text", "text": "Action: "}, {"type": "text", "text": "wait"}]), Completion("Action: wait")),
        (saying(f" Action: say {KEY}!\n"), Completion("Action: say ***!")),
    ],
)
def test_an_answers_text_is_read_without_the_key_and_its_usage_recorded(server, journal, fault, expected):
    server.faults.append(fault)
    assert ask(journal) == expected
    server.faults.append(answering(usage=None))
    assert ask(journal, context=SAMPLING.max_new_tokens).text == "Action: wait"
    assert journal.records == [
        Usage(key="door0#0", served=MODEL, prompt_tokens=tokens, completion_tokens=said)
        for tokens, said in ((3, 2), (0, 0))
    ]


def test_an_answer_without_a_reason_is_cut_if_it_has_as_many_tokens_as_asked_for(server, journal):
    usage = {"prompt_tokens": 3, "completion_tokens": SAMPLING.max_new_tokens}
    server.faults.append(answering(usage=usage, choices=[{**GOOD["choices"][0], "finish_reason": None}]))
    assert ask(journal).truncated
    server.faults.append(answering(usage=usage))
    assert not ask(journal).truncated
    for nothing in ({}, {"prompt_tokens": None, "completion_tokens": None}):
        server.faults.append(answering(usage=nothing))
        assert ask(journal).text == "Action: wait"
        assert (journal.records[-1].prompt_tokens, journal.records[-1].completion_tokens) == (0, 0)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (choice(finish_reason="error"), "finish_reason `error`"),
        (choice(finish_reason="abort", message={"role": "assistant", "content": ""}), "finish_reason `abort`"),
        (answering(choices=None, error={"message": f"Provider of {KEY} is down", "code": 502}), "is down"),
    ],
)
def test_an_answer_during_which_the_server_failed_is_asked_for_again(server, journal, monkeypatch, fault, words):
    """It would count as the agent's own mistake."""
    monkeypatch.setattr(openai, "LONGEST_PAUSE_SECONDS", 0.01)
    server.faults.append(fault)
    assert ask(journal).text == "Action: go right"
    server.faults.extend([fault] * 3)
    with pytest.raises(UserError, match=rf"the server failed while it answered \(.*{words}\), 3 times") as raised:
        ask(journal)
    assert KEY not in str(raised.value)
    assert len(journal.records) == 1


def test_a_refusal_with_status_200_ends_the_episode_as_others_do(server, journal):
    message = "This endpoint's maximum context length is 8192 tokens."
    server.faults.append(answering(choices=None, error={"message": message, "code": 400}))
    assert ask(journal).stop == StopReason.CONTEXT


def test_a_server_that_may_cut_prompts_is_noticed_once(server, journal, caplog):
    """Its counts stay at its own window while the conversation grows."""
    policy, seen = connect(journal), Turn(text="Action: wait", action="wait", observation="You are in room 0.")

    def counted(*counts):
        for turns, tokens in enumerate(counts):
            server.faults.append(answering(usage={"prompt_tokens": tokens, "completion_tokens": 2}))
            policy.complete([conversation(0, *[seen] * turns)], SAMPLING)
        return [record.getMessage() for record in caplog.records]

    assert counted(30, 40, 50) == counted(20, 0, 0) == []  # again from the start, then without counts
    (notice,) = counted(30, 40, 40)
    assert "it counts 40 prompt tokens in turn 2 of an episode and 40 in turn 3;" in notice
    assert counted(30, 30) == [notice]


def test_a_lone_surrogate_from_an_endpoint_is_replaced(server, tmp_path, journal):
    """JSON may hold one; it killed the whole rollout when the episode was written, and a draft of a task likewise."""
    text = r'{"choices": [{"message": {"role": "assistant", "content": "Action: go \ud83d right"}}]}'
    server.faults.extend([sending(text)] * 50)
    episodes = play(connect(journal), tmp_path / "episodes.jsonl", max_new_tokens=10)
    turns = {(turn.text, turn.action) for episode in episodes for turn in episode.turns}
    assert turns == {("Action: go \ufffd right", "go \ufffd right")}


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("OPENAI_API_KEY", None, "OPENAI_API_KEY: not set"),
        ("OPENAI_API_KEY", "sk-wrong", "not accepted"),
        *(
            ("OPENAI_API_KEY", key, "OPENAI_API_KEY: holds a blank, .*; export it again")
            for key in (f"{KEY}\n", f"{KEY} ", "\u043a\u043b\u044e\u0447")
        ),
        ("OPENAI_BASE_URL", "http://someone:secret@127.0.0.1:9/v1", r"127\.0\.0\.1:9: no response"),
        *(
            ("OPENAI_BASE_URL", address, "OPENAI_BASE_URL: not an address such as")
            for address in (
                *("http://127.0.0.1:80a/v1", "http://127.0.0.1:99999/v1", "http://[::1", "127.0.0.1:9/v1"),
                *("http://127.0.0.1:9/v1\n", "http://a..b/v1", "http://\u2603.com/v1"),
            )
        ),
    ],
)
def test_a_key_or_an_address_that_is_wrong_is_a_sentence_without_it(
    server, journal, monkeypatch, variable, value, sentence
):
    monkeypatch.delenv(variable) if value is None else monkeypatch.setenv(variable, value)
    with pytest.raises(UserError, match=sentence) as raised:
        ask(journal, retries=0)
    assert value is None or value.strip() not in str(raised.value)
    assert "secret" not in str(raised.value)


def test_what_was_answered_before_a_failure_is_counted(server, journal):
    """The second conversation fails; the first was paid for."""
    assert ask(journal, concurrency=1)
    server.faults.extend([lambda chat: False, refusing(401)])
    with pytest.raises(UserError):
        connect(journal, concurrency=1).complete([conversation(), conversation(1)], SAMPLING)
    reopened = jsonl.Journal(journal.path, Usage)
    assert endpoint.spending(reopened.records, 0.0, 0.0)["episodes"]["door0#0"]["answers"] == 2
    reopened.close()


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("Your input is too long", "context_length_exceeded"),
        ("This model's maximum context length is 12 tokens", None),
        ("request (20 tokens) exceeds the available context size (12 tokens), try increasing it", None),
        ("prompt is too long: 210000 tokens > 200000 maximum", None),
        ("Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000", None),
        ("The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).", None),
        ("Input prompt (5000 tokens) is too long and exceeds limit of 4096", None),
        ("litellm.ContextWindowExceededError: litellm.BadRequestError: too much", None),
        ("An error occurred (ValidationException): Input is too long for requested model.", None),
    ],
)
def test_a_conversation_that_is_refused_as_too_long_does_not_fit(server, journal, message, code):
    server.faults.append(refusing(422 if "validation" in message else 400, message, code))
    assert ask(journal) == Completion("", stop=StopReason.CONTEXT)
    assert not journal.records


@pytest.mark.parametrize(
    "fault",
    [
        refusing(
            400, "The response was filtered due to the prompt triggering Azure OpenAI's policy.", "content_filter"
        ),
        refusing(400, "Invalid prompt: your prompt was flagged as potentially violating our usage policy."),
        refusing(400, "Output blocked by content filtering policy"),
        refusing(400, "litellm.ContentPolicyViolationError: AzureException - it triggered Azure OpenAI's policy"),
        refusing(400, "This request has been blocked by our content filters."),
        refusing(400, "Violated guardrail policy"),
        refusing(400, "Request was blocked by Gemini: BlockedReason.PROHIBITED_CONTENT"),
        refusing(400, "Content Exists Risk", "invalid_request_error"),
        refusing(400, "Input data may contain inappropriate content.", "data_inspection_failed"),
        refusing(403, "Your chosen model requires moderation and your input was flagged for violence."),
        *(choice(finish_reason=reason) for reason in ("content_filter", "SAFETY", "content_filter: RECITATION")),
        choice(finish_reason="content_filter", message={"role": "assistant", "content": None}),
    ],
)
def test_a_content_filter_ends_one_episode_and_not_the_job(server, tmp_path, journal, fault):
    server.faults.append(fault)
    episodes = play(connect(journal), tmp_path / "episodes.jsonl", max_new_tokens=10)
    assert sorted(episode.stop for episode in episodes) == ["content_filter", *["done"] * 5]
    (filtered,) = (episode for episode in episodes if episode.stop == "content_filter")
    assert (filtered.turns, filtered.reward) == ((), 0.0)


def test_as_many_requests_at_once_as_allowed_answered_in_order(server, journal):
    server.pause = 0.2
    completions = connect(journal, concurrency=3).complete([conversation(number) for number in range(12)], SAMPLING)
    assert server.most == 3
    assert [completion.text for completion in completions] == ["Action: go right"] * 12
    assert {usage.key for usage in journal.records} == {f"door{number}#0" for number in range(12)}


def test_a_request_holds_what_the_section_names_and_no_empty_answer(server, journal):
    silent = conversation(0, Turn(text="", action=None, observation="I found no action."))
    said = (("user", "You are in room 0."), ("assistant", "..."), ("user", "I found no action."))
    common = {"model": MODEL, "messages": [{"role": role, "content": text} for role, text in said]}
    connect(journal, seeds=False, length="max_completion_tokens").complete([silent], SAMPLING)
    server.faults.append(answering())
    connect(journal, omit=["temperature", "top_p"]).complete([silent], SAMPLING)
    whole, bare = server.bodies
    assert whole == common | {"temperature": 0.0, "top_p": 1.0, "max_completion_tokens": 10}
    assert bare == common | {"max_tokens": 10, "seed": seeds.derive(0, "turn", 1) % 2**31}


def test_a_policy_is_named_by_its_model_and_endpoint(server, journal, tmp_path, monkeypatch):
    ref = endpoint.endpoint_ref(MODEL)
    files.write_bytes(tmp_path / "policy.json", ref.to_json().encode())
    endpoint.check_ref(tmp_path, MODEL)
    monkeypatch.setenv("OPENAI_API_KEY", "another")
    assert endpoint.endpoint_ref(MODEL) == ref
    assert endpoint.endpoint_ref("other") != ref
    with pytest.raises(UserError, match="rerun"):
        endpoint.check_ref(tmp_path / "missing", MODEL)
    monkeypatch.setenv("OPENAI_BASE_URL", "")
    assert str(connect(journal)._client.base_url) == "https://api.openai.com/v1/"
    with pytest.raises(UserError, match=r"another endpoint than api\.openai\.com"):
        endpoint.check_ref(tmp_path, MODEL)
