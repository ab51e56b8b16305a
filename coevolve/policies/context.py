"""How much of a conversation a policy reads, and what the ids that it samples say."""

from __future__ import annotations

from typing import Literal

from coevolve.chat.chat_template import Ids, Renderer
from coevolve.errors import UserError
from coevolve.policies.base import Completion, Conversation

LongPrompt = Literal["end", "cut_left"]


class Window:
    """`context` tokens, for a conversation and its answer together.

    A conversation whose ids and the answer's most tokens exceed the context does not fit (`long_prompt` "end"), or
    loses its first tokens ("cut_left").
    """

    def __init__(self, renderer: Renderer, context: int, long_prompt: LongPrompt) -> None:
        self._renderer, self._context, self._long_prompt = renderer, context, long_prompt

    def ids(self, conversation: Conversation, max_new_tokens: int) -> Ids | None:
        """The ids that are read before an answer of up to `max_new_tokens`; None for a conversation that does not fit.

        Raises `UserError` where the answer alone fills the context.
        """
        room = self._context - max_new_tokens
        if room <= 0:
            raise UserError(f"`max_new_tokens` {max_new_tokens} fills the `context` {self._context}; lower it.")
        ids = self._renderer.conversation_ids(conversation.prompt, conversation.turns)
        return ids[-room:] if len(ids) <= room or self._long_prompt == "cut_left" else None

    def completion(self, sampled: Ids | None) -> Completion:
        """What `sampled` ids say; None stands for a conversation that does not fit.

        A turn that is cut off has no end-of-turn token among its ids; the renderer writes one before the next
        observation.
        """
        if sampled is None:
            return Completion(text="", fits=False)
        truncated = sampled[-1] != self._renderer.end_of_turn
        return Completion(text=self._renderer.decode(sampled), token_ids=sampled, truncated=truncated)
