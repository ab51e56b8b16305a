"""The messages of verl-agent's protocol in a real episode, character by character, and how answers are read."""

import random
from pathlib import Path

import pytest
from builders import task
from envs.setups import QUIRKS, section, source, write
from envs.webshop import step_templates
from envs.webshop.cup import entry, goal_of, write_catalogue

from coevolve.envs.webshop.config import StepPrompt
from coevolve.envs.webshop.prepared_shop import PreparedShop
from coevolve.envs.webshop.shop import Shop
from coevolve.envs.webshop.step_prompts import StepPromptEnv, read_templates, tagged_action
from coevolve.envs.webshop.tagger import load_tagger
from coevolve.envs.webshop.task_env import WebShopTaskEnv
from coevolve.errors import UserError

FIRST = "\nShop: find a cup\nSee: 'Search'\nDo:\n[\n'search[<your query>]',\n'click[search]',\n]\n"
FOURTH = """
Shop: find a cup
3 taken, the last 2: [Observation 2: ''Back to Search' [SEP] 'Page 1 (Total results: 1)' [SEP] 'Next >' [SEP] \
'B000000001' [SEP] 'Walnut cup' [SEP] '$9.5'', Action 2: 'click[b000000001]']
[Observation 3: ''Back to Search' [SEP] '< Prev' [SEP] 'color' [SEP] 'red' [SEP] 'blue' [SEP] 'Walnut cup' [SEP] \
'Price: $9.5' [SEP] 'Rating: N.A.' [SEP] 'Description' [SEP] 'Features' [SEP] 'Reviews' [SEP] 'Buy Now'', \
Action 3: 'click[description]']
Step 4, see: 'Back to Search' [SEP] '< Prev' [SEP] 'A cup.'\nDo:\n[\n'click[back to search]',\n'click[< prev]',\n]
"""
SHORT = f"\nShop: find a cup\nSee: {FOURTH.partition('see: ')[2]}"
ITEM_ACTIONS = ("back to search", "< prev", "description", "features", "reviews", "buy now", "red", "blue")


def prompt_of(path, longest=13000):
    return StepPrompt(**source(path), first="FIRST", later="LATER", history=2, longest=longest)


@pytest.mark.parametrize(("longest", "fourth"), [(len(FOURTH), FOURTH), (len(FOURTH) - 1, SHORT)])
def test_steps_1_and_4_are_the_templates_with_the_task_two_steps_and_all_actions(tmp_path, longest, fourth):
    options = {"Color": [{"value": "Red"}, {"value": "Blue"}]}
    shop = Shop.build(write_catalogue(tmp_path, [entry(name="Walnut cup", customization_options=options)]), tmp_path)
    goal = goal_of(shop.product(0), options=("red",))
    stock = PreparedShop(shop, [goal], shop.prices(random.Random(0)), load_tagger("approximate"), "cups")
    config = section("webshop", "webshop-small", observation_length=None)
    prompt = prompt_of(Path(step_templates.__file__), longest)
    env = StepPromptEnv(WebShopTaskEnv(stock, config, QUIRKS["verl_agent"]), prompt, read_templates(prompt, "key"))
    for _ in range(2):  # no episode remembers the one before
        start = env.start(task("webshop/0", env="webshop", data={"goal": 0}))
        actions = ("search[walnut]", "click[b000000001]", "click[description]", "hm", "click[< prev]", "click[buy now]")
        steps = [env.step(action) for action in actions]
        _, item, described, unread, *_ = (step.observation for step in steps)
        assert (start, described) == (FIRST, fourth)
        assert item.split("\n[\n")[1] == "".join(f"'click[{text}]',\n" for text in ITEM_ACTIONS) + "]\n"
        assert "Action 4: 'hm']\nStep 5, see: 'Back to Search' [SEP] '< Prev' [SEP] 'A cup.'\n" in unread
        assert [step.done for step in steps] == [False] * 5 + [True] and 0 < steps[-1].reward < 1


@pytest.mark.parametrize(
    ("answer", "action"),
    [
        ("<think>so</think><action>click[Buy Now]</action>", "click[buy now]"),
        ("<THINK>so</THINK><ACTION> search[Red cup] </ACTION>", "search[red cup]"),
        ("<action>click[a]</action><action>click[b]</action>", "click[a]"),
        ("</action><action>click[a]", ""),
        ("<think>I will do</think> search[Red cup]", "ink> search[red cup]"),
        ("<action>click[buy now]", "ction>click[buy now]"),
    ],
)
def test_an_answer_is_read_as_verl_agents_projection_reads_it(answer, action):
    assert tagged_action(answer) == action


def test_a_file_without_the_templates_is_one_sentence_and_is_not_executed(tmp_path):
    trap = write(tmp_path / "trap.py", "raise SystemExit\nFIRST = 'a'\nLATER = FIRST\n")
    with pytest.raises(UserError, match=r"trap\.py: no text is assigned to `LATER`; correct `envs\.webshop\.prompt`"):
        read_templates(prompt_of(trap), "envs.webshop.prompt")
