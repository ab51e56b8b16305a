import ast
import inspect
import os
import re
import shutil
import subprocess
import sys

import pytest
from snakemake.cli import parse_config

from coevolve.config.loading import as_overrides, given_name, load_suite
from coevolve.config.restriction import as_dict, restrict
from coevolve.config.suite import for_method
from coevolve.envs.section import known_kinds, section_class
from coevolve.errors import UserError
from coevolve.settings.section import Strict
from coevolve.storage import code_digest

FAILURE = "recipes.coevolve.agents.failure.settings"
OF_FAILURE = "agents: {failure: {settings: {dpo: {objective: {name: simpo, margin: 0.3}}}}}"
MINE = "label: Mine, source: here, iterations: null"
TARGET = "`agents.target` is required, with `base` `target` or `untrained`"


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("sft.epoch=3", "unknown key `sft.epoch`; did you mean `epochs`"),
        ("evaluation.zzz=3", "unknown key `evaluation.zzz`; known are samples, temperature, max_env_errors."),
        ("dpo.objective={name: simpo}", "objective `simpo` needs `margin` beside `name`; `margin` is missing"),
        ("envs.sciworld.task.kinds=null", "unknown key `envs.sciworld.task`; did you mean `tasks`"),
        ("sft.epochs=-1", "key `sft.epochs`: input should be greater than 0"),
        ("methods=[etoo]", "`etoo` is not a recipe; did you mean `eto`"),
        ("regime.headroom=sft_al", "regime.headroom: `sft_al` is not a recipe; did you mean `sft_all`?"),
        ("dpo.objective={name: dmpo}", "objective `dmpo` needs `discount` beside `name`; `discount` is missing"),
        ("dpo.objective={name: dpo, margin: 0.1}", "takes nothing beside `name`; remove `margin`"),
        ("dpo.objective={name: kto, desirable: 1.0}", "`undesirable` is missing"),
        ("dpo.objective={name: orpo}", "key `dpo.objective.name`: input should be "),
        ("dpo.beta=[]", "key `dpo.beta`"),
        ("dpo.beta=high", "key `dpo.beta"),
        ("grpo.group=3", "multiple of `group`"),
        ("looks=[4, 4]", "looks: numbers of seeds, each larger than the one before"),
        ("models.tiny.chat_template=x", "for models of `hub`, `gguf` or `path` alone"),
        ("protocol=fast", "key `protocol`"),
        ("models.a/b={label: A}", "key `models.a/b`: it is part of a path; name it with letters, digits,"),
        ("envs.webshop.tasks.listed=eto", "unknown key `envs.webshop.tasks.listed`; did you mean `lists`"),
        ("envs.sciworld.kind=sciwrld", "key `envs.sciworld.kind`: no environment `sciwrld`; did you mean `sciworld`?"),
        ("envs.sciworld.kind=..config", "no environment `..config`; known are bfcl, intercode_sql, sciworld, webshop."),
        ("envs.more={label: More}", "key `envs.more.kind` is missing"),
        ("envs.more=3", "key `envs.more`: input should be a valid dictionary"),
        ("sft.epochs", "write it as key.subkey=value"),
        ("seeds=[0,-1]", "key `seeds.1`: input should be greater than or equal to 0 (got -1"),
        ("seeds=[]", "key `seeds`: list should have at least 1 item"),
        ("seeds=[0,1,0]", "seeds: a seed is listed twice"),
        ("methods=[sft,eto,eto]", "methods: `eto` and `eto` have the same label; give one another, or leave one out"),
        ("recipes.eto.label=SFT", "methods: `sft` and `eto` have the same label"),
        ("suite=reference", "suite: `results/reference` has committed results; give the suite another name"),
        ("models.7.context=9", "key `models.7.label` is missing"),
        ("iterations.sciwrld=5", "iterations: this suite has no environment `sciwrld`; did you mean `sciworld`?"),
        ("recipes.late={extends: eto, shares: iterations_2}", "`iterations_2` itself `shares` `coevolve`; name that"),
        ("recipes.eto.settings.data={}", "key `recipes.eto.settings.data`: input should be 'sft', 'dpo', 'pairing', "),
        ("models.tiny.tiny.words=['']", "key `models.tiny.tiny.words.0`: string should have at least 1 character"),
        ("envs={}", "key `envs`: dictionary should have at least 1 item"),
        (
            "recipes.eto.shares={method: eto, first: pool}",
            "`first: pool` requires a method with a pool of tasks, not `le",
        ),
        (
            "recipes.grpo.settings.dpo.steps_like=coevolve",
            "`steps_like` requires a method that is trained on pairs, not",
        ),
        ("dpo.steps_like=eto", "dpo.steps_like: it is about one row; set it in `recipes.METHOD.settings.dpo`"),
        ("recipes.eto.steps_like=coevolve", "`steps_like` is now `settings: {dpo: {steps_like: METHOD}}`; write that"),
        ("recipes.eto.shares_first=1", "`shares_first` is now `shares: {method: METHOD, first: NUMBER}`; write that"),
        ("recipes.eto.first_pool=eto", "`first_pool` is now `shares: {method: METHOD, first: pool}`; write that"),
        ("recipes.eto.failure_agent_first=true", "`failure_agent_first` is now `learns: failure_agent_first`; write"),
        ("recipes.ipr.agents.failure={base: failure, explores: true}", "`learns: steps` has no failure agent; remove"),
        ("pairing.failures={keep: nearest, per_task: 1}", "`keep: nearest` needs `reward`, and only it takes one"),
        ("pairing.failures={keep: hardest, per_task: 1, reward: 0.7}", "`keep: nearest` needs `reward`, and only it"),
        (
            "pairing.failures={keep: hardest, per_task: 1}",
            "pairing.failures.per_task: `eto` has no more episodes of a t",
        ),
        (
            "recipes.coevolve.agents.failure.explores=none",
            "recipes.coevolve.agents.failure.explores: `none` is not a rec",
        ),
        (
            "recipes.coevolve.agents.failure.explores=coevolve",
            "failure.explores: only a frozen agent takes the episodes",
        ),
        (
            "recipes.frozen_failure_agent.agents.failure.explores=eto",
            "explores: only a frozen agent takes the episodes of",
        ),
        (
            "recipes.frozen_failure_agent.agents.failure={explores: coevolve, base: target}",
            "recipes.frozen_failure_agent.agents.failure.explores: the failure agent of `coevolve` starts as another",
        ),
        (
            "recipes.eto.settings.dpo.steps_like=sft",
            "recipes.eto.settings.dpo.steps_like: `sft` is not trained on pairs",
        ),
        ("recipes.eto.settings.dpo.steps_like=grpo", "settings.dpo.steps_like: `grpo` is not trained on pairs; name a"),
        ("envs.sciworld.splits=[]", "key `envs.sciworld.splits`: list at least one split, on which policies are"),
        ("models.data={label: Data, context: 9, path: data, parameters: 1}", "models: `data` is the folder of other"),
        ("evaluation={1: 2}", "key `evaluation.1`: keys should be strings (got 1, set by --set"),
        ("recipes.eto.agents.targt={base: target}", "key `recipes.eto.agents.targt`: input should be 'target' or 'fai"),
        ("recipes.eto.settings.dpo={1: 2}", "key `recipes.eto.settings.dpo.1`: input should be a valid string (got 1"),
        ("dpo.micro_batch=5", "key `dpo`: `batch_size` must be a multiple of `micro_batch`"),
        (
            "models.tiny.lora={rank: 1, alpha: 1, dropout: 1, target_modules: [q]}",
            "dropout`: input should be less than 1",
        ),
        (
            "models.tiny.lora={rank: 1, alpha: 1, dropout: 0, target_modules: []}",
            "list[str]`: list should have at least",
        ),
        ("recipes.eto.settings.rollout={k: 2, temperature: 0}", "rollout.k: `eto` explores greedily, and its 2 epi"),
        ("evaluation.samples=4", "key `evaluation`: several `samples` need a `temperature` above 0"),
        ("recipes.eto.settings.sft.nll=sum", "`settings.sft` requires `learns: selected`"),
        ("recipes.eto.settings.dpo.bta=1", "recipes.eto.settings.dpo: unknown key `bta`; did you mean `beta`"),
        ("recipes.frozen_failure_agent.learns=failure_agent_first", "requires a failure agent that explores"),
        ("recipes.base={extends: coevolve}", "`base` is the folder of shared results"),
        ("recipes.my-method={extends: coevolve}", "recipes.my-method"),
        ("recipes.k_9={extends: k_2, shares: coevolve}", "recipes.k_9.settings: all iterations are those of `coevolve"),
        (
            f"recipes.more={{extends: coevolve, shares: coevolve, {OF_FAILURE}}}",
            "recipes.more.settings: all iterations are",
        ),
        (f"{FAILURE}.dpo={{objective: {{name: simpo}}}}", f"{FAILURE}.dpo: "),
        (f"{FAILURE}.dpo={{nl: sum}}", "unknown key `nl`; did you mean `nll`"),
        (f"{FAILURE}.evaluation={{samples: 3}}", f"{FAILURE}.evaluation"),
        # A method has a target that is evaluated: the failure agent's base policy is evaluated by no stage.
        *(
            (f"recipes.mine={{{MINE}, agents: {agents}}}", TARGET)
            for agents in ("{target: {base: failure, explores: true}}", "{}")
        ),
        ("suite=../x", "key `suite`"),
        ("recipes.many.extends=coevolv", "key `recipes.many.extends`: `coevolv` is not a recipe; did you mean `coevol"),
        ("ablations.positive_agent.methods=[etoo]", "ablations.positive_agent.methods: `etoo` is not a recipe"),
        ("recipes.eto.agents.target.trains_on=null", "key `recipes.eto.agents.target.trains_on`: input should be a va"),
    ],
)
def test_a_bad_key_or_value_is_one_sentence_that_names_it(root, override, sentence):
    with pytest.raises(UserError, match=re.escape(sentence)) as caught:
        load_suite("smoke", [override])
    assert "\n" not in str(caught.value)


