"""Messages to token ids and action mask, decided here and nowhere else.

A chat template is read once, by rendering a conversation of unique marks and cutting the result at them. What stands
between two marks is a wrapper that is the same in every conversation, so the ids of a conversation are wrapper ids and
content ids laid end to end, each tokenised on its own, and which of them are the agent's is known by construction.

Contents are stripped, as the templates of Llama 2 and others do, and take the form the template gives them in the
*history*: a turn keeps its ids whatever follows, so the ids of a conversation begin with those of its shorter self.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2

from coevolve.errors import UserError
from coevolve.types import Message, Turn

Ids = tuple[int, ...]


@dataclass(frozen=True)
class TokenizedTrajectory:
    """A conversation as token ids.

    `action_mask` has one entry per token: 1 on the tokens that the agent produced (its actions, each with its
    end-of-turn token), 0 on all others.
    """

    input_ids: Ids
    action_mask: Ids

    def __len__(self) -> int:
        """Its number of tokens."""
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

    A conversation reads `head` user (`ask` `lead` action `end` `end_token` `after` user)* `ask`; with a system message
    its two wrappers `system` stand around that message in place of `head` (None: the template takes no such message).
    `ask` is the generation prompt, `lead` what it leaves the policy to say before its action.
    """

    head: str
    system: tuple[str, str] | None
    ask: str
    lead: str
    end: str
    end_token: str
    after: str


