"""The wheel's own executor and checker, for comparisons. They evaluate text: only gold calls may be given to them."""

import copy
from collections.abc import Sequence
from typing import Any

from coevolve.envs.bfcl.scenarios import Scenario

#: The model's name in the executor's table of instances.
MODEL = "coevolve"


def execute(scenario: Scenario, calls: Sequence[str]) -> list[str]:
    """The outputs of `calls`; the instances go on from the scenario's previous call until `forget`."""
    outputs, _ = _executor().execute_multi_turn_func_call(
        func_call_list=list(calls),
        initial_config=copy.deepcopy(dict(scenario.state)),
        involved_classes=list(scenario.classes),
        model_name=MODEL,
        test_entry_id=scenario.name,
        long_context=scenario.long_context,
    )
    return list(outputs)


def is_valid(scenario: Scenario, turns: Sequence[Sequence[str]]) -> bool:
    """The official checker's verdict on the calls of each user turn."""
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

    entry = {
        "id": scenario.name,
        "initial_config": copy.deepcopy(dict(scenario.state)),
        "involved_classes": list(scenario.classes),
    }
    steps = [[[call] for call in turn] for turn in turns]
    gold = [list(turn.gold) for turn in scenario.turns]
    return bool(multi_turn_checker(steps, gold, entry, scenario.name.rsplit("_", 1)[0], MODEL)["valid"])


def forget() -> None:
    """Removes the instances that the executor keeps in its module's globals."""
    table: dict[str, Any] = vars(_executor())
    for name in [name for name in table if name.startswith(MODEL) and name.endswith("_instance")]:
        del table[name]


def _executor() -> Any:
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils

    return multi_turn_utils
