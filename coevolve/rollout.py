"""The episode loop: many episodes side by side, each a conversation between a policy and an environment.

An episode is a generator. It yields the conversation that awaits an action and is sent the completion; between two
yields it does one step of its environment. It may open with turns that are given, not asked for. The episodes run in
two halves: while the environments of one half step in threads, the policy answers all conversations of the other at
once. Finished episodes go to a journal; a run that was killed takes them from there and plays only the others.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from coevolve import seeds
from coevolve.chat.prompts import prompt_messages
from coevolve.envs.base import Env, EnvError
from coevolve.errors import UserError
from coevolve.policies.base import Completion, Conversation, Policy
from coevolve.progress import Progress
from coevolve.storage.jsonl import Journal
from coevolve.types import Agent, Message, PolicyRef, Protocol, Sampling, StopReason, Task, Trajectory, Turn

_log = logging.getLogger(__name__)

#: Threads in which environments step. More bring little to those that wait, and cost those in other processes twice
#: the time: they are woken for every answer.
THREADS = 256

PromptBuilder = Callable[[str], tuple[Message, ...]]
Key = tuple[str, int]


@dataclass(frozen=True)
class Plan:
    """What all episodes of a rollout have in common."""

    policy: PolicyRef
    sampling: Sampling
    seed: int
    agent: Agent
    protocol: Protocol
    prompt: PromptBuilder
    retries: int


@dataclass(frozen=True)
class Opening:
    """How an episode begins: its task, and the turns that are taken before the policy is asked for one."""

    task: Task
    prefix: Sequence[Turn] = ()


@dataclass
class Attempt:
    """An episode as far as it has come."""

    prompt: tuple[Message, ...] = ()
    turns: list[Turn] = field(default_factory=list)
    reward: float = 0.0
    score: float = 0.0


@dataclass(frozen=True)
class Move:
    """What a lane did with an answer: the episodes it ended, and the conversation that awaits an answer now, if any."""

    ended: list[Trajectory]
    awaiting: Conversation | None


Lane = Generator[Conversation | Trajectory, Completion | None, None]


@dataclass(frozen=True)
class Half:
    """Lanes that are answered together, and what they are doing with their last answers."""

    lanes: list[Lane]
    moves: list[Future[Move]]

    @classmethod
    def sent(cls, threads: Executor, lanes: list[Lane], answers: Sequence[Completion | None]) -> Half:
        """`lanes` going on with `answers`, each in a thread."""
        return cls(lanes, [threads.submit(_advance, lane, answer) for lane, answer in zip(lanes, answers, strict=True)])


def rollout(
    tasks: Sequence[Task],
    policy: Policy,
    envs: Sequence[Env],
    *,
    samples: int,
    sampling: Sampling,
    seed: int,
    agent: Agent,
    protocol: Protocol,
    retries: int,
    journal: Journal[Trajectory],
    prompt: PromptBuilder = prompt_messages,
    progress: Progress | None = None,
    prefixes: Sequence[Sequence[Turn]] | None = None,
) -> list[Trajectory]:
    """`samples` episodes of every task, in task order; as many at once as there are `envs`.

    A task listed twice is played `samples` times more. The episodes of the i-th task begin with the turns of
    `prefixes[i]` (None: with none): their actions are done again and keep their text and token ids; what they meet is
    what the environment answers now. They count towards the step limit.

    An episode whose environment fails is started again up to `retries` times and then ends as `env_error` with reward
    0. Episodes already in `journal` are not played again; raises `UserError` if it holds episodes of another rollout.
    """
    plan = Plan(policy.ref, sampling, seed, agent, protocol, prompt, retries)
    openings = [Opening(*given) for given in zip(tasks, prefixes or [()] * len(tasks), strict=True)]
    wanted = _episodes(openings, samples)
    finished = _finished(journal, plan, wanted)
    waiting = deque((opening, key[1]) for key, opening in wanted.items() if key not in finished)
    progress = progress or Progress("episodes")
    earned = sum(trajectory.reward for trajectory in finished.values())
    progress.report(len(finished), len(wanted), reward=earned / max(1, len(finished)))
    for trajectory in _play_all(waiting, policy, envs, plan):
        journal.append(trajectory)
        finished[trajectory.task.task_id, trajectory.sample] = trajectory
        earned += trajectory.reward
        progress.report(len(finished), len(wanted), reward=earned / len(finished))
    if finished.keys() != wanted.keys():
        raise RuntimeError(f"{len(wanted)} episodes were to be played, {len(finished)} came back")
    return [finished[key] for key in wanted]


def _episodes(openings: Sequence[Opening], samples: int) -> dict[Key, Opening]:
    """The episodes to play, by task id and sample number, in task order."""
    seen: Counter[str] = Counter()
    wanted: dict[Key, Opening] = {}
    for opening in openings:
        task_id = opening.task.task_id
        for sample in range(seen[task_id], seen[task_id] + samples):
            wanted[task_id, sample] = opening
        seen[task_id] += samples
    return wanted


def _finished(journal: Journal[Trajectory], plan: Plan, wanted: dict[Key, Opening]) -> dict[Key, Trajectory]:
    """The episodes that the journal already holds; raises `UserError` if one of them is not this rollout's."""
    finished = {(record.task.task_id, record.sample): record for record in journal.records}
    for key, record in finished.items():
        same_plan = _identity(record) == (plan.policy, plan.sampling, plan.seed, plan.agent, plan.protocol)
        if not same_plan or key not in wanted or not _opens(record, wanted[key]):
            raise UserError(
                f"{journal.path}: episode {record.task.task_id}#{record.sample} is of another policy, sampling, seed, "
                "protocol or task list; delete the file and start again."
            )
    return finished


