"""BFCL v3 multi-turn as an environment of the kit."""

from typing import Any

from coevolve.chat.prompts import parse_action, stated, write_action
from coevolve.envs.base import OVER, EnvError, StepResult
from coevolve.envs.bfcl import calls, observations, tools
from coevolve.envs.bfcl.config import BfclConfig
from coevolve.envs.bfcl.scenarios import VERSION, Scenario, UserTurn
from coevolve.envs.bfcl.simulators import Simulators
from coevolve.envs.bfcl.tasks import scenario_of
from coevolve.records.episodes import Task
from coevolve.settings.protocol import ActionLabel

#: The call that ends the user's turn.
END_TURN = "end_turn()"
#: The most calls of one message that are executed.
MAX_CALLS = 32
FORMATS = {
    "python": "Write `Thought: ...` and then, on a line of its own, `Action: ` and one call with literal arguments.",
    "json": 'Write each call as <tool_call>{"name": "...", "arguments": {...}}</tool_call>.',
}
#: A message without a call, which ends the user's turn under the rule `ends_turn`.
DONE = "That is all I can do."
NO_CALL = "Error: I found no call in that. "
LAST = "The user has no further request."


def instruction(config: BfclConfig) -> str:
    """The message before the task."""
    ending = (
        f"Call `{END_TURN}` when the user's request is done, or cannot be done with these tools and this information."
        if config.rules.malformed == "answered"
        else "Answer without a call when the request is done, or cannot be done with these tools and this information."
    )
    return f"You fulfil a user's requests by calling tools. {FORMATS[config.rules.calls]} {ending}"


def write_call(config: BfclConfig, scenario: Scenario, call: str) -> str:
    """A message of the policy with one call, in the configured format."""
    if config.rules.calls == "python":
        return write_action(call)
    parsed = calls.parse_call(call)
    return calls.write_tool_call(parsed, tools.parameters(scenario, parsed.name))


def write_end(config: BfclConfig, scenario: Scenario) -> str:
    """A message of the policy that ends the user's turn."""
    return write_call(config, scenario, END_TURN) if config.rules.malformed == "answered" else DONE


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


class Bfcl:
    """One episode at a time. Implements `coevolve.envs.base.Env`.

    `score` is the prefix reward; `reward` is the same or, with the rule `binary`, 1 after a success, else 0. Nothing
    earns a reward in an open task, which has no gold calls.
    """

    #: A message of several calls, each of which has its own limit.
    action_limit = 8 * calls.MAX_CHARACTERS

    def __init__(self, config: BfclConfig, action_label: ActionLabel = "first") -> None:
        self._config, self._rules, self._action_label = config, config.rules, action_label
        rules = ", ".join((config.rules.calls, config.rules.malformed, config.rules.empty_turns, config.rules.reward))
        self.identity = f"BFCL v3 multi-turn, bfcl-eval {VERSION}, {rules}"
        self._episode: Episode | None = None

    def parse(self, text: str) -> str | None:
        """The calls in `text`, one per line; None if there is none (with the rule `ends_turn`: none that parses)."""
        if self._rules.calls == "json":
            return "\n".join(calls.tool_calls(text)) or None
        action = parse_action(stated(text, self._action_label))
        if action is not None and self._rules.malformed == "ends_turn":
            try:
                calls.parse_call(action)
            except calls.CallError:
                return None
        return action

    def start(self, task: Task) -> str:
        """The tools and the user's first message; raises `UserError` for a task of no scenario."""
        scenario = scenario_of(task)
        self._episode = Episode(scenario, skip_empty=self._rules.empty_turns == "skipped")
        at_start = [name for name in scenario.documents if name not in scenario.late_tools]
        offered = tools.tool_lines(scenario, at_start, self._config.tools)
        return f"Tools:\n{offered}\n\n{self._user_message(self._episode)}"

    def step(self, action: str | None) -> StepResult:
        """The outputs of the calls in `action`, or the user's next message."""
        episode = self._episode
        if episode is None:
            raise EnvError("no episode is running; call start")
        if episode.current is None:
            return self._result(episode, OVER)
        if action is None and self._rules.malformed == "answered":
            return self._result(episode, NO_CALL + FORMATS[self._rules.calls])
        lines = [END_TURN] if action is None else action.split("\n")[:MAX_CALLS]
        outputs = []
        for line in lines:
            if line.strip() == END_TURN:
                episode.end_turn()
                outputs.append(self._user_message(episode))
                break
            outputs.append(observations.written(episode.call(line), self._config.tools == "hermes"))
        return self._result(episode, "\n".join(outputs))

    def step_limit(self, task: Task) -> int:
        """The configured limit, the same for all tasks."""
        return self._config.step_limit

    def close(self) -> None:
        """Drops the episode's instances."""
        self._episode = None

    def _user_message(self, episode: Episode) -> str:
        if (turn := episode.current) is None:
            return LAST
        new = tools.tool_lines(episode.scenario, turn.new_tools, self._config.tools)
        offer = f"More tools are available now:\n{new}" if new else ""
        return "User: " + "\n".join(part for part in (turn.message, offer) if part)

    def _result(self, episode: Episode, observation: str) -> StepResult:
        score = episode.prefix_reward
        reward = float(score == 1.0) if self._rules.reward == "binary" else score
        return StepResult(observation, reward=reward, score=score, done=episode.current is None)
