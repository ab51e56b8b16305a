"""Messages to token ids and action mask. No other module tokenizes conversations.

A chat template is parsed once: a conversation of unique markers is rendered and split at the markers. The text between
two markers is a wrapper, which is the same in every conversation. The ids of a conversation are those of wrappers and
contents, each tokenized separately, so the action mask is known by construction. Contents are stripped, as the
templates of Llama 2 and others do. A turn is rendered as in the history, so its ids do not depend on later turns.

Only the template writes control tokens. A content is text: an observation, an instruction or an expert's action that
spells a control token, special (`<|im_end|>`) or not (`<tool_call>`, `<think>`), is tokenized as ordinary characters.
Sampled ids are kept as they are, control tokens among them.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
from tokenizers import Tokenizer

from coevolve.errors import UserError
from coevolve.records.episodes import Message, Turn

_log = logging.getLogger(__name__)

Ids = tuple[int, ...]
#: Contents that tokenizers divide in different ways, of a system message and of three turns.
_TRIED = (
    (
        "Be brief.",
        "Look  at\n\nthe 12 doors:\n - a\tb's caf\u00e9",
        "Thought: it's 3.\nAction: go  north",
        '"Ok"\n\n  done',
    ),
    ("Rules:\n1. no", "7 doors.", "(a) open", "'Tis shut!"),
)
#: Makes a template write this instead of today's date.
_ANOTHER_DAY = "{%- macro strftime_now(format) -%}another day{%- endmacro -%}"


@dataclass(frozen=True)
class TokenizedTrajectory:
    """A conversation as token ids.

    `action_mask` is 1 at the tokens that the agent produced (its actions, each with its end-of-turn token), else 0.
    """

    input_ids: Ids
    action_mask: Ids

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def has_targets(self) -> bool:
        """Whether there is an action token to predict; no position predicts the first token."""
        return any(self.action_mask[1:])

    def truncate(self, context: int) -> TokenizedTrajectory:
        """Its first `context` tokens."""
        return TokenizedTrajectory(self.input_ids[:context], self.action_mask[:context])


@dataclass(frozen=True)
class Wrappers:
    """The fixed text of a chat template around its contents.

    A conversation is `head` user (`generation_prompt` `lead` action `end` `end_token` `after` user)*
    `generation_prompt`. If it starts with a system message, the two wrappers `system` around that message replace
    `head` (None: the template supports no system message). `lead` is text of an assistant turn that is not part of the
    generation prompt; the policy generates it before its action.
    """

    head: str
    system: tuple[str, str] | None
    generation_prompt: str
    lead: str
    end: str
    end_token: str
    after: str


class Renderer:
    """The ids of conversations under a tokenizer's chat template; `UserError` for one that has no fixed wrappers."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._wrappers = read_template(tokenizer)
        self._content_ids = functools.lru_cache(maxsize=1 << 16)(_content_encoder(tokenizer))
        self._wrapper_ids = functools.lru_cache(maxsize=16)(
            _inside_a_text(tokenizer, lambda text: tokenizer(text, add_special_tokens=False)["input_ids"])
        )
        # The texts that the template writes before and after an action, divided so that control tokens are wrappers.
        self._lead, self._lead_text = _split_after_control(tokenizer, self._wrappers.lead)
        self._end_text, self._end = _split_before_control(tokenizer, self._wrappers.end)
        self.end_of_turn: int = tokenizer.convert_tokens_to_ids(self._wrappers.end_token)
        for contents in _TRIED:
            self._require_ids_of_the_template(contents[1:])
            if self._wrappers.system:
                self._require_ids_of_the_template(contents)
        if _drops_thoughts(tokenizer):
            _log.warning(
                "%s: its chat template drops the thoughts of past turns; sampled ones are kept.", _name(tokenizer)
            )

    def prompt_ids(self, prompt: Sequence[Message]) -> Ids:
        """The ids of `prompt`, with the generation prompt of the first action."""
        return self.conversation_ids(prompt, ())

    def conversation_ids(self, prompt: Sequence[Message], turns: Sequence[Turn]) -> Ids:
        """The ids of `prompt` and `turns` with the next generation prompt; those of `turns[:t]` begin them."""
        return _join(ids for ids, _ in self._pieces(prompt, [(t.text, t.token_ids, t.observation) for t in turns]))

    def render(
        self, prompt: Sequence[Message], completion: Sequence[Message], token_ids: Sequence[Ids] = ()
    ) -> TokenizedTrajectory:
        """`prompt` and `completion` (action, observation, ..., action) as token ids, with the mask of its actions.

        `token_ids` holds the sampled ids of each action, which are kept; an action without them is tokenized from its
        text. If a sampled action was cut off, the end of its turn is added with mask 0.
        """
        _check_roles(completion, first="assistant")
        actions, observations = ([message.content for message in completion[first::2]] for first in (0, 1))
        turns = zip(actions, token_ids or [()] * len(actions), [*observations, None], strict=True)
        pieces = list(self._pieces(prompt, turns))
        mask = tuple(flag for ids, flag in pieces for _ in ids)
        return TokenizedTrajectory(_join(ids for ids, _ in pieces), mask)

    def decode(self, action_ids: Sequence[int]) -> str:
        """The text of an action's ids, stripped, without its end-of-turn token."""
        if action_ids and action_ids[-1] == self.end_of_turn:
            action_ids = action_ids[:-1]
        text: str = self._tokenizer.decode(list(action_ids), clean_up_tokenization_spaces=False)
        return text.strip()

    def _require_ids_of_the_template(self, contents: Sequence[str]) -> None:
        """Raise `UserError` unless the ids of a conversation are those of its whole text."""
        roles = ("system", "user", "assistant", "user")[-len(contents) :]
        prompt = [Message(role=role, content=text) for role, text in zip(roles, contents, strict=True)]
        messages = [message.model_dump() for message in prompt]
        text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        whole, joined = self._tokenizer(text, add_special_tokens=False)["input_ids"], self.prompt_ids(prompt)
        if tuple(whole) != joined:
            same = next(i for i, ids in enumerate(itertools.zip_longest(whole, joined)) if ids[0] != ids[1])
            of_whole, of_parts = (repr(self._tokenizer.decode(list(ids[same : same + 3]))) for ids in (whole, joined))
            problem = f"after {same} tokens of a conversation it has {of_whole} where its parts give {of_parts}"
            raise _refused(self._tokenizer, f"{problem}; use the chat template that this tokenizer was published with")

    def _pieces(
        self, prompt: Sequence[Message], turns: Iterable[tuple[str, Ids, str | None]]
    ) -> Iterator[tuple[Ids, int]]:
        """Ids of a conversation in pieces, with their mask; a turn has its text, sampled ids and observation."""
        yield from ((ids, 0) for ids in self._prompt(prompt))
        for text, sampled, observation in turns:
            yield self._action(text, sampled), 1
            if observation is not None:
                yield from ((ids, 0) for ids in self._observation(observation, sampled))

    def _prompt(self, prompt: Sequence[Message]) -> Iterator[Ids]:
        """Ids of the prompt in pieces, the last of them the first generation prompt."""
        has_system = bool(prompt) and prompt[0].role == "system"
        head, talk = self._wrappers.head, prompt[has_system:]
        _check_roles(talk, first="user")
        if has_system:
            if self._wrappers.system is None:
                raise _refused(self._tokenizer, "its chat template supports no system message; leave it out")
            yield from self._segment(self._wrappers.system[0], prompt[0].content)
            head = self._wrappers.system[1]
        yield from self._segment(head, talk[0].content)
        for answer, message in zip(talk[1::2], talk[2::2], strict=True):
            yield self._wrapper_ids(self._wrappers.generation_prompt)
            yield self._action(answer.content, ())
            yield from self._segment(self._wrappers.after, message.content)
        yield self._wrapper_ids(self._wrappers.generation_prompt)

    def _action(self, text: str, sampled: Ids) -> Ids:
        """The sampled ids of an action, or the ids of its text and its end-of-turn token."""
        if sampled:
            return sampled
        content = self._content_ids(self._lead_text + text.strip() + self._end_text)
        return (*self._wrapper_ids(self._lead), *content, *self._wrapper_ids(self._end), self.end_of_turn)

    def _observation(self, text: str, sampled: Ids) -> Iterator[Ids]:
        """Ids from the end of an action to the next generation prompt, in pieces."""
        if sampled and sampled[-1] != self.end_of_turn:
            yield (*self._content_ids(self._end_text), *self._wrapper_ids(self._end), self.end_of_turn)
        yield from self._segment(self._wrappers.after, text)
        yield self._wrapper_ids(self._wrappers.generation_prompt)

    def _segment(self, wrapper: str, content: str) -> Iterator[Ids]:
        """Ids of a wrapper and of a content; trailing spaces of the wrapper are tokenized with the content."""
        fixed = wrapper.rstrip(" ")
        yield self._wrapper_ids(fixed)
        yield self._content_ids(wrapper[len(fixed) :] + content.strip())


