"""A suite's folder with many episodes, written for size: `python many.py FOLDER EPISODES`."""

import sys
from pathlib import Path

from coevolve.records.episodes import Message, PolicyRef, Sampling, StopReason, Task, Trajectory, Turn
from coevolve.records.pairs import PreferencePair
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
    turns = tuple(
        Turn(
            text=f"Thought: This is turn {number}.\nAction: click[b{file}x{task}]",
            action=f"click[b{file}x{task}]",
            observation=f"Instruction: [SEP] {file} {task} {number} " + "a product with a name [SEP] " * 10,
            token_ids=tuple(range(25)),
        )
        for number in range(TURNS)
    )
    return Trajectory(
        task=Task(env="webshop", task_id=f"webshop/{task}", split="train"),
        agent="target",
        policy=PolicyRef(name="tiny", sha256="0" * 64),
        sampling=Sampling(temperature=1.0),
        seed=file,
        protocol="fixed",
        prompt=(Message(role="user", content=f"Find me product {task}, and price lower than 50 dollars"),),
        turns=turns,
        reward=(task % 11) / 10,
        stop=StopReason.DONE,
    )


def pair(chosen, rejected):
    """A pair of any two episodes."""
    return PreferencePair(
        task_id=chosen.task.task_id,
        kind="failure_failure",
        prompt=chosen.prompt,
        chosen=chosen.completion,
        rejected=rejected.completion,
        chosen_token_ids=(),
        rejected_token_ids=(),
        chosen_id=chosen.digest(),
        rejected_id=rejected.digest(),
        chosen_reward=chosen.reward,
        rejected_reward=rejected.reward,
        lambda_dpo=1.0,
        lambda_sft=0.0,
    )


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]))
