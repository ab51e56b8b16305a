"""Episodes do not depend on other agents or on the server: a greedy agent beside seven others, and two servers."""

import contextlib

from envs.intercode_sql.sections import question, section
from envs.setups import QUIRKS
from rollout.playing import content, play

from coevolve.envs.intercode_sql.env import GoldQueries, InterCodeSql
from coevolve.envs.intercode_sql.session import LIMIT_PASSED, SqlSession
from coevolve.policies.base import ScriptedPolicy
from coevolve.records.episodes import StopReason

CITIES = "SELECT Name FROM city WHERE ID = {number} OR ID = @mine ORDER BY ID"
GREEDY = "SELECT JSON_ARRAYAGG(REPEAT('a', 900000)) FROM city"
SESSIONS, GREEDY_SESSION = 8, 3


def script(conversation):
    """Sets a variable that every later statement reads; one episode is greedy in each turn."""
    number, turn = int(conversation.key.split("/")[1].split("#")[0]), len(conversation.turns)
    if number == GREEDY_SESSION:
        return f"Action: ```sql\n{GREEDY}\n```" if turn < 3 else None
    statements = [f"SET @mine = {10 * number}", *(CITIES.format(number=n) for n in range(1, 5))]
    return f"Action: ```sql\n{statements[turn]}\n```" if turn < len(statements) else "Action: submit"


def test_a_greedy_agent_ends_no_other_episode(own_server, dump, tmp_path):
    server, config = own_server(memory_mb=512), section(dump, {"source": "templates", "per_kind": 1})
    tasks = [
        question(CITIES.format(number=4).replace("@mine", str(10 * number))).model_copy(
            update={"task_id": f"sql/{number}"}
        )
        for number in range(SESSIONS)
    ]
    with contextlib.ExitStack() as stack:
        golds = stack.enter_context(contextlib.closing(GoldQueries(server)))
        envs = [InterCodeSql(server, golds, config, QUIRKS["fixed"], "a server") for _ in range(SESSIONS)]
        for env in envs:
            stack.callback(env.close)
        alone = play(
            tmp_path / "alone", envs[:1], [t for t in tasks if t != tasks[GREEDY_SESSION]], ScriptedPolicy(script)
        )
        before = server.pid
        together = play(tmp_path / "together", envs, tasks, ScriptedPolicy(script), retries=3)
        assert server.pid != before
    greedy = together.pop(GREEDY_SESSION)
    assert content(together) == content(alone)
    assert {(t.reward, t.stop, t.attempts) for t in together} == {(1.0, StopReason.DONE, 1)}
    assert [turn.observation for turn in greedy.turns] == [f"Error executing query: {LIMIT_PASSED}\n"] * 3
    assert greedy.attempts == 1


#: Clocks and counters, which differ between statements too.
DIFFERENT = {"timestamp", "statement_id", "pseudo_thread_id", "rand_seed1", "rand_seed2"}
LARGE = "SELECT COUNT(*) FROM (SELECT DISTINCT a.ID, b.ID AS i, REPEAT(a.Name, 800) FROM city a, city b) t"


def test_two_servers_answer_the_same(own_server):
    answers = []
    for server in (own_server(temporary_mb=256), own_server(temporary_mb=256)):
        with contextlib.closing(SqlSession(server)) as session:
            session.use("world_1")
            variables = {name: value for name, value in session.execute("SHOW VARIABLES").rows if name not in DIFFERENT}
            asked = session.execute("SELECT @@hostname, CONCAT(@@datadir, Name) FROM city LIMIT 2").rows
            answers.append((variables, asked, session.execute(LARGE).error))
    assert answers[0] == answers[1]
    assert answers[0][1:] == (
        [("mysql", f"/var/lib/coevolve/data/{name}") for name in ("Kabul", "Qandahar")],
        "The table '/var/lib/coevolve/tmp/file' is full",
    )
