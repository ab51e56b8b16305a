"""A plugin of pytest: coverage.py counts the lines of a test, or of a fixture that several tests share, under its name.

A test is named without its parameters; a fixture is `fixture NAME of FOLDER`. `COVERED_BY` names the test to the
processes that it starts. Each test adds a row to the file `TESTS_RUN`: name, seconds, passed, shared fixtures.
"""

import json
import os
import time
from pathlib import Path

import pytest
from coverage import Coverage


def _switch(name: str) -> None:
    os.environ["COVERED_BY"] = name
    if running := Coverage.current():
        running.switch_context(name)


os.register_at_fork(after_in_child=lambda: _switch(os.environ.get("COVERED_BY", "")))


def _name(fixture: pytest.FixtureDef[object]) -> str:
    return f"fixture {fixture.argname} of {fixture.baseid}"


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef):
    before = os.environ.get("COVERED_BY", "")
    if fixturedef.scope != "function":
        _switch(_name(fixturedef))
    try:
        return (yield)
    finally:
        _switch(before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    test, started = item.nodeid.partition("[")[0], time.monotonic()
    item.stash[FAILED] = False
    _switch(test)
    yield
    _switch("")
    found = (item.session._fixturemanager.getfixturedefs(name, item) or () for name in item.fixturenames)
    shared = {_name(fixture) for each in found for fixture in each if fixture.scope != "function"}
    row = [test, time.monotonic() - started, not item.stash[FAILED], sorted(shared)]
    with Path(os.environ["TESTS_RUN"]).open("a") as file:
        file.write(json.dumps(row) + "\n")
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    item.stash[FAILED] |= report.failed or report.skipped
    return report


FAILED = pytest.StashKey[bool]()
