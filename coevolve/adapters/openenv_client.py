"""Typed client of `coevolve.adapters.openenv_server` for OpenEnv 0.10.0; it needs the package `openenv` alone."""

from typing import Any

from openenv.core import EnvClient
from openenv.core.client_types import StepResult
from openenv.core.env_server import Action, Observation, State


class TurnAction(Action):
    """A policy's turn, as text."""

    text: str


class TextObservation(Observation):
    """What the environment answers. `truncated`: the step limit ended the episode."""

    text: str
    truncated: bool = False


class EpisodeState(State):
    """The running episode: its task, and `total`, the sum of its rewards. `version`: that of the server's package."""

    split: str = ""
    index: int = 0
    task_id: str = ""
    total: float = 0.0
    version: str = ""


class CoevolveClient(EnvClient[TurnAction, TextObservation, EpisodeState]):
    """A session: `reset(split="train", index=0)` starts a task, `step(TurnAction(text=...))` plays a turn."""

    def _step_payload(self, action: TurnAction) -> dict[str, Any]:
        return {"text": action.text}

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[TextObservation]:
        reward, done = payload.get("reward"), payload.get("done", False)
        observation = TextObservation(**payload["observation"], reward=reward, done=done)
        return StepResult(observation=observation, reward=reward, done=done)

    def _parse_state(self, payload: dict[str, Any]) -> EpisodeState:
        return EpisodeState(**payload)
