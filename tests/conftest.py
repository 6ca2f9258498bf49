"""Fixtures that several folders of tests share."""

from __future__ import annotations

import pytest

from tests.algorithm_runs import make_algorithm_runs
from tests.chromium import Browser, find_chromium
from tests.whole_run import make_whole_run


@pytest.fixture(scope="session")
def whole_run(tmp_path_factory):
    """A finished run in the corridor, made once a session by the real driver. To be copied before it is changed."""
    return make_whole_run(tmp_path_factory.mktemp("whole") / "corridor-seed0")


@pytest.fixture(scope="session")
def algorithm_runs(tmp_path_factory):
    """A folder with a finished run of every algorithm (tests/algorithm_runs.py), made once a session."""
    return make_algorithm_runs(tmp_path_factory.mktemp("algorithms"))


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A headless Chromium with a profile of its own."""
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium on this machine (Debian: apt install chromium)")
    with Browser(program, tmp_path_factory.mktemp("profile")) as browser:
        yield browser
