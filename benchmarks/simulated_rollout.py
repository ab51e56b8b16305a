"""Simulated seconds of a rollout at the paper's size, in steps and with episodes that advance on their own.

Neither a GPU nor a model is used. An engine and environments take the time that the constants below and the configs
imply; conversations are admitted by the class that the engine `vllm` uses. Its assumptions stand above the tables.

    python benchmarks/simulated_rollout.py > benchmarks/simulated_rollout.md
"""

from __future__ import annotations

import heapq
import itertools
import json
import lzma
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from coevolve.config.loading import load_suite
from coevolve.envs.section import Expected
from coevolve.policies.vllm import AdmissionQueue

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "tests" / "data"
#: Llama-2-7B in bfloat16: parameters, and bytes of keys and values of a token (32 layers of 2 x 4,096 numbers).
PARAMETERS, TOKEN_BYTES = 6.74e9, 32 * 2 * 4096 * 2
CACHE_BYTES = 58e9  # choice: 80 GB x 0.9 less 13.5 GB of weights and half a GB of activations
BANDWIDTH = 0.6 * 3.35e12  # choice: 0.6 of the data sheet's bytes per second
PREFILL_RATE = 0.4 * 9.89e14 / 2 / PARAMETERS  # choice: tokens a second, at 0.4 of the data sheet's operations
STEP_TOKENS = 8192  # choice: vLLM's max_num_batched_tokens
SHARDS, SERVERS, MOST = 4, 8, 256  # choice: jobs of a rollout; processor cores of one; vLLM's max_num_seqs
CHARACTERS = 3.5  # choice: characters of these texts in a token
CUT = 0.01  # choice: the share of turns that end at max_new_tokens
#: Whether the cache limits the episodes at once, and whether they advance on their own.
WAYS = ((False, False), (True, False), (False, True), (True, True))
#: Environments as the configs had them before the cache limited the episodes in flight.
WORKERS = {"sciworld": 128, "webshop": 512, "intercode_sql": 256}
SIZES = (32, 64, 128, 256, 512)
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

    @property
    def final(self) -> int:
        """Tokens at the end."""
        return sum(self.read) + sum(self.written)


