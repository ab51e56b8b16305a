"""Explorations to analyse, made from rewards and actions."""

from coevolve.records.episodes import Message, StopReason, Task, Trajectory, Turn
from coevolve.report.exploration import Exploration


def episode(task, reward, actions=("look",), *, env="sciworld", agent="target", observations=(), sample=0):
    answers = [*observations, *["You see it."] * len(actions)]
    turns = tuple(
        Turn(text=f"Action: {action}", action=action, observation=answer)
        for action, answer in zip(actions, answers, strict=False)
    )
    return Trajectory(
        task=Task(env=env, task_id=task, split="train"),
        agent=agent,
        sample=sample,
        protocol="fixed",
        prompt=(Message(role="user", content=f"Do {task}"),),
        turns=turns,
        reward=reward,
        stop=StopReason.DONE,
    )


def explored(method, rewards_by_task, *, agent="target", iteration=1, seed=0, env="sciworld", **names):
    """One file: an episode of every task, or several where a list is given."""
    episodes = tuple(
        episode(task, reward, env=env, agent=agent, sample=sample)
        for task, rewards in rewards_by_task.items()
        for sample, reward in enumerate(rewards if isinstance(rewards, list) else [rewards])
    )
    given = {"model": "tiny", "protocol": "fixed", "source": f"{method}/{seed}/{iteration}/{agent}"} | names
    return Exploration(method=method, env=env, seed=seed, iteration=iteration, agent=agent, episodes=episodes, **given)
