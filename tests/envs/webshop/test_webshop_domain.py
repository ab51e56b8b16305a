"""What the stages meet: a prepared shop, tasks, episodes under both protocols, and a manifest that freezes them."""

import itertools
import pickle
import random
import statistics
from dataclasses import replace

import builders
import pytest
from envs.setups import QUIRKS, eto_item, prepared, section, source, write

from coevolve.envs.base import FORMAT_ERROR, OVER, EnvError, Setup
from coevolve.envs.replay import replay_all
from coevolve.envs.webshop import domain, prepared_shop
from coevolve.envs.webshop.catalogue import FILE_NAMES
from coevolve.envs.webshop.catalogue_generator import generate
from coevolve.envs.webshop.config import WebShopConfig
from coevolve.envs.webshop.goals import FrozenGoal, draw_prices_and_goals
from coevolve.envs.webshop.page_rewards import best_reward, expected_reward
from coevolve.envs.webshop.prepared_shop import PreparedShop
from coevolve.envs.webshop.reward import reward
from coevolve.envs.webshop.session import page_of
from coevolve.errors import UserError
from coevolve.records.pairs import DropReason
from coevolve.storage import files, jsonl


@pytest.fixture(scope="module")
def config():
    return section("webshop", "webshop-small", tasks={"sft": 30})  # a shop of any seed has more goals in some category


@pytest.fixture(scope="module")
def fixed(config, tmp_path_factory):
    """The small shop under protocol `fixed`."""
    return prepared(config, tmp_path_factory.mktemp("prepared"))


@pytest.fixture(scope="module")
def paper(fixed):
    """The same shop under protocol `paper`."""
    return Setup(fixed.config, fixed.key, "paper", QUIRKS["paper"], fixed.prepared)


def task(number):
    return builders.task(f"webshop/{number}", env="webshop", data={"goal": number})


def changed(config, **changes):
    return WebShopConfig.model_validate({**config.model_dump(), "workers": config.workers, **changes})


def played(env, number, *actions):
    """Everything an episode shows."""
    return [env.start(task(number)), *(env.step(action).observation for action in actions)]


def test_what_is_prepared_freezes_goals_and_prices_and_is_the_same_for_a_seed(fixed, tmp_path):
    meta = prepared_shop.read_meta(fixed.prepared)
    frozen = jsonl.read(fixed.prepared / "goals.jsonl", FrozenGoal)
    assert (meta.products, meta.goals) == (fixed.config.catalogue.generated, len(frozen))
    assert meta.manifest == files.sha256(fixed.prepared / "goals.jsonl")
    assert meta.shop == files.sha256(fixed.prepared / "shop/meta.json")
    assert meta.tagger == ("approximate", "1")
    assert meta.overlap == meta.duplicates == ()
    stock = PreparedShop.open(fixed.prepared, fixed.config, None)
    drawn = draw_prices_and_goals(stock.shop, random.Random(fixed.config.seed), fixed.config.goals == "human")
    assert [one.goal for one in frozen] == list(stock.goals) == drawn[1]
    assert [one.price for one in frozen] == [stock.prices[stock.shop.number(one.goal.asin)] for one in frozen]
    for name in ("again", "other"):
        (tmp_path / name).mkdir()
    again = prepared_shop.prepare(fixed.config, fixed.key, tmp_path / "again")
    other = prepared_shop.prepare(changed(fixed.config, seed=8), fixed.key, tmp_path / "other")
    assert again.model_copy(update={"shop": meta.shop}) == meta
    assert other.catalogue != meta.catalogue
    assert other.manifest != meta.manifest


def test_a_catalogue_of_files_is_checked_and_used(fixed, tmp_path):
    """Also the lists of ETO, for which the shop is far too small."""
    generate(tmp_path / "files", 30, seed=1)
    sources = {name: source(tmp_path / "files" / file) for name, file in FILE_NAMES.items()}
    selection = {**fixed.config.tasks.model_dump(), "lists": "eto", "test": None}
    config = changed(fixed.config, catalogue={**sources, "limit": 25}, tasks=selection)
    with pytest.raises(UserError, match="ETO's lists reach goal 12080"):
        prepared_shop.prepare(config, "envs.webshop", tmp_path)
    sources["products"]["sha256"] = "0" * 64
    with pytest.raises(UserError, match=r"`envs\.webshop\.catalogue\.products\.sha256` is 0000"):
        prepared_shop.prepare(changed(config, catalogue=sources), "envs.webshop", tmp_path)