def test_what_explores_in_no_rollout_may_repeat_greedy_episodes(root):
    """Methods without an agent that explores, and those that play in their training."""
    greedy = ["rollout.k=2", "rollout.temperature=0"]
    for method in ("sft", "ppo", "grpo"):
        load_suite(root / "configs/suites/smoke.yaml", [f"methods=[{method}]", *greedy])


def test_a_methods_settings_keep_the_keys_that_digests_leave_out(root):
    limits = "concurrency: 4, timeout_seconds: 60, retries: 2, price_in: 1, price_out: 2"
    endpoint = f"{{model: m, seeds: true, length: max_tokens, {limits}}}"
    overrides = [
        "task_evolution.explorer=endpoint",
        f"task_evolution.endpoint={endpoint}",
        "recipes.agent_data_policy.settings.task_evolution.endpoint=null",
    ]
    suite = load_suite("agent_data", overrides)
    row = for_method(suite, "agent_data_random").task_evolution
    assert row == suite.task_evolution.model_copy(update={"exploration": "random"})
    assert row.endpoint.concurrency == 4


def test_a_restricted_suite_refuses_undeclared_sections(root):
    suite = load_suite("smoke")
    (model,) = suite.models
    restricted = restrict(suite, ("models", "sft"), {"models": model, "envs": "sciworld"})
    assert restricted.sft == suite.sft
    for undeclared in ("dpo", "looks"):  # also one with a default
        with pytest.raises(AttributeError):
            getattr(restricted, undeclared)
    assert set(as_dict(restricted)) == {"models", "sft"}


