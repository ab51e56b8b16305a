"""A checkout is driven in a process of its own; the one here has upstream's names but our shop behind them."""

import sys
from pathlib import Path

import pytest

from coevolve.envs.webshop.upstream import compare_checkout
from coevolve.errors import UserError

RECORDED = Path(__file__).parent / "recorded"
UTILS = f"""
DEFAULT_FILE_PATH = {str(RECORDED / "items_shuffle_1000.json")!r}
DEFAULT_ATTR_PATH = {str(RECORDED / "items_ins_v2_1000.json")!r}
HUMAN_ATTR_PATH = {str(RECORDED / "items_human_ins.json")!r}
"""
GOAL = """
from types import SimpleNamespace
def nlp(title):
    return [SimpleNamespace(text=word, pos_="NOUN" if word.isalpha() else "X") for word in title.split()]
"""
ENVIRONMENT = """
import json, random, tempfile
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from coevolve.envs.webshop.goals import draw_goals
from coevolve.envs.webshop.session import ShopSession
from coevolve.envs.webshop.shop import Shop
from coevolve.envs.webshop.tagger import Tagger
from web_agent_site.engine.goal import nlp
from web_agent_site.utils import DEFAULT_FILE_PATH

print("this goes to standard output, as upstream's progress does")

class WebAgentTextEnv:
    def __init__(self, observation_mode, human_goals, num_products):
        with tempfile.TemporaryDirectory() as aside:
            self.shop = Shop.build(Path(DEFAULT_FILE_PATH).parent, Path(aside) / "shop", num_products)
        self.prices = self.shop.prices(random)
        self.goals = draw_goals(self.shop, self.prices, random, human_goals)
        random.choices("ab", k=10)
        random.random()
        self.tagger = Tagger("", "", True, lambda title: [t.text.lower() for t in nlp(title) if t.pos_ == "NOUN"])
        named = [asdict(goal) for goal in self.goals]
        for goal in named:
            goal["instruction_text"], goal["goal_options"] = goal.pop("instruction"), goal.pop("options")
        prices = {self.shop.product(number).asin: price for number, price in enumerate(self.prices)}
        self.server = SimpleNamespace(product_prices=prices, goals=named, user_sessions={})

    def reset(self, number):
        self.session = str(number)
        self.episode = ShopSession(self.shop, self.prices, self.tagger, self.goals[number], random)
        return self.episode.page.text, None

    def step(self, action):
        PLANTED
        outcome = self.episode.step(action)
        self.server.user_sessions[self.session] = {"verbose_info": outcome.details}
        return outcome.page.text, outcome.reward, outcome.done, None

    def get_available_actions(self):
        return {"clickables": list(self.episode.page.clickables)}
"""


def checkout(folder: Path, fault: str = "pass") -> Path:
    texts = {
        "__init__.py": "",
        "utils.py": UTILS,
        "engine/__init__.py": "",
        "engine/engine.py": "from builtins import print",
        "engine/goal.py": GOAL,
        "envs/__init__.py": "",
        "envs/web_agent_text_env.py": ENVIRONMENT.replace("PLANTED", fault),
    }
    for name, text in texts.items():
        path = folder / "web_agent_site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize("human", [True, False])
def test_a_checkout_that_answers_alike(tmp_path: Path, human: bool):
    report = compare_checkout(checkout(tmp_path), Path(sys.executable), episodes=6, seed=3, human=human)
    assert report.agrees, report.text()
    assert report.compared["prices"] == 60
    assert report.compared["observations"] > 60
    assert report.compared["details"] > 0


@pytest.mark.parametrize(
    ("fault", "where", "page"),
    [
        ("action = action.replace('click[next >]', 'click[back to search]')", "action 'click[next >]'", "Page 2"),
        ("assert not action.startswith('search[')", "", "Page 1"),  # a server that fails must change nothing
    ],
)
def test_the_first_difference_is_told(tmp_path: Path, fault: str, where: str, page: str):
    report = compare_checkout(checkout(tmp_path, fault), Path(sys.executable), episodes=6, seed=3)
    assert report.first and report.first.what == "observations"
    assert where in report.first.where
    assert str(report.first.upstream).startswith("WebShop [SEP]")
    assert page in str(report.first.ours)


def test_a_checkout_that_does_not_run_or_stops_is_told(tmp_path: Path):
    (tmp_path / "web_agent_site").mkdir()
    with pytest.raises(UserError, match=r"WebShop stopped \(ModuleNotFoundError: .*check that it runs there"):
        compare_checkout(tmp_path, Path(sys.executable))
    with pytest.raises(UserError, match="correct the two paths"):
        compare_checkout(tmp_path, tmp_path / "no-python")
    with pytest.raises(UserError, match=r"WebShop stopped \(out of memory\)"):
        compare_checkout(checkout(tmp_path, "raise SystemExit('out of memory')"), Path(sys.executable))
