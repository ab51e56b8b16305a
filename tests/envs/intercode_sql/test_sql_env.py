"""The environment on the real server: both protocols' wrappers, rewards, and episodes that cannot see each other."""

import contextlib
import os
import random
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from envs.intercode_sql.sections import question
from envs.setups import QUIRKS, section
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coevolve.envs.base import OVER, EnvError, Setup
from coevolve.envs.intercode_sql import doctor
from coevolve.envs.intercode_sql.domain import pool
from coevolve.envs.intercode_sql.env import NO_ROWS, NOT_UNDERSTOOD, InterCodeSql
from coevolve.envs.intercode_sql.gold_queries import GoldQueries
from coevolve.errors import UserError

LANGUAGES = "SELECT Language FROM countrylanguage WHERE CountryCode = 'CHE' ORDER BY Percentage DESC"
ERROR = "Error executing query: "
FOUND = "[('German',), ('French',), ('Italian',), ('Romansh',)]"


def task(database="world_1", gold=LANGUAGES):
    return question(gold, database, "Which languages are spoken in Switzerland?")


def sql(statement):
    return f"```sql\n{statement}\n```"


@pytest.fixture(scope="module")
def config(dump):
    return section("intercode_sql", "intercode_sql-small", dump={"path": str(dump)})


@pytest.fixture(scope="module")
def golds(server):
    with contextlib.closing(GoldQueries(server)) as golds:
        yield golds


@pytest.fixture
def make(server, golds, config):
    """Makes environments of a protocol, with keys of the configuration replaced."""
    with contextlib.ExitStack() as stack:

        def make(protocol, **changes):
            env = InterCodeSql(server, golds, config.model_copy(update=changes), QUIRKS[protocol], "a server")
            stack.callback(env.close)
            return env

        yield make


def played(env, actions, item=None):
    """Observation, reward, score and end of every step."""
    env.start(item or task())
    results = [env.step(action) for action in actions]
    return [(result.observation, result.reward, result.score, result.done) for result in results]


@pytest.mark.parametrize("protocol", ["paper", "fixed"])
def test_an_episode_from_question_to_success(make, protocol):
    env = make(protocol)
    assert env.start(task()) == "Which languages are spoken in Switzerland?"
    texts = ["Thought: I look.\nAction: " + sql("SHOW TABLES"), "Action: " + sql(LANGUAGES), "Action: submit"]
    results = [env.step(env.parse(text)) for text in texts]
    assert [r.observation for r in results] == ["[('city',), ('country',), ('countrylanguage',)]", FOUND, FOUND]
    assert [(r.reward, r.score, r.done) for r in results] == [(0.0, 0.0, False)] * 2 + [(1.0, 1.0, True)]


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("Thought: a\nAction: submit", "submit"),
        ("Action:submit\n", "submit\n"),
        ("Action:\n\nsubmit", "\nsubmit"),
        ("Action: a\nAction: b", "a\nAction: b"),
        ("Action:", ""),
        ("action: submit", None),
        ("SELECT 1", None),
        ("", None),
    ],
)
def test_the_action_is_what_follows_the_first_label(make, text, action):
    assert make("paper").parse(text) == action


#: Action -> the observation of `paper` and of `fixed`; None where the episode ends with the last result.
WRAPPED = {
    sql("SELECT 1"): ("[(1,)]", "[(1,)]"),
    "I try ```sql SELECT 1``` and ```sql SELECT 2```": ("[(1,)]", "[(1,)]"),
    sql("SELECT ID\nFROM city WHERE ID = 3"): (f"{ERROR}Unknown column 'ID' in 'field list'", "[(3,)]"),
    sql("SELECT ID FROM city WHERE ID < 0"): ("[]", "[]"),
    sql("SET @x = 1"): (NOT_UNDERSTOOD, NO_ROWS),
    sql(""): (NOT_UNDERSTOOD, NOT_UNDERSTOOD),
    "```sql": (NOT_UNDERSTOOD, NOT_UNDERSTOOD),
    "SELECT 1": (NOT_UNDERSTOOD, NOT_UNDERSTOOD),
    "``` SELECT 1 ```": (NOT_UNDERSTOOD, NOT_UNDERSTOOD),
    "": (NOT_UNDERSTOOD, NOT_UNDERSTOOD),
    None: (NOT_UNDERSTOOD, NOT_UNDERSTOOD),
    "submit": (None, None),
    "submit.": (None, None),
    " submit\n": (None, None),
    "I submit this": (None, NOT_UNDERSTOOD),
    sql("SELECT 'submit'"): (None, "[('submit',)]"),
    "Submit": (NOT_UNDERSTOOD, None),
    "SUBMIT.": (NOT_UNDERSTOOD, None),
    "submit..": (None, NOT_UNDERSTOOD),
}


