"""Records with defaults for what a test does not look at."""

from coevolve.records.episodes import Message, StopReason, Task, Trajectory, Turn
from coevolve.records.evaluation import EvalRecord
from coevolve.records.pairs import PreferencePair
from coevolve.storage import files, provenance


def relist(folder, **fields):
    """Let the provenance of a folder list its files as they are now, with these fields of it changed."""
    made = provenance.read(folder / provenance.NAME)
    outputs = {name: files.sha256(folder / name) for name in made.outputs if (folder / name).exists()}
    changed = made.model_copy(update={"outputs": outputs, **fields})
    files.write_bytes(folder / provenance.NAME, changed.to_json().encode())


def task(name="t", *, env="sciworld", split="train", **fields):
    """A task of that id."""
    return Task(env=env, task_id=name, split=split, **fields)


def turn(action="look", observation="", **fields):
    """A turn whose text is the action with its label, or the text in `fields`."""
    return Turn(**{"text": f"Action: {action}", "action": action, "observation": observation} | fields)


def episode(name="t", reward=0.0, turns=("look",), *, env="sciworld", split="train", prompt="Do it.", **fields):
    """An episode of task `name`, of the target agent if `fields` name no other; a turn is a `Turn` or its action."""
    values = {
        "task": task(name, env=env, split=split),
        "agent": "target",
        "protocol": "fixed",
        "prompt": (Message(role="user", content=prompt),),
        "turns": tuple(each if isinstance(each, Turn) else turn(each) for each in turns),
        "reward": reward,
        "stop": StopReason.DONE,
    }
    return Trajectory(**values | fields)


def pair(chosen, rejected, kind="failure_failure", **fields):
    """The pair of two episodes of a task; its weights are those of eq. 7."""
    values = {
        "task_id": chosen.task.task_id,
        "kind": kind,
        "prompt": chosen.prompt,
        "chosen": chosen.completion,
        "rejected": rejected.completion,
        "chosen_token_ids": tuple(each.token_ids for each in chosen.turns),
        "rejected_token_ids": tuple(each.token_ids for each in rejected.turns),
        "chosen_id": chosen.digest(),
        "rejected_id": rejected.digest(),
        "chosen_reward": chosen.reward,
        "rejected_reward": rejected.reward,
        "lambda_dpo": 1.0,
        "lambda_sft": 0.0,
    }
    return PreferencePair(**values | fields)


def record(name="t", reward=0.0, *, split="seen", seed=0, **fields):
    """The evaluation record of an episode of task `name`; a reward of 1 is a success."""
    values = {"success": reward == 1.0, "stop": StopReason.DONE, "turns": 3, "trajectory_id": f"{name}-{seed}"}
    return EvalRecord(task_id=name, split=split, seed=seed, reward=reward, **values | fields)
