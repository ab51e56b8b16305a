"""The context window: which token ids of a conversation a policy reads, and the completion that it samples."""

import bisect
from collections.abc import Sequence

from coevolve.chat.chat_template import Ids, Renderer
from coevolve.errors import UserError
from coevolve.policies.base import Completion, Conversation
from coevolve.records.episodes import StopReason
from coevolve.settings.protocol import LongPrompt


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the common prefix of two tuples."""
    longest = min(len(left), len(right))
    return bisect.bisect_left(range(1, longest + 1), True, key=lambda length: left[:length] != right[:length])


class ContextWindow:
    """A limit of `context` tokens for prompt and completion together.

    A conversation whose prompt has more than context - max_new_tokens tokens does not fit (`long_prompt` "end"), or
    loses its first tokens ("cut_left").
    """

    def __init__(self, renderer: Renderer, context: int, long_prompt: LongPrompt) -> None:
        self._renderer, self._context, self._long_prompt = renderer, context, long_prompt

    def prompt_ids(self, conversation: Conversation, max_new_tokens: int) -> Ids | None:
        """The conversation's ids, cut if need be; None if it does not fit, `UserError` if no prompt does."""
        limit = self._context - max_new_tokens
        if limit <= 0:
            raise UserError(f"`max_new_tokens` {max_new_tokens} fills the `context` {self._context}; lower it.")
        ids = self._renderer.conversation_ids(conversation.prompt, conversation.turns)
        return ids[-limit:] if len(ids) <= limit or self._long_prompt == "cut_left" else None

    def completion(self, sampled: Ids | None, logps: tuple[float, ...] = ()) -> Completion:
        """The completion with the `sampled` ids, truncated if they lack an end-of-turn token; None: it does not fit."""
        if sampled is None:
            return Completion(text="", stop=StopReason.CONTEXT)
        truncated = sampled[-1] != self._renderer.end_of_turn
        return Completion(self._renderer.decode(sampled), sampled, truncated, logps=logps)
