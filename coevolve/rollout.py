"""The episode loop: many episodes at once, each a conversation between a policy and an environment.

An episode is a generator: it yields the conversation that awaits an action and receives the completion; between two
yields it steps its environment in a thread. It may start with given turns. With a policy whose completions finish on
their own, each episode advances on its own: its conversation is submitted when its environment has stepped. With a
policy that completes batches, the environments are divided into two groups: while those of one group step, the policy
completes all conversations of the other. Finished episodes are appended to a journal; a run that was killed reads them
from there and plays only the others.
"""

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Annotated, Self

from pydantic import Field, model_validator

from coevolve import seeds
from coevolve.chat.prompts import prompt_messages, without_surrogates
from coevolve.envs.base import Env, EnvError, InterruptedEpisodeError
from coevolve.errors import UserError
from coevolve.policies.base import Completion, ContinuousPolicy, Conversation, Policy
from coevolve.progress import Progress
from coevolve.records.episodes import Agent, Message, PolicyRef, Sampling, StopReason, Task, Trajectory, Turn
from coevolve.settings.protocol import Protocol
from coevolve.settings.section import Positive, Strict, UnitInterval
from coevolve.storage.jsonl import Journal


class RolloutConfig(Strict):
    """Exploration: `k` rollouts per instruction, at `temperature` (None: the protocol's).

    An episode that ends in an environment error is restarted up to `retries` times.
    """

    k: Positive
    temperature: Annotated[float, Field(ge=0.0)] | None = None
    top_p: Annotated[float, Field(gt=0.0, le=1.0)]
    max_new_tokens: Positive
    retries: Annotated[int, Field(ge=0)]


#: choice: two of WebShop's 200 episodes; in a small evaluation, none.
MAX_ENV_ERRORS = 0.01


class EvaluationConfig(Strict):
    """Each evaluation task is played `samples` times at `temperature` (0: greedy), and the best episode counts.

    More than one sample is Best-of-N judged by the environment's reward: an upper bound, not a policy's result.
    `max_env_errors`: an evaluation with a larger share of episodes that an error of the environment ended fails.
    """

    samples: Positive = 1
    temperature: Annotated[float, Field(ge=0.0)] = 0.0
    max_env_errors: UnitInterval = MAX_ENV_ERRORS

    @model_validator(mode="after")
    def _samples_differ(self) -> Self:
        if self.samples > 1 and self.temperature == 0:
            raise ValueError("several `samples` need a `temperature` above 0: greedy episodes of a task are equal")
        return self


_log = logging.getLogger(__name__)

#: Threads that step environments. More are hardly faster for environments that wait, and take twice the time for those
#: in other processes, because each response wakes a thread.
THREADS = 256

PromptBuilder = Callable[[str], tuple[Message, ...]]
EpisodeKey = tuple[str, int]


@dataclass(frozen=True)
class RolloutSettings:
    """What all episodes of a rollout have in common."""

    policy: PolicyRef
    sampling: Sampling
    seed: int
    agent: Agent
    protocol: Protocol
    prompt: PromptBuilder
    retries: int
    ended: Callable[[Conversation], bool] | None
    single_message: bool


@dataclass(frozen=True)
class EpisodeStart:
    """The task of an episode, its number among those of the task, and the turns to replay before the policy acts."""

    task: Task
    sample: int
    prefix: Sequence[Turn]


@dataclass
class PartialEpisode:
    """The turns and the reward of an unfinished episode."""

    prompt: tuple[Message, ...] = ()
    turns: list[Turn] = field(default_factory=list)
    reward: float = 0.0
    score: float = 0.0


