"""A record decides what was computed, and never what runs on this machine or how much."""

import re

import pytest

from coevolve.config import recorded
from coevolve.config.loading import load_suite
from coevolve.config.recorded import HARMLESS, MACHINE_KEYS, given_values, section_keys, settings_here, undeclared
from coevolve.config.restriction import as_dict
from coevolve.config.suite import Suite
from coevolve.envs.section import known_kinds, section_class
from coevolve.errors import UserError
from coevolve.settings.section import SourceFile, Strict


@pytest.fixture(scope="module")
def config():
    return as_dict(load_suite("smoke"))


def all_keys():
    return [
        *section_keys(Suite),
        *(key for kind in known_kinds() for key in section_keys(section_class(kind), f"envs.{kind}")),
    ]


def with_key(config, key, value):
    first, _, rest = key.partition(".")
    return config | {first: with_key(config.get(first) or {}, rest, value) if rest else value}


def test_every_key_that_looks_like_a_machines_is_in_the_list_or_declared_harmless():
    keys = all_keys()
    assert len(keys) > 300 and {"models.*.endpoint.retries", "envs.webshop.catalogue.products.path"} <= {*keys}
    assert undeclared(keys) == []
    assert all(HARMLESS.values())


def test_a_new_key_that_looks_like_a_machines_is_found():
    class Server(Strict):
        name: str
        listen_port: int | None
        data: dict[str, SourceFile]

    class Made(Strict):
        server: Server | None
        start_command: list[str]
        reward: float

    keys = [*section_keys(Made, "envs.made")]
    assert keys[2:4] == ["envs.made.server.data.*.path", "envs.made.server.data.*.sha256"]
    assert undeclared(keys) == ["envs.made.server.listen_port", "envs.made.start_command"]
    assert undeclared(section_keys(Made, "sft"))[1] == "sft.server.data.*.path", "harmless in environments alone"


def test_every_listed_key_exists_and_has_a_value_of_its_type(config):
    patterns = {re.sub(r"^envs\.\w+\.", "envs.*.", key) for key in all_keys()}
    assert {re.sub(r"^envs\.\w+\.", "envs.*.", key) for key in MACHINE_KEYS} <= patterns
    stranger = config
    for key in MACHINE_KEYS:
        if key.startswith("envs."):
            names = config["envs"] if "*" in key else [key.split(".")[1]]
            for name in names:
                stranger = with_key(stranger, key.replace("*", name), "a stranger's")
    own = settings_here(stranger)
    assert "a stranger's" not in str(own)
    assert own == settings_here(config)
    for section in own["envs"].values():
        section_class(section["kind"]).model_validate(section)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("envs.webshop.catalogue.generated", 10**12),
        ("envs.webshop.catalogue.generated", "1000000000000"),
        ("envs.intercode_sql.items.per_kind", 1e12),
        ("envs.sciworld.tasks.generated.train", 10**12),
        ("iterations.webshop", 10**12),
        ("iterations.of_a_name_with_a.seed", 10**12),
        ("rollout.k", 10**12),
        ("evaluation.samples", float("inf")),
        ("dpo.save_steps", 10**12),
        ("seeds", [*range(10**5)]),
    ],
)
def test_a_size_beyond_its_bound_is_refused_in_one_sentence(config, key, value):
    large = with_key(config, key, value)
    with pytest.raises(UserError, match=rf"^`{key}` (is|has) .* that a record may have.*\.$"):
        settings_here(large)
    if not isinstance(value, list):
        assert settings_here(large, {key: 3}), "who runs the command may say how much"


@pytest.mark.parametrize("path", ["/etc/passwd", "../../other"])
def test_a_file_outside_of_this_folder_is_given_by_who_runs_the_command(config, path):
    key = "envs.intercode_sql.dump.path"
    with pytest.raises(UserError, match=f"`{key}`: {path} is not below .*; give yours with `--set {key}=VALUE`."):
        settings_here(with_key(config, key, path))
    assert (
        settings_here(with_key(config, key, path), {key: "/mine"})["envs"]["intercode_sql"]["dump"]["path"] == "/mine"
    )


def test_a_key_of_another_package_that_looks_like_a_machines_needs_a_value_of_ones_own(config, monkeypatch):
    monkeypatch.delitem(MACHINE_KEYS, "envs.intercode_sql.server.binary")
    key = "envs.intercode_sql.server.binary"
    with pytest.raises(
        UserError, match=f"`{key}` is about a machine, so a record's is not used; give yours with `--set"
    ):
        settings_here(config)
    assert settings_here(config, {key: "mysqld"})["envs"]["intercode_sql"]["server"]["binary"] == "mysqld"


def test_own_values_are_yaml_by_dotted_key_and_a_key_that_no_section_has_is_named():
    assert given_values(["envs.intercode_sql.server.binary=null", "envs.sciworld.memory_mb=512"]) == {
        "envs.intercode_sql.server.binary": None,
        "envs.sciworld.memory_mb": 512,
    }
    with pytest.raises(UserError, match=r"--set envs\.sciworld\.memory: no section has a key `memory`; did you mean"):
        given_values(["envs.sciworld.memory=1"])


@pytest.mark.parametrize("name", ["smoke", "paper", "micro", "smoke_agent_data", "real_tuned"])
def test_the_settings_of_the_kits_suites_are_read_as_they_are(name):
    suite = load_suite(name)
    own = as_dict(suite.model_validate(settings_here(as_dict(suite))))
    assert own == as_dict(suite)
    assert recorded.MOST_ENTRIES < 10_000
