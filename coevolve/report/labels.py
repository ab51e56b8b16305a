"""Labels of keys in texts and tables: of methods, environments, pair kinds, stop reasons and others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from coevolve.config.suite import Suite
from coevolve.records.episodes import StopReason
from coevolve.records.pairs import PairKind

#: Results that methods share, in their order, and the experts.
SHARED = {
    "base/pretrained": "Pre-training, shared",
    "pretrained": "Pre-training",
    "untrained": "Random weights",
    "base": "SFT, shared",
    "experts": "Experts",
}
STOPS = {
    StopReason.DONE: "ended by the environment",
    StopReason.STEP_LIMIT: "step limit",
    StopReason.CONTEXT: "context full",
    StopReason.CONTENT_FILTER: "refused by a content filter",
    StopReason.ENV_ERROR: "environment error",
}


@dataclass(frozen=True)
class ReportLabels:
    """Labels of methods and environments by key; `methods` gives the order and the colours."""

    methods: Mapping[str, str]
    envs: Mapping[str, str]

    @classmethod
    def of(cls, suite: Suite, methods: Mapping[str, str] | None = None) -> ReportLabels:
        """The labels in a suite, or in the sections of it that a stage reads; `methods`: by default the suite's."""
        labels = {method: suite.recipes[method].label for method in suite.methods} if methods is None else methods
        return cls(labels, {env: section.label for env, section in suite.envs.items()})

    def colour(self, method: str) -> int:
        """The number of a method's colour."""
        return list(self.methods).index(method) if method in self.methods else len(self.methods)

    def order(self, method: str, agent: str, iteration: int = 0) -> tuple[int, str, int]:
        """Sort key: shared results, then methods in the suite's order; target before failure agent; iteration."""
        return [*SHARED, *self.methods, method].index(method), {"target": ""}.get(agent, agent), iteration

    def method(self, name: str) -> str:
        """The label of a method, or of results that methods share."""
        return self.methods.get(name, SHARED.get(name, name))

    def env(self, name: str) -> str:
        """The label of an environment."""
        return self.envs.get(name, name)

    def split(self, env: str, split: str) -> str:
        """The label of an environment and one of its splits; `test` is the only split where it occurs."""
        return self.env(env) if split == "test" else f"{self.env(env)} {split}"

    def in_text(self, text: str) -> str:
        """The text with the keys of methods and environments as labels."""
        return with_labels(text, {**self.methods, **self.envs})

    def words(self) -> dict[str, str]:
        """Labels of all keys that stand in tables: methods, environments and pair kinds."""
        return {**self.methods, **self.envs, **{kind.value: kind_label(kind) for kind in PairKind}}


def with_labels(text: str, labels: Mapping[str, str]) -> str:
    """The text with its words that are keys of `labels` as labels."""
    return re.sub(r"\w+", lambda match: labels.get(match[0], match[0]), text)


def kind_label(kind: str) -> str:
    """A pair kind in words: whose trajectory is chosen over whose."""
    chosen, rejected = kind.split("_")
    return f"{chosen} over {rejected}"


def words(key: str) -> str:
    """A key as words: `not a failure` for `not_a_failure`."""
    return key.replace("_", " ")