@pytest.mark.parametrize("action", WRAPPED, ids=range(len(WRAPPED)))
@pytest.mark.parametrize("protocol", ["paper", "fixed"])
def test_what_an_action_is_taken_for(make, protocol, action):
    expected = WRAPPED[action][protocol == "fixed"]
    _, (observation, _, _, done) = played(make(protocol), [sql("SELECT 7"), action])
    assert (observation, done) == (("[(7,)]", True) if expected is None else (expected, False))
    if set(WRAPPED[action]) == {NOT_UNDERSTOOD}:  # nothing is executed, and the last result is kept
        assert played(make(protocol), [sql(LANGUAGES), action, "submit"])[-1] == (FOUND, 1.0, 1.0, True)


@pytest.mark.parametrize("protocol", ["paper", "fixed"])
def test_submitting_what_is_no_list_of_rows_earns_nothing(server, make, protocol):
    env = make(protocol)
    assert played(env, ["submit"]) == [("None", 0.0, 0.0, True)]
    assert played(env, [sql(LANGUAGES), sql("SET @x = 1"), "submit"])[-1] == ("None", 0.0, 0.0, True)
    error = f"{ERROR}Table 'world_1.towns' doesn't exist"
    steps = played(env, [sql(LANGUAGES), sql("SELECT * FROM towns"), "submit"])
    assert steps[1:] == [(f"{error}\n", 0.0, 0.0, False), (error, 0.0, 0.0, True)]


def test_long_observations_are_cut_but_for_what_paper_shows_of_a_submission(make):
    actions = [sql("SELECT Name FROM city ORDER BY ID"), "submit"]
    (paper, *_), (paper_submitted, *_) = played(make("paper"), actions)
    (fixed, *_), (fixed_submitted, *_) = played(make("fixed"), actions)
    assert paper == fixed == fixed_submitted == paper_submitted[:350] + "..."
    assert paper_submitted.endswith("('Rafah',)]")
    assert played(make("fixed"), [sql(f"SELECT '{'x' * 343}'")])[0][0] == f"[('{'x' * 343}',)]"
    assert played(make("fixed"), [sql(f"SELECT '{'x' * 344}'")])[0][0] == f"[('{'x' * 344}',)..."


@pytest.mark.parametrize(
    ("statement", "protocol", "reward", "gained"),
    [
        # Upstream's tau compares the rows' texts place by place, not their ranks in the gold: reversed is not quite -1.
        (LANGUAGES.replace("DESC", "ASC"), "paper", "continuous", (-0.33, -0.33)),
        (LANGUAGES.replace("DESC", "ASC"), "fixed", "continuous", (0.0, -0.33)),
        (LANGUAGES.replace("DESC", "ASC"), "paper", "binary", (0.0, -0.33)),
        (f"{LANGUAGES} LIMIT 3", "fixed", "continuous", (0.75, 0.75)),
        (f"{LANGUAGES} LIMIT 3", "fixed", "binary", (0.0, 0.75)),
        (LANGUAGES, "fixed", "binary", (1.0, 1.0)),
    ],
)
def test_rows_in_another_order_or_a_part_of_them_earn_less(make, statement, protocol, reward, gained):
    assert played(make(protocol, reward=reward), [sql(statement), "submit"])[-1][1:3] == gained


def test_a_score_that_is_rounded_to_one_is_no_success_but_in_upstreams_protocol(make):
    """One row too many beside 200 right ones: 200 / 201 = 0.995."""
    many = "SELECT ID FROM city ORDER BY ID LIMIT {}"
    item, actions = task(gold=many.format(200)), [sql(many.format(201)), "submit"]
    assert played(make("paper"), actions, item)[-1][1:3] == (1.0, 1.0)
    assert played(make("fixed"), actions, item)[-1][1:3] == (0.99, 1.0)
    for protocol in ("paper", "fixed"):
        assert played(make(protocol, reward="binary"), actions, item)[-1][1:3] == (0.0, 1.0)
        assert played(make(protocol), [sql(many.format(200)), "submit"], item)[-1][1:3] == (1.0, 1.0)