def test_tasks_are_disjoint_and_have_experts_of_all_rewards(fixed):
    selection = domain.select(fixed)
    training = {task.task_id for task in selection.training}
    assert not training & {task.task_id for task in selection.evaluate}
    assert selection.drops == ()
    found = domain.experts(fixed, selection.training)
    rewards = [trajectory.reward for trajectory in found.trajectories]
    assert len(rewards) > 0.6 * len(training) and max(rewards) == 1.0
    every = changed(fixed.config, experts={"format": "scripted", "min_reward": 0.0})
    unfiltered = replace(fixed, config=every)
    played_all = domain.experts(unfiltered, selection.training).trajectories
    assert [expert.task.task_id for expert in played_all] == [task.task_id for task in selection.training]
    assert len({expert.reward for expert in played_all}) > 3
    assert list(found.trajectories) == [expert for expert in played_all if expert.reward >= 0.5]
    low = {drop.ids[0] for drop in found.drops if drop.reason is DropReason.LOW_REWARD}
    assert low == {expert.digest() for expert in played_all if expert.reward < 0.5} != set()
    assert found == domain.experts(fixed, selection.training)


def test_an_expert_can_be_played_again_also_after_the_environment_was_closed(fixed):
    found = domain.experts(fixed, domain.select(fixed).sft[:20])
    with domain.pool(fixed, 1) as (env,):
        assert len(found.trajectories) > 5 and replay_all(env, found.trajectories).different == 0
        env.start(task(0))
        env.close()
        with pytest.raises(EnvError):
            env.step("search[cup]")
        assert replay_all(env, found.trajectories[:1]).different == 0


def test_etos_file_is_read_in_the_form_of_episodes(fixed, tmp_path):
    said = ["rules", "OK", "WebShop [SEP] ...", "Thought: a\nAction: search[cup]", "Observation: Instruction: [SEP] a"]
    said += ["Action: click[b01]", "Observation:\nInstruction: [SEP] b", "Action: click[buy now]"]
    content = [eto_item(number, *said, reward=0.8) for number in (45, 7, 45)]
    file = source(write(tmp_path / "webshop_sft.json", content))
    setup = replace(fixed, config=changed(fixed.config, experts={"format": "eto", "file": file, "min_reward": 0.5}))
    found = domain.experts(setup, [task(45)])
    (expert,) = found.trajectories
    assert (expert.task, expert.reward) == (task(45), 0.8)
    assert [turn.action for turn in expert.turns] == ["search[cup]", "click[b01]", "click[buy now]"]
    shown = [turn.observation for turn in expert.turns]
    assert shown == ["Observation:\nInstruction: [SEP] a", "Observation:\nInstruction: [SEP] b", ""]
    assert [drop.reason for drop in found.drops] == [DropReason.NOT_IN_SPLIT, DropReason.DUPLICATE]


def test_an_episode_shows_pages_as_etos_wrapper_does(fixed):
    with domain.pool(fixed, 1) as (env,):
        start, results, unchanged, wrong = played(env, 3, "search[dry]", "think[hm]", None)
        assert start.startswith("WebShop [SEP] Instruction: [SEP] ")
        assert results.startswith("Observation:\nInstruction: [SEP] ")
        assert len(results.removeprefix("Observation:\n")) == fixed.config.observation_length + len("...")
        assert unchanged == results
        assert wrong == f"Observation:\n{FORMAT_ERROR}"
        assert env.step("click[no such thing]").observation == results


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("Thought: a\nAction: click[b]", "click[b]"),
        ("  Action: search[a b]  ", "search[a b]"),
        ("Action: click[a]\nAction: click[b]", "click[a]\nAction: click[b]"),
        ("Action:click[a]", None),
        ("Action: ", None),
        ("click[a]", None),
    ],
)
def test_actions_are_parsed_as_etos_wrapper_does(fixed, paper, text, action):
    """Under `fixed` the last of two labels counts."""
    with domain.pool(paper, 1) as (env,), domain.pool(fixed, 1) as (corrected,):
        assert env.parse(text) == action
        assert corrected.parse(text) == (action and action.split("Action: ")[-1])


def bought(env, stock, number):
    """Rewards on the way to buying the very product asked for, without its options."""
    goal = stock.goals[number]
    env.start(task(number))
    steps = (f"search[{goal.name}]", f"click[{goal.asin}]", None, "click[description]", "click[< prev]")
    return tuple(env.step(action).reward for action in (*steps, "click[buy now]", "click[buy now]"))


