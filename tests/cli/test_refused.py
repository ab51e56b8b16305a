"""Bad input on real command lines: one sentence on stderr, exit status 2, no traceback, nothing written."""

import multiprocessing
import os
import re
import resource
import time
import zipfile

import pytest
from command_line import exit_status

from coevolve.errors import UserError
from coevolve.records.pairs import Drop
from coevolve.storage import files
from coevolve.storage.jsonl import Journal

DEEP = "[" * 50_000
SMOKE = ("config", "--suite", "smoke", "--set")
DATA = ("stage", "data", "--suite", "smoke", "--on", "env=sciworld", "experts=data/sciworld/gold.jsonl", "--out", "OUT")
EVALUATE = ("stage", "evaluate", "--suite", "smoke", "--out", "OUT", "--on")
SFT = ("stage", "sft", "--suite", "smoke", "--out", "OUT")
FIGURE3 = ("stage", "figure3", "--suite", "smoke", "--out", "OUT")
ON = ("--on", "model=tiny", "--on", "env=sciworld", "--on", "agent=target", "--on")
POOL = (
    "stage",
    "pool_experts",
    "--suite",
    "smoke_agent_data",
    "--out",
    "OUT",
    "--on",
    "model=tiny",
    "--on",
    "env=bfcl",
)
REPLAY = ("replay", "webshop", "--goals", "README.md", "--catalogue")
SHAPE = "models.tiny.tiny"