ENVIRONMENTS = ("envs/sciworld.yaml", "envs/intercode_sql.yaml", "envs/webshop.yaml")
FILES_OF_THE_PAPER = ("suites/paper.yaml", "parts/hyperparameters.yaml", *ENVIRONMENTS)


def test_every_number_of_the_paper_suite_cites_its_place(root):
    """Law 5: each value is followed by a place in the paper, or by `choice:` and why."""
    silent = [
        f"{path.name}:{number}: {line.strip()}"
        for path in (root / "configs" / name for name in FILES_OF_THE_PAPER)
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if re.search(r":\s+\[?\.?\d", line.split("#")[0]) and not re.search(r"# (?:choice|appendix|section|eq\.)", line)
    ]
    assert silent == []


def test_a_name_with_dots_is_one_key(root):
    suite = load_suite("reviewer", ["models.qwen3-0.6b.context=1024"])
    assert list(suite.models) == ["qwen3-0.6b"] and suite.models["qwen3-0.6b"].context == 1024
    (setting,) = as_overrides({"models": {"qwen3-0.6b": {"context": 1024}}})
    assert load_suite("reviewer", [setting]) == suite


def test_snakemakes_config_sets_texts_numbers_lists_nulls_and_empty_sections(root):
    """Snakemake reads them all as text."""
    words = ["dpo={nll: sum, beta: [0.1, 0.3], learning_rate: 1e-5}", "protocol=paper", "rollout={temperature: null}"]
    words += ["pairing={hard_negative: ~}", "recipes={eto: {agents: {target: {trains_on: {}}}}}"]
    before = ["rollout.temperature=0.5", "pairing.hard_negative=0.5"]
    suite = load_suite("smoke", before + as_overrides(parse_config(words)))
    assert (suite.protocol, suite.dpo.nll) == ("paper", "sum")
    assert (suite.dpo.beta, suite.dpo.learning_rate) == ([0.1, 0.3], [1e-5])
    assert suite.rollout.temperature is None and suite.pairing.hard_negative is None
    assert suite.recipes["eto"].agents["target"].trains_on == {}