def on_first_page(stock, number):
    """Whether a search for the very product asked for lists it on the first page of results, and it can be bought."""
    goal = stock.goals[number]
    product = stock.shop.number(goal.asin)
    listed = page_of(stock.shop.search(goal.name.lower().split(" "), random.Random(0)), 1)
    return product in listed and bool(all_choices(stock.shop.product(product)))


def all_choices(product):
    """Every choice of one value from each option group."""
    return list(itertools.product(*product.options.values()))


def test_only_a_purchase_pays_under_fixed(fixed):
    stock = PreparedShop.open(fixed.prepared, fixed.config, None)
    with domain.pool(fixed, 1) as (env,):
        for number in range(20):
            rewards = bought(env, stock, number)
            assert rewards[:-2] == (0.0,) * 5
            assert rewards[-1] == rewards[-2]
        assert env.step("search[cup]").observation == f"Observation:\n{OVER}"
        assert env.step("search[cup]").done


def test_pages_pay_under_paper(paper):
    """As in IPR: a purchase pays what it is worth; an item page what its best choice would; others nothing."""
    stock = PreparedShop.open(paper.prepared, paper.config, paper.chance)
    with domain.pool(paper, 1) as (env,):
        numbers = [number for number in range(40) if on_first_page(stock, number)]
        best = [bought(env, stock, number)[1] for number in numbers]
        assert len(best) > 20 and best.count(1.0) > len(best) / 2
        for number in numbers:
            found, item, wrong, sub, back, paid, _ = bought(env, stock, number)
            goal = stock.goals[number]
            product = stock.shop.product(stock.shop.number(goal.asin))
            gained = [reward(product, goal, product.pricing[0], c, stock.tagger)[0] for c in all_choices(product)]
            assert item == back == max(gained)
            assert wrong == sub == 0.0
            assert 0.0 < found <= 1.0
            assert 0.0 < paid <= item
            assert env.step("click[buy now]").reward == paid


def test_a_page_pays_what_all_choices_together_say(fixed):
    """Against the plain enumeration of every choice of options."""
    stock = PreparedShop.open(fixed.prepared, fixed.config, None)
    for number, product in itertools.product(range(0, len(stock.goals), 15), range(0, len(stock.shop), 2)):
        goal, offered = stock.goals[number], stock.shop.product(product)
        choices = all_choices(offered)
        gained = [reward(offered, goal, offered.pricing[0], choice, stock.tagger)[0] for choice in choices]
        if not choices:  # an option group without values
            assert expected_reward(offered, goal, stock.tagger) == best_reward(offered, goal, stock.tagger, ()) == 0.0
            continue
        assert expected_reward(offered, goal, stock.tagger) == pytest.approx(statistics.mean(gained))
        assert best_reward(offered, goal, stock.tagger, ()) == max(gained)
        chosen = choices[-1][:1]
        with_it = [gain for gain, choice in zip(gained, choices, strict=True) if set(chosen) <= set(choice)]
        assert best_reward(offered, goal, stock.tagger, chosen) == max(with_it)


def test_each_job_draws_its_own_limits_under_paper_only_and_identities_say_so(fixed, paper):
    def limits(setup):
        with domain.pool(setup, 1) as (env,):
            return [env.identity, *(env.start(task(number)) for number in range(20))]

    assert limits(fixed) == limits(replace(fixed, chance=fixed.chance + 1))
    assert limits(paper)[1:] != limits(replace(paper, chance=paper.chance + 1))[1:]
    # All processes of a job have the same.
    assert limits(paper) == limits(pickle.loads(pickle.dumps(paper)))
    meta = prepared_shop.read_meta(fixed.prepared)
    assert [limits(fixed)[0], limits(paper)[0]] == [
        f"WebShop (catalogue {meta.catalogue}, goals {goals}, tagger approximate 1, "
        "token_set_ratio of thefuzz 0.19, difflib, non-comparable)"
        for goals in (meta.manifest[:8], "drawn in each job")
    ]


def test_a_task_of_another_shop_is_one_sentence(fixed):
    with domain.pool(fixed, 1) as (env,):
        for wrong in (task(10**6), builders.task("webshop/x", env="webshop")):
            with pytest.raises(UserError, match="must hold `goal`, a number from 0 to"):
                env.start(wrong)
