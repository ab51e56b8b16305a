"""A small deterministic text environment: a corridor of rooms, a key in one of them, a locked door at its end."""

import contextlib
import os
import signal
import struct
import sys
import time

from coevolve.chat.prompts import parse_action, write_action
from coevolve.envs.base import EnvError, StepResult
from coevolve.errors import UserError
from coevolve.policies.base import ScriptedPolicy
from coevolve.records.episodes import Task

ROOMS = 4


def task(number):
    return Task(env="keydoor", task_id=f"door{number}", split="train", data={"key": number % ROOMS, "broken": 0})


def tasks(count):
    return [task(number) for number in range(count)]


def gold(number):
    """What opens the door of task `number`."""
    walk = ["go right"] * (number % ROOMS)
    rest = ["go right"] * (ROOMS - 1 - number % ROOMS)
    return [write_action(action, "on I go") for action in [*walk, "take key", *rest, "open door"]]


def recorded(texts, name="recorded"):
    """A policy that acts with `texts[task id]`, one text per turn, in every episode of that task."""

    def script(conversation):
        task_id, _, _ = conversation.key.rpartition("#")
        remaining = texts[task_id][len(conversation.turns) :]
        return remaining[0] if remaining else None

    return ScriptedPolicy(script, name)


class KeyDoor:
    """Reward 0.5 for the key, 1 for the open door. The first `broken` episodes of a task fail once the key is taken."""

    def __init__(self, delay=0.0):
        self._delay = delay
        self._broken = {}
        self.started = []
        self._room = self._key = 0
        self._reward = 0.0

    identity = "KeyDoor 1"

    def parse(self, text):
        return parse_action(text)

    def start(self, task):
        self.started.append(task.task_id)
        self._left = self._broken.setdefault(task.task_id, task.data["broken"])
        self._broken[task.task_id] = max(0, self._left - 1)
        self._room, self._key, self._reward = 0, task.data["key"], 0.0
        return f"Find the key, then open the door at the end of the corridor.\n{self._look()}"

    def step(self, action):
        time.sleep(self._delay)
        if self._left and self._reward:
            raise EnvError("the corridor caved in")
        answer = self._do(action or "")
        return StepResult(observation=answer, reward=self._reward, score=10 * self._reward, done=self._reward == 1.0)

    def step_limit(self, task):
        return ROOMS + 3

    def close(self):
        pass

    def _do(self, action):
        if action in ("go left", "go right"):
            self._room = min(ROOMS - 1, max(0, self._room + (1 if action == "go right" else -1)))
        elif action == "take key" and self._room == self._key:
            self._reward = max(self._reward, 0.5)
            return "You have the key."
        elif action == "open door" and self._room == ROOMS - 1 and self._reward > 0:
            self._reward = 1.0
            return "The door is open."
        elif action:
            return "That does not work here."
        else:
            return "Say what to do."
        return self._look()

    def _look(self):
        key = " A key lies here." if self._room == self._key and not self._reward else ""
        return f"You are in room {self._room}.{key}"


@contextlib.contextmanager
def pool(n):
    """`n` such environments."""
    yield [KeyDoor() for _ in range(n)]


class TrapDoor(KeyDoor):
    """The same environment with actions that harm its process."""

    def step(self, action):
        if action == "look around":
            return StepResult(f"{os.getpid()} {'torch' in sys.modules}", reward=0.0, score=0.0, done=False)
        if action == "swear":
            raise UserError("mind your words.")
        if action == "divide":
            return 1 // 0
        if action == "jump":
            os.kill(os.getpid(), signal.SIGKILL)
        if action == "sleep":
            os.write(sys.stdout.fileno(), b"asleep\n")
            time.sleep(3600)
        return super().step(action)


@contextlib.contextmanager
def trapdoors(n, slow=0.0):
    """`n` environments that are open after `slow` seconds."""
    if slow:
        os.write(sys.stdout.fileno(), b"opening\n")
    time.sleep(slow)
    yield [TrapDoor() for _ in range(n)]


@contextlib.contextmanager
def walled_up(n):
    """An environment that cannot start."""
    raise UserError("the corridor is walled up.")
    yield


@contextlib.contextmanager
def collapsing(n, log):
    """`n` environments; the second and the third time they fail to open. `log` has a line for each time."""
    with log.open("a") as file:
        file.write("opening\n")
    if len(log.read_text().splitlines()) in (2, 3):
        raise EnvError("the corridor collapsed")
    with trapdoors(n) as envs:
        yield envs


class HalfSaid(KeyDoor):
    """Its process is killed while it answers."""

    def start(self, task):
        os.write(int(sys.argv[1]), struct.pack("!i", 1000) + b"a beginning")
        os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def half_said(n):
    """`n` environments of that kind, as a worker process opens them."""
    yield [HalfSaid() for _ in range(n)]