@dataclass
class Engine:
    """Continuous batching with prefix caching: the least recently used idle conversation is evicted first.

    It has room for `capacity` tokens; `shared` others begin all prompts. A step decodes a token of each running
    conversation that is prefilled, and prefills others with what is left of STEP_TOKENS. Its time is that of reading
    weights, keys and values, and of the operations of prefilled tokens.
    """

    capacity: int
    shared: int
    waiting: deque[Episode] = field(default_factory=deque)
    running: list[Episode] = field(default_factory=list)
    idle: dict[Episode, None] = field(default_factory=dict)
    prefilled: int = 0
    running_total: int = 0
    steps: int = 0

    def step(self) -> tuple[float, list[Episode]]:
        """Seconds of a step, and the episodes whose turn ended with it."""
        while self.waiting and len(self.running) < MOST and self._make_room(self.waiting[0].tokens + 1):
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
        return read / BANDWIDTH + prefilled / PREFILL_RATE, ended

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
    """A rollout in simulated time: SERVERS processes step environments, in `turn_seconds` each."""

    engine: Engine
    turn_seconds: float
    now: float = 0.0
    stepping: list[tuple[float, int, Episode]] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self._free = [0.0] * SERVERS

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
    env: str, expected: Expected, count: int, limit: int, context: int, *, shares: bool
) -> tuple[list[Episode], int]:
    """The episodes of a shard, and the number of tokens of the prompts' beginning that the cache holds once.

    `shares`: whether it holds any once. An episode that fills the context ends.
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
        written = np.where(rng.random(length) < CUT, limit, rng.choice(lengths, length))
        read = rng.choice(seen, length)
        fitting = shared + np.cumsum(read + written) - written + limit <= context
        kept = max(1, int(fitting.sum()))
        read[0] += 0 if shares else shared
        episodes.append(Episode(str(number), read[:kept].tolist(), written[:kept].tolist()))
    return episodes, shared if shares else 0


def simulate(
    env: str, *, shares: bool, workers: int | None = None, ways: Sequence[tuple[bool, bool]] = WAYS
) -> list[Row]:
    """A shard of a rollout, a row for each of the `ways` to play it, with its gain over the first."""
    workers = workers or WORKERS[env]
    suite = load_suite(ROOT / "configs/suites/paper.yaml")
    context, limit = suite.models["llama2-7b-chat"].context, suite.rollout.max_new_tokens
    expected, rows = suite.envs[env].expected, list[Row]()
    assert expected
    count = -(-expected.explore // SHARDS)
    for held, alone in ways:
        episodes, shared = episodes_of(env, expected, count, limit, context, shares=shares)
        capacity, final = int(CACHE_BYTES / TOKEN_BYTES) - shared, np.mean([each.final for each in episodes])
        engine = Engine(capacity, shared)
        rollout = Rollout(engine, expected.turn_seconds)
        if alone:
            queue = AdmissionQueue[Episode](capacity if held else sys.maxsize)
            seconds = rollout.on_their_own(episodes, workers, queue, limit)
        else:
            seconds = rollout.in_steps(episodes, min(workers, int(capacity / final)) if held else workers)
        rows.append(
            {
                "environment": env,
                "episodes": len(episodes),
                "turns": round(np.mean([len(each.read) for each in episodes]), 1),
                "tokens": round(final) + shared,
                "advance": "on their own" if alone else "in steps",
                "at once": "what the cache holds" if held else f"{workers} workers",
                "seconds": round(seconds),
                "gain": round((rows[0]["seconds"] if rows else seconds) / seconds, 1),
                "prefill": round(engine.prefilled / sum(sum(each.read) for each in episodes), 1),
                "decoded": round(engine.running_total / engine.steps),
            }
        )
    return rows


def page() -> str:
    """The assumptions and the tables, in Markdown."""
    tables = [
        tabulate([row for env in WORKERS for row in simulate(env, shares=shares)], "keys", "github")
        for shares in (True, False)
    ]
    sizes = [
        {"environment": env}
        | {f"{n} workers": simulate(env, shares=True, workers=n, ways=WAYS[-1:])[0]["seconds"] for n in SIZES}
        for env in WORKERS
    ]
    assumptions = [
        f"One of {SHARDS} shards of a rollout of the suite `paper`, with Llama-2-7B in bfloat16 on an H100.",
        f"A step of the engine reads the weights ({2 * PARAMETERS / 1e9:.1f} GB) and the keys and values of the "
        f"conversations that it decodes, at most {MOST}, at {BANDWIDTH / 1e12:.2f} TB/s.",
        f"It prefills up to {STEP_TOKENS:,} tokens, {PREFILL_RATE:,.0f} a second.",
        f"A cache of {CACHE_BYTES / 1e9:.0f} GB holds {CACHE_BYTES / TOKEN_BYTES:,.0f} tokens. The least recently used "
        "conversation is evicted first.",
        f"{SERVERS} environments step at a time, in `expected.turn_seconds` each.",
        "Turns: ScienceWorld uniform up to ETO's limit of the task type, WebShop uniform with the mean of "
        "`expected.turns`, SQL those of GPT-3.5's recorded runs.",
        "Observations have recorded lengths; actions those of GPT-3.5's recorded ones, scaled to "
        f"`expected.action_tokens`, and {CUT:.0%} end at `max_new_tokens`. {CHARACTERS} characters are a token.",
        "The prompts' common beginning (instruction and few-shot example) has what `expected.tokens` leaves.",
        "In steps: two groups take turns, and each waits for its longest completion.",
        "What the cache holds: in steps, as many episodes as fit at their mean final length; on their own, those that "
        "`coevolve.policies.vllm` admits.",
    ]
    lines = "\n".join(f"* {each}" for each in assumptions)
    return f"""# A rollout at the paper's size, simulated

`python benchmarks/simulated_rollout.py` printed this page. Nothing here was measured. Assumptions:

{lines}

`prefill`: the tokens that were prefilled, as a multiple of those that each had to be once. `decoded`: conversations in
a step of the engine. `gain`: against the first line of the environment.

The cache holds the common beginning of prompts once, as vLLM's does:

{tables[0]}

Each conversation holds its own:

{tables[1]}

Seconds by the number of environments, on their own, what the cache holds, its common beginning once:

{tabulate(sizes, "keys", "github")}
"""


if __name__ == "__main__":
    print(page(), end="")