@pytest.mark.parametrize("words", ["iterations={sciworld: 4}", "recipes={coevolve: {iterations: 1}}"])
def test_a_mapping_sets_the_same_keys_for_commands_as_for_snakemake(root, words):
    """A plan of a suite is that of its run, whichever way keys are written; keys that are not named stay."""
    base, suite = load_suite("smoke"), load_suite("smoke", [words])
    assert suite == load_suite("smoke", as_overrides(parse_config([words])))
    assert suite != base
    assert suite.recipes.keys() == base.recipes.keys() and suite.iterations.keys() == base.iterations.keys()


#: Reads that a type checker does not see: what stands there for which section, and where.
UNSEEN = (
    ("Machine", "coevolve/watch/snakemake_run.py", r"machine\.(\w+)"),
    ("JobResources", "Snakefile", r"stage\)\.(\w+)"),
    ("ObjectiveConfig", "coevolve/train/losses.py", r"(\w+): float\b"),  # by keyword
    ("EnvSection", "coevolve/envs/**/*.py", r"setup\.config\.(\w+)"),  # of any kind
)


#: Modules that hold sections of suites and machines; claims, noise and images are other files.
SECTIONS = r"coevolve\.(?!report|assets\.images)[\w.]+"


def test_every_config_key_is_read_by_something(root, tmp_path):
    """Law 5: no documented option that nobody reads."""
    read = read_keys(root, tmp_path)
    assert len(read) > 200
    for section, file, pattern in UNSEEN:
        for path in root.glob(file):
            read |= {f"{section}.{key}" for key in re.findall(pattern, path.read_text())}
    for kind in known_kinds():
        section_class(kind)
    kinds = [kind for kind in below(Strict) if re.fullmatch(SECTIONS, kind.__module__)]
    unread = [
        f"{kind.__name__}.{key}"
        for kind in kinds
        for key in kind.model_fields.keys() & inspect.get_annotations(kind).keys()
        if not any(f"{other.__name__}.{key}" in read for other in kinds if related(kind, other))
    ]
    assert sorted(unread) == []


def read_keys(root, tmp_path):
    """Keys that code of the package reads, as `Section.key`: their names recur, so that text alone tells nothing."""
    shutil.copytree(root / "coevolve", tmp_path / "coevolve")
    copied = tmp_path / "coevolve"
    for module, path in code_digest.sources("coevolve").items():
        names = {name for name in code_digest.definitions(module, path.read_bytes()) if name.isidentifier()}
        if sections := {name for name in names if code_digest.is_section(f"{module}.{name}")}:
            other = copied / path.relative_to(root / "coevolve")
            other.write_text(with_keys_deprecated(path.read_text(), sections))
    alone = ["--no-site-packages", "--ignore-missing-imports", f"--cache-dir={os.devnull}"]
    command = [sys.executable, "-m", "mypy", *alone, "--enable-error-code=deprecated", "--package=coevolve"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    return set(re.findall(rf"function (?:{SECTIONS})\.(\w+\.\w+) is deprecated", said))


def with_keys_deprecated(text, sections):
    """A module in which each key of its sections is a property that a type checker reports where it is read."""
    tree = ast.parse(text)
    for section in tree.body:
        if isinstance(section, ast.ClassDef) and section.name in sections:
            section.body = [deprecated(part) if isinstance(part, ast.AnnAssign) else part for part in section.body]
    return f"{ast.unparse(tree)}\nfrom typing_extensions import deprecated\n"


def deprecated(key):
    shown = f"@property\n@deprecated('')\ndef {key.target.id}(self) -> {ast.unparse(key.annotation)}: ..."
    return ast.parse(shown).body[0]


def below(kind):
    return [one for each in kind.__subclasses__() for one in (each, *below(each))]


def related(kind, other):
    return issubclass(kind, other) or issubclass(other, kind)


@pytest.mark.parametrize("name", ["2024_01", "2024", "1e5", "True"])
def test_a_name_that_snakemake_does_not_read_as_text_is_refused(name):
    with pytest.raises(UserError, match="--config suite: Snakemake reads this name as "):
        given_name(parse_config([f"suite={name}"]), "suite", "paper")
    path = f"configs/{name}.yaml"
    assert given_name(parse_config([f"suite={path}"]), "suite", "paper") == path