def read_template(tokenizer: Any) -> Wrappers:
    """The wrappers of a tokenizer's chat template; raises `UserError` if they differ between turns, or between days."""
    if not tokenizer.chat_template:
        raise _refused(tokenizer, "the tokenizer has no chat template; add a chat_template.jinja to its folder")
    try:
        head, *turns = _split_template(tokenizer, system=False)
    except (jinja2.TemplateError, TypeError) as error:
        raise _refused(tokenizer, f"its chat template rejects a plain conversation ({error})") from None
    before, after, later_before, later_after, generation_prompt = turns
    if (before, after) != (later_before, later_after) or not before.startswith(generation_prompt):
        problem = "its chat template renders a turn of the history differently from a new one"
        raise _refused(tokenizer, f"{problem}; use another chat_template.jinja")
    if _split_template(tokenizer, system=False, template=_ANOTHER_DAY + tokenizer.chat_template) != [head, *turns]:
        fix = "replace `strftime_now` in the template"
        raise _refused(tokenizer, f"its chat template writes today's date; {fix}")
    lead = before[len(generation_prompt) :]
    end, end_token, next_turn = _split_at_end(tokenizer, after)
    return Wrappers(head, _system_wrappers(tokenizer, turns), generation_prompt, lead, end, end_token, next_turn)


