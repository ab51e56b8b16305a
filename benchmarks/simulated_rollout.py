"""A rollout at the paper's size, simulated: what it gains when episodes advance on their own, and when the cache holds them.

No GPU and no model run here. One shard of a rollout is played by an engine that takes the time which the constants below
imply, and by environments that take the time of `expected.turn_seconds` in the configs. Which conversations are admitted
is decided by the class that the engine `vllm` uses. All assumptions are printed above the table.

    python benchmarks/simulated_rollout.py
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import lzma
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from coevolve.config.environments import Expected
from coevolve.config.loading import load_suite
from coevolve.config.machine import Machine
from coevolve.dag.machine import load_machine
from coevolve.policies.admission import AdmissionQueue

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "tests" / "data"
#: Llama-2-7B in bfloat16: parameters, and bytes of keys and values of a token (32 layers of 2 x 4,096 numbers).
PARAMETERS, TOKEN_BYTES = 6.74e9, 32 * 2 * 4096 * 2
CACHE_BYTES = 58e9  # choice: 80 GB x 0.9 less 13.5 GB of weights and half a GB of activations
BANDWIDTH = 0.6 * 3.35e12  # choice: 0.6 of the data sheet's bytes per second
STEP_TOKENS = 8192  # vLLM's default of max_num_batched_tokens
CHARACTERS = 3.5  # choice: characters of these texts in a token
#: The numbers of environments before the cache limited the episodes in flight.
FORMER_WORKERS = {"sciworld": 128, "webshop": 512, "intercode_sql": 256}
Row = dict[str, object]


@dataclass(eq=False)
class Episode:
    """An episode by numbers of tokens: those read before each turn, and those written in it.

    `tokens`: its conversation so far; `cached`: how many of them the cache holds.
    """

    key: str
    read: Sequence[int]
    written: Sequence[int]
    turn: int = 0
    tokens: int = 0
    cached: int = 0
    left: int = 0


@dataclass
class Engine:
    """Continuous batching with prefix caching: the least recently used idle conversation is evicted first.

    A step decodes a token of each running conversation that is prefilled, and prefills others with what is left of
    STEP_TOKENS. Its time is that of reading weights, keys and values, and of the operations of prefilled tokens.
    """

    capacity: int
    most: int
    prefill_rate: float
    shared: int = 0
    waiting: deque[Episode] = field(default_factory=deque)
    running: list[Episode] = field(default_factory=list)
    idle: dict[Episode, None] = field(default_factory=dict)
    prefilled: int = 0
    running_total: int = 0
    steps: int = 0

    def step(self) -> tuple[float, list[Episode]]:
        """Seconds of a step, and the episodes whose turn ended with it."""
        while self.waiting and len(self.running) < self.most and self._make_room(self.waiting[0].tokens + 1):
            self.running.append(self.waiting.popleft())
        room, prefilled, decoding = STEP_TOKENS, 0, 0
        for episode in self.running:
            missing = max(0, episode.tokens - 1 - episode.cached)
            count = min(missing, room)
            room, prefilled = room - count, prefilled + count
            episode.cached += count
            if count == missing and room:
                room, decoding = room - 1, decoding + self.shared + episode.tokens
                episode.cached, episode.tokens, episode.left = episode.tokens, episode.tokens + 1, episode.left - 1
        self.prefilled, self.steps = self.prefilled + prefilled, self.steps + 1
        self.running_total += len(self.running)
        ended = [episode for episode in self.running if not episode.left]
        self.running = [episode for episode in self.running if episode.left]
        self.idle |= dict.fromkeys(ended)
        while not self._make_room(0):
            preempted = self.running.pop()
            preempted.cached = 0
            self.waiting.appendleft(preempted)
        read = 2 * PARAMETERS + TOKEN_BYTES * decoding
        return read / BANDWIDTH + prefilled / self.prefill_rate, ended

    def forget(self, episode: Episode) -> None:
        """Its blocks are the next to be evicted; here they are free at once."""
        self.idle.pop(episode, None)

    def _make_room(self, tokens: int) -> bool:
        """Evict idle conversations until `tokens` more fit beside the running ones; whether they do."""
        chosen = self.waiting[0] if tokens else None
        held = sum(each.tokens for each in self.running)
        if held + tokens > self.capacity:
            return False
        idle = sum(each.cached for each in self.idle if each is not chosen)
        while held + tokens + idle > self.capacity:
            victim = next(each for each in self.idle if each is not chosen)
            idle -= victim.cached
            victim.cached = 0
            self.idle.pop(victim)
        if chosen:
            self.idle.pop(chosen, None)
        return True


@dataclass
class Rollout:
    """A rollout in simulated time: `servers` step environments of `turn_seconds`, one step at a time each."""

    engine: Engine
    turn_seconds: float
    servers: int
    now: float = 0.0
    stepping: list[tuple[float, int, Episode]] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self._free = [0.0] * self.servers

    def step_environment(self, episode: Episode) -> None:
        """Queue a step of the episode's environment."""
        end = max(self.now, heapq.heappop(self._free)) + self.turn_seconds
        heapq.heappush(self._free, end)
        heapq.heappush(self.stepping, (end, next(self.numbers), episode))

    def stepped(self, *, wait: bool) -> list[Episode]:
        """The episodes whose environments have stepped by now, each with what it reads; `wait`: for the next one."""
        if wait and self.stepping:
            self.now = max(self.now, self.stepping[0][0])
        done = []
        while self.stepping and self.stepping[0][0] <= self.now:
            episode = heapq.heappop(self.stepping)[2]
            episode.tokens += episode.read[episode.turn]
            episode.left = episode.written[episode.turn]
            done.append(episode)
        return done

    def next_of(self, episode: Episode, later: deque[Episode]) -> Episode | None:
        """Continue after a turn: the same episode, or another one in its environment."""
        episode.turn += 1
        if episode.turn == len(episode.read):
            self.engine.forget(episode)
            if not later:
                return None
            episode = later.popleft()
        self.step_environment(episode)
        return episode

    def in_steps(self, episodes: Sequence[Episode], workers: int) -> float:
        """Seconds if two groups take turns and every turn waits for the longest completion of its group."""
        later = deque(episodes)
        first = [later.popleft() for _ in range(min(workers, len(later)))]
        groups = deque([group for group in (first[0::2], first[1::2]) if group])
        for episode in first:
            self.step_environment(episode)
        ready: set[Episode] = set()
        while groups:
            group = groups.popleft()
            while not ready.issuperset(group):
                ready.update(self.stepped(wait=True))
            ready.difference_update(group)
            self.engine.waiting.extend(group)
            while self.engine.waiting or self.engine.running:
                self.now += self.engine.step()[0]
                ready.update(self.stepped(wait=False))
            following = [self.next_of(episode, later) for episode in group]
            if remaining := [episode for episode in following if episode]:
                groups.append(remaining)
        return self.now

    def on_their_own(
        self, episodes: Sequence[Episode], workers: int, queue: AdmissionQueue[Episode], reserve: int
    ) -> float:
        """Seconds if an episode advances when its completion and its step are there, and the queue admits it."""
        later = deque(episodes)
        for episode in [later.popleft() for _ in range(min(workers, len(later)))]:
            self.step_environment(episode)
        engine, unfinished = self.engine, len(episodes)
        while unfinished:
            for episode in self.stepped(wait=not (engine.waiting or engine.running)):
                queue.add(episode.key, episode.tokens + reserve, episode)
            engine.waiting.extend(each for _, each in queue.admit(idle=not (engine.waiting or engine.running)))
            if not (engine.waiting or engine.running):
                continue
            seconds, ended = engine.step()
            self.now += seconds
            for episode in ended:
                if self.next_of(episode, later) is not episode:
                    unfinished -= 1
                    queue.release(episode.key)
        return self.now