#: Arguments, and words of the sentence. FILE is a file with the content of the case, OUT a folder that must not appear.
ARGUMENTS = {
    "override of deep YAML": ((*SMOKE, f"dpo.beta={DEEP}"), "not YAML"),
    "override of another kind": ((*SMOKE, "envs=7"), "key `envs`"),
    "override with a wrong tag": ((*SMOKE, "dpo.beta=!!bool x"), "override `dpo.beta=!!bool x`: the value is not YAML"),
    "override with a long number": ((*SMOKE, "dpo.beta=" + "9" * 5000), "not YAML"),
    "override inside a value": ((*SMOKE, "suite.x=1"), "`suite` holds a value"),
    "override of no key": ((*SMOKE, "=1"), "key"),
    "recipes of another kind": ((*SMOKE, "recipes.eto=7"), "recipes.eto"),
    "recipe that extends a list": ((*SMOKE, "recipes.eto.extends=[1]"), "recipes.eto.extends"),
    "method of another kind": ((*SMOKE, "methods=[[1]]"), "key `methods.0`"),
    "environment without kind": ((*SMOKE, "envs.sciworld.kind=null"), "envs.sciworld"),
    "an endless context": ((*SMOKE, "models.tiny.context=9000000000"), "`models.tiny.context`: input should be"),
    "heads that do not divide": ((*SMOKE, f"{SHAPE}.heads=7"), "is not a multiple of `heads`"),
    "an odd head": ((*SMOKE, f"{SHAPE}.hidden_size=6", "--set", f"{SHAPE}.heads=2"), "even"),
    "suite that is missing": (("config", "--suite", "no.yaml"), "no such file; give a name or a path"),
    "suite that is a folder": (("config", "--suite", "configs/models"), "configs/models"),
    "suite with a null byte": (("config", "--suite", "a\0b.yaml"), "null byte"),
    "suite of a long name": (("config", "--suite", "x" * 300), "File name too long"),
    "more seeds than can be planned": ((*SMOKE, f"seeds={[*range(257)]}"), "key `seeds`: list should have at most 256"),
    "unknown ablation": (("plan", "--suite", "smoke", "--machine", "cpu", "--ablation", "nl"), "did you mean `nll`?"),
    "status of no suite": (("status",), "which suite? Write `coevolve status SUITE`."),
    "two suites of status": (("status", "micro", "--suite", "smoke"), "two suites, `micro` and"),
    "mirror that is not there": (("mirror", "verify", "--suite", "smoke", "--root", "none"), "none: no such folder"),
    "unknown model of verify": (("verify", "--suite", "smoke", "--model", "big"), "no model `big`"),
    "unknown model of a job": (
        (*EVALUATE, "model=big", "--on", "env=sciworld", "--on", "branch=base/seed0"), "model=big",
    ),
    "unknown environment": (("stage", "data", "--suite", "smoke", "--out", "OUT", "--on", "env=mars"), "env=mars"),
    "job of no model": (SFT, "which model? Give --on model=NAME"),
    "job without a file": (
        (*SFT, "--root", "nowhere", *ON, "branch=base/seed0"), "sft.jsonl: input `experts` does not exist",
    ),
    "job of another suite": (
        ("stage", "train", *SFT[2:], *ON, "branch=nothing/seed0/iter1"),
        "has no job with model=tiny, env=sciworld, agent=target, branch=nothing/seed0/iter1; correct --on",
    ),
    "input that is missing": ((*DATA[:6], "experts=nowhere.jsonl", "--out", "OUT"), "nowhere.jsonl: input `experts`"),
    "input that no stage reads": ((*FIGURE3, "record=FILE"), "no input `record`; did you mean `records`?"),
    "input of a suite's results": ((*FIGURE3, "records=FILE"), "`records` are results of a suite; name their folder"),
    "input of another stage": ((*FIGURE3, "machine=FILE"), "no input `machine`; it reads records"),
    "experts of another content": (
        (*DATA[:6], "--set", "envs.sciworld.experts.path=FILE", "experts=FILE", "--out", "OUT"),
        "`envs.sciworld.experts.sha256`",
    ),
    "split without a task": (
        (*DATA, "--set", "envs.sciworld.tasks.sft=10000", "--set", "envs.sciworld.tasks.explore=null"),
        "key `tasks.explore`: no task is left",
    ),
    "pool without a task": (
        (*POOL, "--on", "branch=coevolve_agent_data/seed0/iter1", "pool=FILE", "instruction=FILE"),
        "FILE: the pool has no task; raise `task_evolution.initial_fragments`",
    ),
    "unknown wildcard": ((*DATA, "--on", "planet=mars"), "planet"),
    "wildcard without value": ((*DATA, "--on", "env"), "NAME=VALUE"),
    "negative threads": ((*DATA, "--threads", "-1"), "--threads"),
    "threads of no number": ((*DATA, "--threads", "many"), "--threads"),
    "no nodes": ((*DATA, "--processes", "2", "--nodes", "-1"), "--nodes"),
    "out that is empty": ((*DATA[:-1], ""), "--out"),
    "out below a file": ((*DATA[:-1], "FILE/out"), "FILE"),
    "out of a long name": ((*DATA[:-1], "x" * 300), "File name too long"),
    "input that is a folder": ((*DATA[:6], "experts=data", "--out", "OUT"), "data"),
    "view without results": (("view", "--suite", "smoke", "--set", "suite=nowhere"), "no episodes.jsonl"),
    "archive that is missing": (("import", "nowhere.zip", "--out", "OUT"), "nowhere.zip"),
    "replay of a missing file": (("replay", "sciworld", "nowhere.jsonl"), "nowhere.jsonl"),
    "replay of goals that are none": ((*REPLAY, "tests/envs/webshop/recorded"), "README.md"),
    "replay of a missing catalogue": ((*REPLAY, "nowhere"), "nowhere"),
    "replay of no episode": (("replay", "sciworld", "--limit", "0"), "argument --limit: `0`"),
}  # fmt: skip