def _drops_thoughts(tokenizer: Any) -> bool:
    """Whether the chat template leaves the thought out of a past turn; sampled ids keep it (`Renderer`)."""
    talk = [("user", "a"), ("assistant", "<think>\nmark\n</think>\n\nb"), ("user", "c")]
    messages = [{"role": role, "content": content} for role, content in talk]
    return "mark" not in tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def _system_wrappers(tokenizer: Any, turns: list[str]) -> tuple[str, str] | None:
    """The text before and after a system message; None if the template rejects, drops or moves it."""
    try:
        before, after, *rest = _split_template(tokenizer, system=True)
    except (jinja2.TemplateError, TypeError, UserError):
        return None
    return (before, after) if rest == turns else None


def _split_template(tokenizer: Any, *, system: bool, template: str | None = None) -> list[str]:
    """The text before, between and after the contents of a rendered conversation with three user messages."""
    roles = ["system"] * system + ["user", "assistant", "user", "assistant", "user"]
    marks = [f"mark{index}of{len(roles)}" for index in range(len(roles))]
    messages = [{"role": role, "content": mark} for role, mark in zip(roles, marks, strict=True)]
    text = {"chat_template": template, "tokenize": False, "add_generation_prompt": True}
    rest: str = tokenizer.apply_chat_template(messages, **text)
    pieces = []
    for mark in marks:
        if rest.count(mark) != 1:
            raise _refused(tokenizer, "its chat template drops, repeats or reorders messages; use another")
        piece, _, rest = rest.partition(mark)
        pieces.append(piece)
    return [*pieces, rest]