def recorded(name: str) -> Any:
    """A recording of an environment, unpacked."""
    text = lzma.decompress((RECORDED / f"{name}.xz").read_bytes()).decode()
    return [json.loads(line) for line in text.splitlines()] if name.endswith("jsonl") else json.loads(text)


def tokens(text: object) -> int:
    """The estimated number of tokens of a text."""
    return max(1, round(len(str(text)) / CHARACTERS))


def turns_of(env: str, expected: Expected, count: int, rng: np.random.Generator) -> tuple[list[int], list[int]]:
    """The turns of `count` episodes, and lengths of recorded observations, in tokens."""
    if env == "sciworld":
        limits = json.loads((ROOT / "data/sciworld/eto/max_steps.json").read_text())
        kinds = [kind for kind, _ in json.loads((ROOT / "data/sciworld/eto/train.json").read_text())][:count]
        turns = [int(rng.integers(1, limits[kind] + 1)) for kind in kinds]
        return turns, [
            tokens(step["observation"]) for task in recorded("sciworld/gold_218.json") for step in task["steps"]
        ]
    if env == "webshop":
        records = [record for record in recorded("webshop/traces_human_goals.jsonl") if record["kind"] == "episode"]
        turns = [int(turn) for turn in rng.integers(1, round(2 * expected.turns), count)]
        return turns, [tokens(step["obs"]) for record in records for step in record["steps"]]
    runs = [run["turn_history"] for run in recorded("intercode/ic_sql_react_10_turns.json").values()]
    turns = [len(run["actions"]) for run in runs][:count]
    return turns, [tokens(str(each)[:350]) for run in runs for each in run["observations"]]  # `observation_length`