#: The episodes of one environment, one after the other: yields conversations, and a trajectory at the end of each.
EpisodeStream = Generator[Conversation | Trajectory, Completion | None, None]
#: The episodes that a stream finished, and the conversation that awaits a completion, if one does.
StepOutcome = tuple[list[Trajectory], Conversation | None]


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
    ended: Callable[[Conversation], bool] | None = None,
    prompt: PromptBuilder = prompt_messages,
    prefixes: Sequence[Sequence[Turn]] | None = None,
    part: slice = slice(None),
    single_message: bool = False,
) -> list[Trajectory]:
    """`samples` episodes of every task, in task order; at most `len(envs)` of them are played at once.

    A task that is listed twice is played `samples` more times. The episodes of the i-th task start with the turns of
    `prefixes[i]` (None: without): their actions are repeated and keep text and token ids, the observations are the
    environment's new ones. They count towards the step limit. Of all these episodes only those of `part` are played.

    An episode whose environment fails is restarted up to `retries` times; then it ends as `env_error` with reward 0.
    One whose conversation has `ended` stops like one that does not fit into the policy's context. With `single_message`
    the policy sees the last message alone.
    Episodes in `journal` are not played again. Raises `UserError` if it holds episodes of another rollout.
    """
    settings = RolloutSettings(policy.ref, sampling, seed, agent, protocol, prompt, retries, ended, single_message)
    episodes = dict([*_episodes(tasks, prefixes or [()] * len(tasks), samples).items()][part])
    finished = _finished(journal, settings, episodes)
    waiting = deque(start for key, start in episodes.items() if key not in finished)
    progress = Progress("episodes")
    reward_sum = sum(trajectory.reward for trajectory in finished.values())
    progress.report(len(finished), len(episodes), reward=reward_sum / max(1, len(finished)))
    for trajectory in _play_all(waiting, policy, envs, settings):
        journal.append(trajectory)
        finished[trajectory.task.task_id, trajectory.sample] = trajectory
        reward_sum += trajectory.reward
        progress.report(len(finished), len(episodes), reward=reward_sum / len(finished))
    if finished.keys() != episodes.keys():
        raise RuntimeError(f"{len(episodes)} episodes were to be played, {len(finished)} came back")
    return [finished[key] for key in episodes]


def _episodes(
    tasks: Sequence[Task], prefixes: Sequence[Sequence[Turn]], samples: int
) -> dict[EpisodeKey, EpisodeStart]:
    """The episodes to play by task id and sample number, in task order."""
    counts: Counter[str] = Counter()
    episodes: dict[EpisodeKey, EpisodeStart] = {}
    for task, prefix in zip(tasks, prefixes, strict=True):
        for sample in range(counts[task.task_id], counts[task.task_id] + samples):
            episodes[task.task_id, sample] = EpisodeStart(task, sample, prefix)
        counts[task.task_id] += samples
    return episodes


def _finished(
    journal: Journal[Trajectory], settings: RolloutSettings, episodes: dict[EpisodeKey, EpisodeStart]
) -> dict[EpisodeKey, Trajectory]:
    """The episodes in the journal; raises `UserError` if one of them is not of this rollout."""
    finished = {(record.task.task_id, record.sample): record for record in journal.records}
    expected = (settings.policy, settings.sampling, settings.seed, settings.agent, settings.protocol)
    for key, record in finished.items():
        same_settings = (record.policy, record.sampling, record.seed, record.agent, record.protocol) == expected
        if not same_settings or key not in episodes or not _starts_with(record, episodes[key]):
            raise UserError(
                f"{journal.path}: episode {record.task.task_id}#{record.sample} is of another policy, sampling, seed, "
                "protocol or task list; delete the file and start again."
            )
    return finished


def _starts_with(record: Trajectory, start: EpisodeStart) -> bool:
    """Whether an episode has this start; if its environment failed, it may have fewer turns than the prefix."""
    replayed = zip(record.turns, start.prefix, strict=False)
    return record.task == start.task and all(turn.text == given.text for turn, given in replayed)