@pytest.fixture
def refused(root, tmp_path, monkeypatch, coevolve):
    """Runs a command line that must be refused; returns its sentence."""
    monkeypatch.chdir(root)

    def written():
        # The folder of a job's journals stays, for the next attempt.
        return {path for path in tmp_path.rglob("*") if not any(part.startswith(".work-") for part in path.parts)}

    def run(*arguments):
        before = written()
        words = [
            each.replace("FILE", str(tmp_path / "file")).replace("OUT", str(tmp_path / "out")) for each in arguments
        ]
        status, _, err = coevolve(*words)
        assert status == 2, err
        assert "Traceback" not in err
        sentence = err.strip().splitlines()[-1]
        assert sentence.startswith("coevolve: ") and len(sentence) < 1200, sentence
        assert written() == before
        return sentence.replace(str(tmp_path / "file"), "FILE")

    return run


@pytest.mark.parametrize("case", ARGUMENTS)
def test_arguments(refused, tmp_path, case):
    (tmp_path / "file").touch()
    arguments, words = ARGUMENTS[case]
    assert words in refused(*arguments)


def test_a_stage_computes_with_the_threads_that_it_is_given(refused, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    refused(*SFT, *ON, "branch=base/seed0", "--root", "nowhere", "--threads", "3")
    assert os.environ["OMP_NUM_THREADS"] == "3"


#: Content of a suite file, and words of the sentence.
SUITES = {
    "extends a mapping": ("extends: {a: b}\n", "key `extends`"),
    "extends a folder": ("extends: .\n", "not readable"),
    "extends itself": ("extends: suite.yaml\n", "leads back to the file itself"),
    "extends a null byte": ('extends: "a\\0b"\n', "extends"),
    "a list": ("- 1\n", "holds a mapping of keys"),
    "a key twice": (
        "dpo: {beta: 0.1}\nseeds: [0]\ndpo: {nll: mean}\n",
        "not readable as YAML (key `dpo` occurs twice in",
    ),
    "nothing": ("", "holds a mapping of keys"),
    "deep": (f"a: {DEEP}\n", "not readable as YAML"),
    "deep mappings": ("".join(f"{' ' * depth}a:\n" for depth in range(900)), "suite.yaml"),
    "contains itself": ("a: &a [*a]\n", "not readable as YAML"),
    "bytes": (b"\xff\xfe\x00", "not readable as YAML"),
    "a list as key": ("? [1]\n: 2\n", "not readable as YAML"),
    "a number as key": ("1: 2\n", "suite.yaml"),
    "a tag of python": ("a: !!python/object/apply:os.system [ls]\n", "not readable as YAML"),
    "a date of no calendar": ("a: 2001-99-99\n", "not readable as YAML"),
    "an empty number": ('a: !!int ""\n', "not readable as YAML"),
}


@pytest.mark.parametrize("case", SUITES)
def test_suite_files(refused, tmp_path, case):
    content, words = SUITES[case]
    path = tmp_path / "suite.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    began = time.process_time()
    assert words in refused("config", "--suite", str(path))
    assert time.process_time() - began < 5.0


def test_pipes_are_not_opened(refused, tmp_path):
    """A command would wait for the pipe's other end."""
    os.mkfifo(tmp_path / "file")
    (tmp_path / "suite.yaml").write_text("extends: file\n")
    for words in (
        ("config", "--suite", str(tmp_path / "suite.yaml")),
        ("compare", "FILE"),
        ("replay", "sciworld", "FILE"),
    ):
        assert "FILE" in (sentence := refused(*words)) and "not a regular file" in sentence


@pytest.mark.parametrize(("key", "value"), [("tasks", "9" * 400), ("reward_deviation", "1e308")])
def test_a_result_file_with_a_huge_number(refused, tmp_path, key, value):
    split = {"tasks": "9", "mean_reward": "0.5"} | {key: value}
    numbers = ", ".join(f'"{name}": {number}' for name, number in split.items())
    (tmp_path / "file").write_text(f'{{"label": "x", "settings": {{}}, "splits": {{"test": {{{numbers}}}}}}}')
    assert f"key `splits.test.{key}`: input should be less than or equal to" in refused("compare", "FILE", "FILE")


JSON = {
    "deep": DEEP,
    "torn": '{"task',
    "empty object": "{}",
    "not text": b"\xff\xfe\n",
    "no conversations": '[{"id": "1_2"}]',
    "another shape": '{"a": 1}',
}


@pytest.mark.parametrize("case", JSON)
def test_json_files(refused, tmp_path, case):
    """Experts in both formats, recorded episodes, and a policy's description."""
    content = JSON[case] if isinstance(JSON[case], bytes) else JSON[case].encode()
    path = tmp_path / "file"
    path.write_bytes(content + b"\n")
    for format_ in ("gold", "eto"):
        prefix = "envs.sciworld.experts"
        settings = [f"{prefix}.path={path}", f"{prefix}.format={format_}", f"{prefix}.sha256='{files.sha256(path)}'"]
        words = [word for setting in settings for word in ("--set", setting)]
        sentence = refused(*DATA[:4], *words, "--on", "env=sciworld", "experts=FILE", "--out", "OUT")
        assert "FILE" in sentence or "no expert for any of 96 tasks" in sentence
    assert "FILE" in refused("replay", "sciworld", "FILE")


def archive(path, damage):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("ic_spider_train.json", "[]" * 1000)
    content = bytearray(path.read_bytes())
    local, central = content.index(b"PK\x03\x04"), content.index(b"PK\x01\x02")
    if damage == "encrypted":
        content[local + 6] |= 1
        content[central + 8] |= 1
    elif damage == "cut":
        del content[-30:]
    elif damage == "changed":
        content[60] ^= 255
    elif damage == "method":
        content[local + 8] = content[central + 10] = 97
    elif damage == "huge":
        content[central + 24 : central + 28] = (0xFFFFFFF0).to_bytes(4, "little")
    path.write_bytes(content)


@pytest.mark.parametrize("damage", ["encrypted", "cut", "changed", "method", "huge"])
def test_archives(refused, tmp_path, damage):
    archive(tmp_path / "file", damage)
    sentence = refused("import", "FILE", "--out", "OUT")
    assert "FILE: " in sentence and "download it again" in sentence.replace("the archive", "it")


def test_a_damaged_work_journal_is_named(tmp_path):
    path = tmp_path / "drops.jsonl"
    for content in (b'{"task_id": 7}\n', b"\x00\x00\n", DEEP.encode() + b"\n"):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"drops\.jsonl: line 1 is not a valid Drop .*; delete the file"):
            Journal(path, Drop)
        assert path.read_bytes() == content


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_permissions_are_named_as_what_they_are(tmp_path):
    """An unreadable input is not an unwritable output, and neither is a full disk."""
    (tmp_path / "shut").mkdir(mode=0o700)
    tmp_path.chmod(0o755)
    records = tmp_path / "records.jsonl"
    records.write_text("")
    records.chmod(0o600)
    process = multiprocessing.get_context("fork").Process(target=as_nobody, args=(tmp_path, records))
    process.start()
    process.join()
    assert process.exitcode == 0


def as_nobody(tmp_path, records):
    os.setgroups([])
    os.setuid(65534)
    unwritten = re.escape(f"{tmp_path}/shut/file: cannot be written (Permission denied)")
    with pytest.raises(UserError, match=f"^{unwritten}((?!make room).)*$"):
        files.write_bytes(tmp_path / "shut/file", b"")
    unread = re.escape(f"{records}: cannot be read (Permission denied)")
    with pytest.raises(UserError, match=unread):
        files.read_bytes(records)
    with pytest.raises(UserError, match=unread), files.disk_errors(tmp_path / "out"):
        records.open("rb")


def test_few_file_descriptors(root, monkeypatch, capsys):
    monkeypatch.chdir(root)
    assert exit_status("config", "--suite", "smoke") == 0  # its modules are imported
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open(os.devnull) as file:  # noqa: PTH123
        free = file.fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        status = exit_status("config", "--suite", "smoke")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert status == 2
    assert "configs/suites/smoke.yaml: not readable (Too many open files)" in capsys.readouterr().err