def test_the_limit_of_steps_is_the_configured_one_and_steps_before_and_after_an_episode_do_nothing(make):
    assert [make("paper", **keys).step_limit(task()) for keys in ({}, {"step_limit": 3})] == [10, 3]
    assert make("paper").step("submit").observation == OVER
    steps = played(make("fixed"), [sql(LANGUAGES), "submit", "submit", sql("SELECT 1"), None])
    assert steps[2:] == [(OVER, 1.0, 1.0, True)] * 3


@pytest.mark.parametrize("missing", ["database", "gold", "question"])
def test_a_task_that_is_not_the_environments_is_the_users_error(make, missing):
    data = {key: value for key, value in task().data.items() if key != missing}
    with pytest.raises(UserError, match=missing):
        make("fixed").start(task().model_copy(update={"data": data}))
    with pytest.raises(UserError, match="world_2"):
        make("fixed").start(task("world_2"))


@given(st.text(max_size=300))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_any_text_is_answered(make, text):
    for protocol in ("paper", "fixed"):
        for action in (text, sql(text)):
            assert isinstance(played(make(protocol), [action])[0][0], str)


@pytest.fixture(scope="module")
def pooled(config):
    with pool(Setup(config, "envs.intercode_sql", "paper", QUIRKS["paper"]), 8) as envs:
        yield envs


def test_a_pool_shares_one_server_and_says_which(pooled, server):
    assert {env.identity for env in pooled} == {pooled[0].identity}
    assert pooled[0].identity.startswith(f"{server.identity} (rows ")
    pids = {env.step(sql("SELECT @@pid_file")).observation for env in pooled if env.start(task())}
    assert len(pids) == 1


#: Statements that leave something behind in their session, and others that would see it.
STATEMENTS = [
    "SELECT @x, @@sql_mode, @@sql_select_limit, DATABASE()",
    "SET @x = 1",
    "SET sql_mode = ''",
    "SET sql_select_limit = 2",
    "USE flight_2",
    "PREPARE s FROM 'SELECT Name FROM city ORDER BY ID LIMIT 9'",
    "EXECUTE s",
    "SELECT Name, COUNT(*) FROM city",
    "SELECT Name FROM country ORDER BY Name LIMIT 5",
    "START TRANSACTION",
    "ROLLBACK",
    "DELETE FROM city",
    "DROP TABLE country",
    "SELECT LAST_INSERT_ID(), LAST_INSERT_ID(3)",
    "SELECT Language FROM countrylanguage",
    LANGUAGES,
]


@pytest.mark.parametrize("seed", range(4))
def test_episodes_at_once_read_as_they_do_alone(pooled, seed):
    choose = random.Random(seed)
    episodes = [[*map(sql, choose.choices(STATEMENTS, k=6)), "submit"] for _ in range(48)]
    alone = [played(pooled[0], episode) for episode in episodes]

    def play(env):
        mine = list(range(env, len(episodes), len(pooled)))
        random.Random(seed + env).shuffle(mine)
        return {number: played(pooled[env], episodes[number]) for number in mine}

    with ThreadPoolExecutor(len(pooled)) as threads:
        at_once = dict(item for part in threads.map(play, range(len(pooled))) for item in part.items())
    assert [at_once[number] for number in range(len(episodes))] == alone


def test_a_killed_server_fails_its_episodes_until_they_start_anew(own_server, config):
    server = own_server()
    with contextlib.closing(GoldQueries(server)) as golds:
        envs = [InterCodeSql(server, golds, config, QUIRKS["fixed"], "a server") for _ in range(2)]
        for env in envs:
            env.start(task())
        killed = server.pid
        os.kill(killed, signal.SIGKILL)
        for env in envs:
            with pytest.raises(EnvError):
                env.step(sql(LANGUAGES))
        assert [played(env, [sql(LANGUAGES), "submit"])[-1] for env in envs] == [(FOUND, 1.0, 1.0, True)] * 2
        assert server.pid != killed
        for env in envs:
            env.close()


def test_the_check_of_a_node_starts_the_server(config):
    check = doctor.started(config)
    assert check.text.startswith("MySQL ") and check.text.endswith(" started") and check.status == "ok"
    broken = config.model_copy(update={"server": config.server.model_copy(update={"binary": "/bin/false"})})
    assert doctor.started(broken).status == "wrong"