def _play_all(
    waiting: deque[EpisodeStart], policy: Policy, envs: Sequence[Env], settings: RolloutSettings
) -> Iterator[Trajectory]:
    """Play the `waiting` episodes; yields each as it ends."""
    streams = [_stream(env, waiting, settings) for env in envs]
    with ThreadPoolExecutor(max_workers=max(1, min(len(envs), THREADS))) as threads:
        if isinstance(policy, ContinuousPolicy):
            yield from EpisodeLoop(policy, settings.sampling, threads).play([stream] for stream in streams)
        else:
            halves = (streams[0::2], streams[1::2])
            yield from EpisodeLoop(BatchedPolicy(policy), settings.sampling, threads).play(halves)


@dataclass(eq=False)
class StreamGroup:
    """Streams whose conversations are submitted together, when all of their environments have stepped.

    `unfinished`: the number of `steps` that are not done.
    """

    steps: dict[EpisodeStream, Future[StepOutcome]]
    unfinished: int


class BatchedPolicy:
    """`submit` and `poll` of a policy that completes a batch at a time: what is submitted together is a batch."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._batches: deque[tuple[Sequence[Conversation], Sampling]] = deque()
        self.forget = policy.forget

    def submit(self, conversations: Sequence[Conversation], sampling: Sampling) -> None:
        """Add a batch."""
        self._batches.append((conversations, sampling))

    def poll(self) -> dict[str, Completion]:
        """The completions of the batch that was submitted first, by episode."""
        conversations, sampling = self._batches.popleft()
        completions = self._policy.complete(conversations, sampling)
        return {each.key: completion for each, completion in zip(conversations, completions, strict=True)}


class EpisodeLoop:
    """Steps environments in `threads` while `engine` completes the conversations of others."""

    def __init__(
        self, engine: ContinuousPolicy | BatchedPolicy, sampling: Sampling, threads: ThreadPoolExecutor
    ) -> None:
        self._engine, self._sampling, self._threads = engine, sampling, threads
        self._stepping = 0
        self._stepped: SimpleQueue[StreamGroup] = SimpleQueue()  # has a group as often as environments of it stepped
        self._completing: dict[str, tuple[StreamGroup, EpisodeStream]] = {}

    def play(self, groups: Iterable[Sequence[EpisodeStream]]) -> Iterator[Trajectory]:
        """Continue all streams until they end; yields each episode as it ends."""
        for streams in groups:
            self._step(StreamGroup({}, 0), dict.fromkeys(streams))
        try:
            while self._stepping or self._completing:
                if self._completing and self._stepped.empty():
                    self._receive()
                else:
                    yield from self._submit(self._stepped.get())
        finally:
            for key in self._completing:  # after an error
                self._engine.forget(key)

    def _step(self, group: StreamGroup, completions: Mapping[EpisodeStream, Completion | None]) -> None:
        """Continue the streams of a group in threads."""
        group.unfinished = len(completions)
        self._stepping += len(completions)
        for stream, completion in completions.items():
            group.steps[stream] = self._threads.submit(_advance, stream, completion)
            group.steps[stream].add_done_callback(lambda _: self._stepped.put(group))

    def _submit(self, group: StreamGroup) -> Iterator[Trajectory]:
        """Count a step of the group; after its last one, yield finished episodes and submit the conversations."""
        self._stepping -= 1
        group.unfinished -= 1
        if group.unfinished:
            return
        outcomes, group.steps = {stream: step.result() for stream, step in group.steps.items()}, {}
        for episode in (episode for finished, _ in outcomes.values() for episode in finished):
            self._engine.forget(_key(episode.task, episode.sample))
            yield episode
        awaiting = {stream: conversation for stream, (_, conversation) in outcomes.items() if conversation}
        self._completing |= {conversation.key: (group, stream) for stream, conversation in awaiting.items()}
        if awaiting:
            self._engine.submit([*awaiting.values()], self._sampling)

    def _receive(self) -> None:
        """Pass completions that have finished to their environments."""
        received: dict[StreamGroup, dict[EpisodeStream, Completion]] = {}
        for key, completion in self._engine.poll().items():
            group, stream = self._completing.pop(key)
            received.setdefault(group, {})[stream] = completion
        for group, completions in received.items():
            self._step(group, completions)


def _advance(stream: EpisodeStream, completion: Completion | None) -> StepOutcome:
    """Continue a stream until it awaits a completion or ends."""
    finished = []
    try:
        event = stream.send(completion)
        while isinstance(event, Trajectory):
            finished.append(event)
            event = next(stream)
    except StopIteration:
        return finished, None
    return finished, event


def _stream(env: Env, waiting: deque[EpisodeStart], settings: RolloutSettings) -> EpisodeStream:
    """Play `waiting` episodes in `env` until none is left."""
    while True:
        try:
            start = waiting.popleft()
        except IndexError:
            return
        yield (yield from _episode(env, start, settings))


def _episode(
    env: Env, start: EpisodeStart, settings: RolloutSettings
) -> Generator[Conversation, Completion, Trajectory]:
    """Play one episode, with retries after failures of the environment."""
    began, attempt = time.monotonic(), 1
    while True:
        partial, error = PartialEpisode(), ""
        try:
            stop = yield from _play(env, start, settings, partial)
            break
        except EnvError as failure:
            stop, partial.reward = StopReason.ENV_ERROR, 0.0
            error = without_surrogates(str(failure)) or type(failure).__name__
            _log.warning("%s, attempt %d: %s", _key(start.task, start.sample), attempt, error)
            if isinstance(failure, InterruptedEpisodeError):
                continue
            if attempt > settings.retries:
                break
            attempt += 1
    return Trajectory(
        task=start.task,
        agent=settings.agent,
        policy=settings.policy,
        sampling=settings.sampling,
        seed=settings.seed,
        sample=start.sample,
        protocol=settings.protocol,
        environment=env.identity,
        prompt=partial.prompt,
        turns=tuple(partial.turns),
        reward=partial.reward,
        raw_score=partial.score,
        stop=stop,
        error=error,
        seconds=time.monotonic() - began,
        attempts=attempt,
    )


def _play(
    env: Env, start: EpisodeStart, settings: RolloutSettings, partial: PartialEpisode
) -> Generator[Conversation, Completion, StopReason]:
    """Act until the episode ends; `partial` holds the turns so far, also if the environment fails."""
    task, key = start.task, _key(start.task, start.sample)
    seed = seeds.derive(settings.seed, settings.agent, task.task_id, start.sample)
    partial.prompt = settings.prompt(without_surrogates(env.start(task)))
    for given in start.prefix:
        if _take_turn(env, given, partial):
            return StopReason.DONE
    limit = env.step_limit(task)
    while len(partial.turns) < limit:
        conversation = Conversation(key, seed, partial.prompt, tuple(partial.turns))
        if settings.ended and settings.ended(conversation):
            return StopReason.CONTEXT
        completion = yield conversation.last_message() if settings.single_message else conversation
        if completion.stop:
            return completion.stop
        text = without_surrogates(completion.text)  # of any policy
        turn = Turn(
            text=text,
            action=env.parse(text),
            observation="",
            token_ids=completion.token_ids,
            truncated=completion.truncated,
            logps=completion.logps,
        )
        if _take_turn(env, turn, partial):
            return StopReason.DONE
    return StopReason.STEP_LIMIT


def _take_turn(env: Env, turn: Turn, partial: PartialEpisode) -> bool:
    """Execute a turn's action and add the turn with its observation to `partial`; returns whether the episode ended."""
    step = env.step(turn.action)
    observation = without_surrogates(step.observation)
    partial.turns.append(turn.model_copy(update={"observation": observation, "score": step.score}))
    partial.reward, partial.score = step.reward, step.score
    return step.done


def _key(task: Task, sample: int) -> str:
    return f"{task.task_id}#{sample}"