def _opens(record: Trajectory, opening: Opening) -> bool:
    """Whether an episode begins as `opening` says; one whose environment failed may have ended before."""
    beginnings = zip(record.turns, opening.prefix, strict=False)
    return record.task == opening.task and all(turn.text == given.text for turn, given in beginnings)


def _identity(record: Trajectory) -> tuple[PolicyRef | None, Sampling | None, int, Agent, Protocol]:
    return record.policy, record.sampling, record.seed, record.agent, record.protocol


def _play_all(
    waiting: deque[tuple[Opening, int]], policy: Policy, envs: Sequence[Env], plan: Plan
) -> Iterator[Trajectory]:
    """Play the `waiting` episodes, half of the environments stepping at any time; yields each episode as it ends."""
    with ThreadPoolExecutor(max_workers=max(1, min(len(envs), THREADS))) as threads:
        lanes = [_lane(env, waiting, plan) for env in envs]
        halves = deque(Half.sent(threads, part, [None] * len(part)) for part in (lanes[0::2], lanes[1::2]))
        while halves:
            half = halves.popleft()
            moves = [move.result() for move in half.moves]
            for trajectory in (ended for move in moves for ended in move.ended):
                policy.forget(_key(trajectory.task, trajectory.sample))
                yield trajectory
            going_on = [lane for lane, move in zip(half.lanes, moves, strict=True) if move.awaiting]
            if going_on:
                answers = policy.complete([move.awaiting for move in moves if move.awaiting], plan.sampling)
                halves.append(Half.sent(threads, going_on, answers))


def _advance(lane: Lane, answer: Completion | None) -> Move:
    """Let a lane go on until it awaits another answer, or has no episode left."""
    ended = []
    try:
        event = lane.send(answer)
        while isinstance(event, Trajectory):
            ended.append(event)
            event = next(lane)
    except StopIteration:
        return Move(ended, None)
    return Move(ended, event)


def _lane(env: Env, waiting: deque[tuple[Opening, int]], plan: Plan) -> Lane:
    """The waiting episodes that `env` gets to play, one by one: their conversations, and a trajectory at each end."""
    while True:
        try:
            opening, sample = waiting.popleft()
        except IndexError:
            return
        yield (yield from _episode(env, opening, sample, plan))


def _episode(env: Env, opening: Opening, sample: int, plan: Plan) -> Generator[Conversation, Completion, Trajectory]:
    """Play one episode to its end, whatever that is."""
    began, task = time.monotonic(), opening.task
    for number in range(1, plan.retries + 2):
        attempt, error = Attempt(), ""
        try:
            stop = yield from _play(env, opening, sample, plan, attempt)
            break
        except EnvError as failure:
            stop, error, attempt.reward = StopReason.ENV_ERROR, str(failure) or type(failure).__name__, 0.0
            _log.warning("%s, attempt %d: %s", _key(task, sample), number, error)
    return Trajectory(
        task=task,
        agent=plan.agent,
        policy=plan.policy,
        sampling=plan.sampling,
        seed=plan.seed,
        sample=sample,
        protocol=plan.protocol,
        environment=env.identity,
        prompt=attempt.prompt,
        turns=tuple(attempt.turns),
        reward=attempt.reward,
        raw_score=attempt.score,
        stop=stop,
        error=error,
        seconds=time.monotonic() - began,
        attempts=number,
    )


def _play(
    env: Env, opening: Opening, sample: int, plan: Plan, attempt: Attempt
) -> Generator[Conversation, Completion, StopReason]:
    """Act until the episode ends; `attempt` holds what happened even if the environment fails."""
    task = opening.task
    seed = seeds.derive(plan.seed, plan.agent, task.task_id, sample)
    attempt.prompt = plan.prompt(env.start(task))
    for given in opening.prefix:
        if _take(env, given, attempt):
            return StopReason.DONE
    limit = env.step_limit(task)
    while len(attempt.turns) < limit:
        said = yield Conversation(_key(task, sample), seed, attempt.prompt, tuple(attempt.turns))
        if not said.fits:
            return StopReason.CONTEXT
        turn = Turn(
            text=said.text,
            action=env.parse(said.text),
            observation="",
            token_ids=said.token_ids,
            truncated=said.truncated,
        )
        if _take(env, turn, attempt):
            return StopReason.DONE
    return StopReason.STEP_LIMIT


def _take(env: Env, turn: Turn, attempt: Attempt) -> bool:
    """Do a turn's action and add the turn, with what it met, to the attempt; whether that ended the episode."""
    step = env.step(turn.action)
    attempt.turns.append(turn.model_copy(update={"observation": step.observation, "score": step.score}))
    attempt.reward, attempt.score = step.reward, step.score
    return step.done


def _key(task: Task, sample: int) -> str:
    return f"{task.task_id}#{sample}"
