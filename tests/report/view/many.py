"""A suite's folder with many episodes, written for size."""

import builders
from builders import turn

from coevolve.records.episodes import PolicyRef, Sampling
from coevolve.storage import jsonl

TURNS = 10
FILES = 20


def write(home, count):
    """`count` episodes of ten turns under `home`, in twenty files, and half as many pairs."""
    for number in range(FILES):
        branch = home / f"tiny/webshop/coevolve/seed{number % 5}/iter{number // 5 + 1}"
        episodes = [episode(number, task) for task in range(count // FILES)]
        jsonl.write(branch / "rollout/target/episodes.jsonl", episodes)
        couples = zip(episodes[::2], episodes[1::2], strict=True)
        jsonl.write(branch / "pairs/target/pairs.jsonl", (pair(*couple) for couple in couples))


def episode(file, task):
    """An episode like WebShop's in length: 300 characters an observation, 25 tokens an action."""
    turns = [
        turn(
            f"click[b{file}x{task}]",
            f"Instruction: [SEP] {file} {task} {number} " + "a product with a name [SEP] " * 10,
            text=f"Thought: This is turn {number}.\nAction: click[b{file}x{task}]",
            token_ids=tuple(range(25)),
        )
        for number in range(TURNS)
    ]
    prompt = f"Find me product {task}, and price lower than 50 dollars"
    sampled = {"policy": PolicyRef(name="tiny", sha256="0" * 64), "sampling": Sampling(temperature=1.0), "seed": file}
    return builders.episode(f"webshop/{task}", (task % 11) / 10, turns, env="webshop", prompt=prompt, **sampled)


def pair(chosen, rejected):
    """A pair of any two episodes, without their tokens."""
    return builders.pair(chosen, rejected, chosen_token_ids=(), rejected_token_ids=())
