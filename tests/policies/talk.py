"""Conversations of several turns with a policy, and what transformers generates in its place."""

from dataclasses import replace

import torch
from templates.models import llama, tokenizer

from coevolve.chat.prompts import prompt_messages
from coevolve.policies.base import Conversation
from coevolve.policies.hf import TransformersPolicy
from coevolve.records.episodes import PolicyRef, Sampling, Turn

REF = PolicyRef(name="random", sha256="0" * 64)
MODEL = llama()
GREEDY = Sampling(temperature=0.0, max_new_tokens=12)
SAMPLED = Sampling(temperature=1.0, top_p=0.95, max_new_tokens=12)
SEEN = ("The door is now open.", "You see a key, a stove and a cup of water. " * 4, "Nothing.")


def policy(slots=4, context=384, model=MODEL, kind=TransformersPolicy):
    """A policy with random weights."""
    return kind(model, tokenizer("tiny"), REF, slots=slots, context=context, long_prompt="end")


def opening(number):
    """The conversation of task `number` before its first turn."""
    text = f"Your task is to find key {number}. " + "You see a red door. " * (number % 5)
    return Conversation(f"task{number}#0", 100 + number, prompt_messages(text), ())


def after(conversation, completion, observation=None):
    """The conversation with one turn more; what is seen depends on its key and turn, if it is not given."""
    seen = SEEN[(len(conversation.turns) + len(conversation.key)) % 3] if observation is None else observation
    turn = Turn(text=completion.text, action=None, observation=seen, token_ids=completion.token_ids)
    return replace(conversation, turns=(*conversation.turns, turn))


def play(policy, conversations, sampling, turns=3):
    """The completions of each of some conversations, over several turns, side by side."""
    histories = [[] for _ in conversations]
    for _ in range(turns):
        completions = policy.complete(conversations, sampling)
        for history, completion in zip(histories, completions, strict=True):
            history.append(completion)
        conversations = [after(c, completion) for c, completion in zip(conversations, completions, strict=True)]
    return histories


def generated(model, end_of_turn, ids):
    """What transformers generates greedily after `ids`."""
    whole = model.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.long),
        do_sample=False,
        max_new_tokens=GREEDY.max_new_tokens,
        eos_token_id=end_of_turn,
        pad_token_id=0,
    )
    return tuple(whole[0, len(ids) :].tolist())
