"""A browser for pages, where there is one."""

import shutil

import pytest
from report.view.chromium import Browser


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """A browser, where there is one."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no chromium on this machine (Debian: apt-get install chromium): its pages are not opened")
    one = Browser(program, tmp_path_factory.mktemp("profile"))
    yield one
    one.close()