def episodes_of(
    env: str, expected: Expected, count: int, limit: int, context: int, cut: float
) -> tuple[list[Episode], int]:
    """The episodes of a shard, and the number of tokens that all prompts begin with.

    Actions have the lengths of recorded ones of GPT-3.5, scaled to `expected.action_tokens`; a share `cut` has `limit`.
    The prompts' common beginning has what `expected.tokens` leaves. An episode that fills the context ends.
    """
    rng = np.random.default_rng(0)
    turns, seen = turns_of(env, expected, count, rng)
    runs = [run["turn_history"] for run in recorded("intercode/ic_sql_react_10_turns.json").values()]
    texts = [thought + action for run in runs for thought, action in zip(run["thoughts"], run["actions"], strict=False)]
    spread = np.array([tokens(text) for text in texts])
    lengths = np.clip(spread * expected.action_tokens / spread.mean(), 1, limit).astype(int)
    shared = max(0, round(expected.tokens - expected.turns * (expected.action_tokens + float(np.mean(seen)))))
    episodes = []
    for number, length in enumerate(turns):
        written = np.where(rng.random(length) < cut, limit, rng.choice(lengths, length))
        read = rng.choice(seen, length)
        fitting = shared + np.cumsum(read + written) - written + limit <= context
        kept = max(1, int(fitting.sum()))
        episodes.append(Episode(str(number), read[:kept].tolist(), written[:kept].tolist()))
    return episodes, shared


def simulate(env: str, machine: Machine, cut: float, shares: bool) -> list[Row]:
    """The four ways to play a shard of a rollout: a row for each, with its gain over the first."""
    suite = load_suite(ROOT / "configs/suites/paper.yaml")
    model, limit = suite.models["llama2-7b-chat"], suite.rollout.max_new_tokens
    expected, workers = suite.envs[env].expected, FORMER_WORKERS[env]
    assert expected
    count = -(-expected.explore // machine.shards.rollout)
    rows: list[Row] = []
    for held, alone in itertools.product((False, True), (False, True)):
        episodes, shared = episodes_of(env, expected, count, limit, model.context, cut)
        if not shares:
            for episode in episodes:
                episode.read = [episode.read[0] + shared, *episode.read[1:]]
            shared = 0
        capacity = int(CACHE_BYTES / TOKEN_BYTES) - shared
        final = np.array([sum(each.read) + sum(each.written) for each in episodes])
        engine = Engine(
            capacity, machine.vllm.max_num_seqs, machine.costs.reading * machine.costs.flops / 2 / PARAMETERS, shared
        )
        rollout = Rollout(engine, expected.turn_seconds, machine.stages["shard"].cpus)
        if alone:
            queue = AdmissionQueue[Episode](capacity - model.context if held else 10**9)
            seconds = rollout.on_their_own(episodes, workers, queue, limit)
        else:
            some = min(workers, int(capacity / final.mean())) if held else workers
            seconds = rollout.in_steps(episodes, some)
        rows.append(
            {
                "environment": env,
                "episodes": len(episodes),
                "held by the cache": held,
                "on their own": alone,
                "seconds": round(seconds),
                "gain": round(float(rows[0]["seconds"]) / seconds if rows else 1.0, 2),
                "prefill": round(engine.prefilled / sum(sum(each.read) for each in episodes), 1),
                "running": round(engine.running_total / engine.steps),
                "tokens": round(final.mean()) + shared,
                "turns": round(np.mean([len(each.read) for each in episodes]), 1),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cut", type=float, default=0.01, help="share of turns that end at max_new_tokens")
    parser.add_argument(
        "--unshared", action="store_true", help="the cache holds the common prompt once per conversation"
    )
    options = parser.parse_args()
    machine = load_machine("h100")
    rows = [row for env in FORMER_WORKERS for row in simulate(env, machine, options.cut, not options.unshared)]
    print(tabulate(rows, "keys"))


if __name__ == "__main__":
    main()
