"""A plugin of pytest: coverage.py counts the lines of a test, or of a fixture that several tests share, under its name.

A test is named without its parameters; a fixture is `fixture NAME of FOLDER`. `COVERED_BY` names the test to the
processes that it starts. Each test adds a row to the file `TESTS_RUN`: name, seconds without those of shared fixtures,
passed, shared fixtures; each shared fixture one with its name and seconds.
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
    if fixturedef.scope == "function":
        return (yield)
    before, started = os.environ.get("COVERED_BY", ""), time.monotonic()
    _switch(_name(fixturedef))
    try:
        return (yield)
    finally:
        _switch(before)
        SPENT.append(time.monotonic() - started)
        _write(_name(fixturedef), SPENT[-1], True, [])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    test, started = item.nodeid.partition("[")[0], time.monotonic()
    item.stash[FAILED] = False
    SPENT.clear()
    _switch(test)
    yield
    _switch("")
    found = (item.session._fixturemanager.getfixturedefs(name, item) or () for name in item.fixturenames)
    shared = {_name(fixture) for each in found for fixture in each if fixture.scope != "function"}
    _write(test, time.monotonic() - started - sum(SPENT), not item.stash[FAILED], sorted(shared))
    return True


def _write(*row):
    with Path(os.environ["TESTS_RUN"]).open("a") as file:
        file.write(json.dumps(row) + "\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    item.stash[FAILED] |= report.failed or report.skipped
    return report


FAILED = pytest.StashKey[bool]()
#: Seconds of the shared fixtures that the current test has set up.
SPENT: list[float] = []
