"""run.sh: what it asks of a machine, said in one line each. Set-up itself is what a fresh clone does."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BASICS = ("bash", "dirname", "sha256sum", "cat", "rm", "env")


@pytest.fixture
def clone(tmp_path) -> Path:
    """A folder with run.sh, requirements that are nothing, and a search path with the basics alone."""
    (tmp_path / "repo").mkdir()
    shutil.copy(ROOT / "run.sh", tmp_path / "repo")
    (tmp_path / "repo" / "requirements.txt").write_text("# nothing\n")
    (tmp_path / "bin").mkdir()
    for tool in BASICS:
        add_tool(tmp_path, tool, f'exec {shutil.which(tool)} "$@"')
    return tmp_path


def add_tool(clone: Path, name: str, script: str) -> None:
    path = clone / "bin" / name
    path.write_text(f"#!{shutil.which('bash')}\n{script}\n")
    path.chmod(0o755)


def run(clone: Path, *flags: str, **environment: str) -> subprocess.CompletedProcess:
    command = [shutil.which("bash"), str(clone / "repo" / "run.sh"), *flags]
    return subprocess.run(command, env={"PATH": str(clone / "bin"), "HOME": str(clone), **environment},
                          capture_output=True, text=True, timeout=120)  # fmt: skip


def test_what_is_missing_is_named_one_after_the_other(clone):
    for missing, tool in (("g++ not found", "g++"), ("cmake not found", "cmake")):
        done = run(clone)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
        assert done.stderr.startswith(f"error: {missing}") and "apt install" in done.stderr
        add_tool(clone, tool, "exit 0")
    done = run(clone)
    assert done.returncode == 2 and done.stderr.startswith("error: Python 3.11 not found; install it")
    add_tool(clone, "python3.11", f'case "$*" in *ensurepip*) exit 1;; esac; exec {sys.executable} "$@"')
    done = run(clone)
    assert done.returncode == 2 and "cannot make virtual environments; install its venv module" in done.stderr
    assert not (clone / "repo" / ".venv").exists()


def test_an_active_environment_of_another_python_is_refused(clone):
    for tool in ("g++", "cmake"):
        add_tool(clone, tool, "exit 0")
    done = run(clone, VIRTUAL_ENV=str(clone / "elsewhere"))
    assert done.returncode == 2
    assert f"the active environment {clone}/elsewhere has no Python 3.11" in done.stderr


def test_an_active_environment_is_used_and_installed_into_once(clone):
    for tool in ("g++", "cmake"):
        add_tool(clone, tool, "exit 0")
    active = clone / "active"
    (active / "bin").mkdir(parents=True)
    log = clone / "calls"
    python = active / "bin" / "python"
    python.write_text(f'#!{shutil.which("bash")}\ncase "$1" in -c) exit 0;; esac\necho "$*" >>{log}\n')
    python.chmod(0o755)
    for flags in (("--seed", "3"), ("test", "-x"), ("test",)):
        assert run(clone, *flags, VIRTUAL_ENV=str(active)).returncode == 0
    assert log.read_text().splitlines() == [
        "-m pip install --disable-pip-version-check -r requirements.txt",
        "-m pipeline --seed 3",
        "-m pytest -x",
        "-m ruff check .",
        "-m ruff format --check .",
        "-m pytest",
    ]
    (clone / "repo" / "requirements.txt").write_text("# something else\n")
    run(clone, VIRTUAL_ENV=str(active))
    assert "pip install" in log.read_text().splitlines()[-2]
    assert not (clone / "repo" / ".venv").exists()


def test_ci_runs_the_tests_through_run_sh():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text().endswith("\nbash run.sh test\nbash .ci/vllm\n")
