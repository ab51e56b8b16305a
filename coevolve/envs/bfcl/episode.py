"""One conversation: the user's turns, the calls that answer them, and which turns are correct."""

from typing import Any

from coevolve.envs.bfcl.scenarios import Scenario, UserTurn
from coevolve.envs.bfcl.simulators import Simulators


class Episode:
    """Counts the user's turns that are correct before the first error, under the official checker's rules.

    A turn with gold calls is correct if it has a call, all public attributes of the APIs equal those after the gold
    calls, and the outputs of its gold calls are among the outputs of the episode. A turn without gold calls is always
    correct and counts neither way. With `skip_empty`, a turn without a call is an error.
    """

    def __init__(self, scenario: Scenario, skip_empty: bool) -> None:
        self.scenario, self._skip_empty = scenario, skip_empty
        self._policy, self._gold = Simulators(scenario), Simulators(scenario)
        self._outputs: list[str] = []
        self._calls_in_turn = 0
        self._ended_turns = 0
        self._correct = 0
        self._failed = False

    @property
    def current(self) -> UserTurn | None:
        """The user's turn that is being answered, None after the last one."""
        turns = self.scenario.turns
        return turns[self._ended_turns] if self._ended_turns < len(turns) else None

    @property
    def prefix_reward(self) -> float:
        """The share of the turns with gold calls that are correct before the first error; 1 only after a success.

        0 if no turn has gold calls.
        """
        total = sum(bool(turn.gold) for turn in self.scenario.turns)
        return 1.0 if self.success and total else min(self._correct, max(0, total - 1)) / max(1, total)

    @property
    def success(self) -> bool:
        """Whether all turns are ended and correct: the official score."""
        return self.current is None and not self._failed

    def call(self, text: str) -> str:
        """The output of a call in the current turn."""
        self._calls_in_turn += 1
        self._outputs.append(self._policy.execute(text))
        return self._outputs[-1]

    def end_turn(self) -> None:
        """Grades the current turn and goes on to the next one."""
        turn = self.scenario.turns[self._ended_turns]
        if not self._failed:
            expected = [self._gold.execute(call) for call in turn.gold]
            empty = not self._calls_in_turn
            self._failed = empty and (self._skip_empty or bool(turn.gold))
            self._failed = self._failed or bool(turn.gold and not self._agrees(expected))
            self._correct += bool(turn.gold) and not self._failed
        self._calls_in_turn = 0
        self._ended_turns += 1

    def _agrees(self, expected: list[str]) -> bool:
        """The wheel's own comparison of states and outputs."""
        from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_checker as official

        policy: Any = self._policy.instances
        try:
            same_state = official.state_checker(policy, self._gold.instances)["valid"]
            return bool(same_state and official.response_checker(self._outputs, expected, self._ended_turns)["valid"])
        except (RecursionError, AttributeError, TypeError, ValueError):
            return False  # a state that cannot be compared, such as a folder that contains itself, is not the gold one