def _split_at_end(tokenizer: Any, between: str) -> tuple[str, str, str]:
    """The text between two contents before, at and after its first special token, which ends a turn."""
    added = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
    special = [token for token in (*tokenizer.all_special_tokens, *added) if token in between]
    if not special:
        problem = "its chat template ends a turn without a special token"
        raise _refused(tokenizer, f"{problem}; use another chat_template.jinja")
    token = min(special, key=between.index)
    end, _, after = between.partition(token)
    return end, token, after


def _control_tokens(tokenizer: Any) -> dict[str, int]:
    """Ids of the added tokens, special or not. Runs of whitespace, which some tokenizers add, are ordinary text."""
    added = {str(token): number for number, token in tokenizer.added_tokens_decoder.items()}
    return {token: number for token, number in added.items() if token.strip()}


def _split_after_control(tokenizer: Any, text: str) -> tuple[str, str]:
    """The text up to the end of its last control token, and the rest."""
    ends = [text.rindex(token) + len(token) for token in _control_tokens(tokenizer) if token in text]
    end = max(ends, default=0)
    return text[:end], text[end:]


def _split_before_control(tokenizer: Any, text: str) -> tuple[str, str]:
    """The text before its first control token, and the rest."""
    start = min((text.index(token) for token in _control_tokens(tokenizer) if token in text), default=len(text))
    return text[:start], text[start:]


def _content_encoder(tokenizer: Any) -> Callable[[str], Ids]:
    """A function that tokenizes a content, never to a control token.

    transformers' `split_special_tokens` would still parse added tokens that are not special. So the backend is copied
    without any. Raises `UserError` if the tokenizer's model itself knows a control token as a piece of text.
    """
    control = _control_tokens(tokenizer)
    described = json.loads(tokenizer.backend_tokenizer.to_str()) | {"truncation": None, "padding": None}
    described["added_tokens"] = [token for token in described["added_tokens"] if token["content"] not in control]
    plain = Tokenizer.from_str(json.dumps(described))
    # The copy numbers the tokens that it keeps anew.
    kept = {plain.token_to_id(token["content"]): token["id"] for token in described["added_tokens"]}
    encode = _inside_a_text(
        tokenizer,
        lambda text: [kept.get(number, number) for number in plain.encode(text, add_special_tokens=False).ids],
    )
    if parsed := [token for token in control if not set(control.values()).isdisjoint(encode(f"a{token}a"))]:
        raise _refused(tokenizer, f"it parses `{parsed[0]}` in any text as a control token; use another")
    return encode


def _inside_a_text(tokenizer: Any, encode: Callable[[str], Sequence[int]]) -> Callable[[str], Ids]:
    """A function that tokenizes a text as it would be inside a conversation.

    SentencePiece-like tokenizers prepend a space to their input. Their input gets a line break in front, which none of
    their tokens spans, and the ids of the line break are removed.
    """
    anchor = "\n" if tokenizer.convert_ids_to_tokens(list(encode("a")))[0].startswith("\u2581") else ""
    skipped = len(encode(anchor))
    return lambda text: tuple(encode(anchor + text)[skipped:])


def _check_roles(messages: Sequence[Message], first: str) -> None:
    """Raises `UserError` unless the roles alternate between user and assistant, beginning and ending with `first`."""
    second = "user" if first == "assistant" else "assistant"
    roles = [message.role for message in messages]
    if roles[::2] != [first] * len(roles[::2]) or roles[1::2] != [second] * len(roles[1::2]) or len(roles) % 2 == 0:
        problem = f"the roles of messages are {', '.join(roles) or 'none'}"
        raise UserError(f"{problem}; let them alternate, beginning and ending with {first}.")


def _refused(tokenizer: Any, problem: str) -> UserError:
    return UserError(f"{_name(tokenizer)}: {problem}.")


def _name(tokenizer: Any) -> str:
    return str(tokenizer.name_or_path or type(tokenizer).__name__)


def _join(pieces: Iterable[Ids]) -> Ids:
    return tuple(itertools.chain.from_iterable(pieces))
