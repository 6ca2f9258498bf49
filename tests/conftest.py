"""Fixtures that several folders of tests share."""

from __future__ import annotations

import pytest

from tests.whole_run import make_whole_run


@pytest.fixture(scope="session")
def whole_run(tmp_path_factory):
    """A finished run in the corridor, made once a session by the real driver. To be copied before it is changed."""
    return make_whole_run(tmp_path_factory.mktemp("whole") / "corridor-seed0")