class Renderer:
    """The ids of prompts, conversations and completions under one tokenizer's chat template.

    `end_of_turn` is the id that ends an action. Raises `UserError` for a template that does not wrap contents in fixed
    text.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._text = read_template(tokenizer)
        self._content_ids = functools.lru_cache(maxsize=1 << 16)(_encoder(tokenizer, special=False))
        self._wrapper_ids = functools.lru_cache(maxsize=16)(_encoder(tokenizer, special=True))
        self.end_of_turn: int = tokenizer.convert_tokens_to_ids(self._text.end_token)

    def prompt_ids(self, prompt: Sequence[Message]) -> Ids:
        """The ids of `prompt` up to where the policy's first action begins."""
        return self.conversation_ids(prompt, ())

    def conversation_ids(self, prompt: Sequence[Message], turns: Sequence[Turn]) -> Ids:
        """The ids of `prompt` and `turns` up to where the next action begins; `turns[:t]` gives a prefix of `turns`."""
        pieces = [*self._prompt(prompt)]
        for turn in turns:
            pieces += [self._action(turn.text, turn.token_ids), *self._observation(turn.observation, turn.token_ids)]
        return _join(pieces)

    def render(
        self, prompt: Sequence[Message], completion: Sequence[Message], token_ids: Sequence[Ids] = ()
    ) -> TokenizedTrajectory:
        """`prompt` and `completion` (action, observation, ..., action) with the mask of the completion's actions.

        `token_ids` holds the sampled ids of each action, used as they are; where there are none, the action's text is
        tokenised. A sampled turn that was cut off before its end is closed without loss.
        """
        _check_roles(completion, first="assistant")
        pieces = [(ids, 0) for ids in self._prompt(prompt)]
        sampled: Ids = ()
        for index, message in enumerate(completion):
            if message.role == "assistant":
                sampled = token_ids[index // 2] if token_ids else ()
                pieces.append((self._action(message.content, sampled), 1))
            else:
                pieces += [(ids, 0) for ids in self._observation(message.content, sampled)]
        mask = tuple(flag for ids, flag in pieces for _ in ids)
        return TokenizedTrajectory(_join([ids for ids, _ in pieces]), mask)

    def decode(self, action_ids: Sequence[int]) -> str:
        """The text of an action's ids, stripped, without its end-of-turn token."""
        if action_ids and action_ids[-1] == self.end_of_turn:
            action_ids = action_ids[:-1]
        text: str = self._tokenizer.decode(list(action_ids), clean_up_tokenization_spaces=False)
        return text.strip()

    def _prompt(self, prompt: Sequence[Message]) -> Iterator[Ids]:
        """Segments of the prompt, ending with the first generation prompt."""
        has_system = bool(prompt) and prompt[0].role == "system"
        head, talk = self._text.head, prompt[has_system:]
        _check_roles(talk, first="user")
        if has_system:
            if self._text.system is None:
                raise UserError(f"{_name(self._tokenizer)}: its chat template takes no system message; leave it out.")
            yield from self._segment(self._text.system[0], prompt[0].content)
            head = self._text.system[1]
        yield from self._segment(head, talk[0].content)
        for answer, message in zip(talk[1::2], talk[2::2], strict=True):
            yield self._wrapper_ids(self._text.ask)
            yield self._action(answer.content, ())
            yield from self._segment(self._text.after, message.content)
        yield self._wrapper_ids(self._text.ask)

    def _action(self, text: str, sampled: Ids) -> Ids:
        """An action's ids: those that were sampled, or its text and end of turn tokenised."""
        if sampled:
            return sampled
        return (*self._content_ids(self._text.lead + text.strip() + self._text.end), self.end_of_turn)

    def _observation(self, text: str, sampled: Ids) -> Iterator[Ids]:
        """Segments from the end of an action to where the next one begins."""
        if sampled and sampled[-1] != self.end_of_turn:
            yield (*self._content_ids(self._text.end), self.end_of_turn)
        yield from self._segment(self._text.after, text)
        yield self._wrapper_ids(self._text.ask)

    def _segment(self, wrapper: str, content: str) -> Iterator[Ids]:
        """A wrapper and a content; a wrapper's last blanks go with the content, where tokenizers expect them."""
        fixed = wrapper.rstrip(" ")
        yield self._wrapper_ids(fixed)
        yield self._content_ids(wrapper[len(fixed) :] + content.strip())


def read_template(tokenizer: Any) -> Wrappers:
    """The wrappers of a tokenizer's chat template; raises `UserError` if they are not the same in every turn."""
    if not tokenizer.chat_template:
        raise UserError(f"{_name(tokenizer)}: the tokenizer has no chat template; add chat_template.jinja beside it.")
    try:
        head, *turns = _cut(tokenizer, system=False)
    except jinja2.TemplateError as error:
        raise UserError(f"{_name(tokenizer)}: its chat template refuses a plain conversation ({error}).") from None
    ask, between, later_ask, later_between, tail = turns
    if (ask, between) != (later_ask, later_between) or not ask.startswith(tail):
        raise UserError(
            f"{_name(tokenizer)}: its chat template writes a turn of the history differently from a new one; "
            "give another chat_template.jinja."
        )
    end, end_token, after = _split_at_end(tokenizer, between)
    return Wrappers(head, _system_wrappers(tokenizer, turns), tail, ask[len(tail) :], end, end_token, after)


def _system_wrappers(tokenizer: Any, turns: list[str]) -> tuple[str, str] | None:
    """What stands before and after a system message; None if the template refuses one, drops it or moves it."""
    try:
        before, after, *rest = _cut(tokenizer, system=True)
    except (jinja2.TemplateError, UserError):
        return None
    return (before, after) if rest == turns else None


def _cut(tokenizer: Any, *, system: bool) -> list[str]:
    """The template's text before, between and after the contents of a conversation of three user messages."""
    roles = ["system"] * system + ["user", "assistant", "user", "assistant", "user"]
    marks = [f"mark{index}of{len(roles)}" for index in range(len(roles))]
    messages = [{"role": role, "content": mark} for role, mark in zip(roles, marks, strict=True)]
    rest: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    pieces = []
    for mark in marks:
        if rest.count(mark) != 1:
            raise UserError(f"{_name(tokenizer)}: its chat template drops, repeats or reorders messages; give another.")
        piece, _, rest = rest.partition(mark)
        pieces.append(piece)
    return [*pieces, rest]


def _split_at_end(tokenizer: Any, between: str) -> tuple[str, str, str]:
    """What follows an action, split around the first special token in it."""
    found = [token for token in _special_tokens(tokenizer) if token in between]
    if not found:
        raise UserError(
            f"{_name(tokenizer)}: its chat template ends a turn without a special token; "
            "give another chat_template.jinja."
        )
    token = min(found, key=between.index)
    end, _, after = between.partition(token)
    return end, token, after


def _special_tokens(tokenizer: Any) -> list[str]:
    added = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
    return [*tokenizer.all_special_tokens, *added]


def _encoder(tokenizer: Any, *, special: bool) -> Callable[[str], Ids]:
    """Tokenises a piece of text as it is inside a conversation; only with `special` do special tokens in it count.

    SentencePiece-like tokenizers put a blank before the text they are given: such text is given behind a line break,
    which no token of theirs spans, and the line break is cut off again.
    """
    settings = {"add_special_tokens": False, "split_special_tokens": not special}
    first_piece = tokenizer.convert_ids_to_tokens(tokenizer("a", **settings)["input_ids"])[0]
    anchor = "\n" if first_piece.startswith("\u2581") else ""
    skipped = len(tokenizer(anchor, **settings)["input_ids"])

    def encode(text: str) -> Ids:
        return tuple(tokenizer(anchor + text, **settings)["input_ids"][skipped:])

    return encode


def _check_roles(messages: Sequence[Message], first: str) -> None:
    """Raises `UserError` unless the roles alternate between user and assistant, beginning and ending with `first`."""
    second = "user" if first == "assistant" else "assistant"
    roles = [message.role for message in messages]
    if roles[::2] != [first] * len(roles[::2]) or roles[1::2] != [second] * len(roles[1::2]) or len(roles) % 2 == 0:
        raise UserError(f"messages must alternate, beginning and ending with {first}; these are {', '.join(roles)}.")


def _name(tokenizer: Any) -> str:
    return str(tokenizer.name_or_path or type(tokenizer).__name__)


def _join(pieces: Iterable[Ids]) -> Ids:
    return tuple(itertools.chain.from_iterable(pieces))
