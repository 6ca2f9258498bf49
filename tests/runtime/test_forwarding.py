"""Numbers on their way to a service: once each, in order, over several starts; and services that fail in every way.

The services' packages are no requirement: small modules of the same name stand in for them where what is tested is the
way there, and the real ones are used where they are installed.
"""

import importlib.util
import json
import os
import sqlite3
import subprocess
import sys
import time

import pytest

from runtime.forwarding import ROOT, Forwarder
from runtime.metrics import MetricsLog

RECORDER = """
import json, os
def tell(**entry):
    with open(os.environ["TOLD"], "a") as file:
        file.write(json.dumps(entry) + "\\n")
def init(project, name, config, resume, embed):
    print("noise of the library")
    tell(project=project, name=name, config=config, resume=resume)
    return Run()
class Run:
    def log(self, line, step):
        tell(step=step, **line)
    def finish(self):
        tell(finished=True)
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """stand_in("trackio", source) puts a module in the place of a service's package; `told` is what it recorded."""
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))

    def put(service: str, source: str) -> None:
        (folder / f"{service}.py").write_text(source)

    put.told = lambda: [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]
    return put


def write(run_dir, *lines) -> None:
    log = MetricsLog(run_dir / "metrics.jsonl")
    for stage, iteration, metrics in lines:
        log.write(stage, iteration, 2.5, metrics)
    log.close()


def errors(run_dir) -> list[dict]:
    return [json.loads(line) for line in (run_dir / "errors.jsonl").read_text().splitlines()]


def test_each_line_goes_out_once_over_two_starts(tmp_path, stand_in, monkeypatch, capfd):
    stand_in("trackio", RECORDER)
    monkeypatch.setenv("TRACKIO_PROJECT", "household")
    run_dir = tmp_path / "X"
    run_dir.mkdir()
    (run_dir / "config.yaml").write_text("run: {seed: 3}\n")
    first = Forwarder("trackio", run_dir)
    write(run_dir, ("optimize", 1, {"sapo/approx_kl": 0.25, "sapo/entropy": float("nan")}), ("evaluate", 0, {}))
    first.close(60.0)
    write(run_dir, ("optimize", 2, {"sapo/approx_kl": 0.5}))
    second = Forwarder("trackio", run_dir)
    write(run_dir, ("export", 0, {}))
    second.close(60.0)
    name = f"X-{json.loads((run_dir / 'trackio.json').read_text())['id']}"
    start = {"project": "household", "name": name, "config": {"run": {"seed": 3}}, "resume": "allow"}
    assert stand_in.told() == [
        start, {"step": 1, "sapo/approx_kl": 0.25, "time/optimize_s": 2.5}, {"step": 0, "time/evaluate_s": 2.5},
        {"finished": True},
        start, {"step": 2, "sapo/approx_kl": 0.5, "time/optimize_s": 2.5}, {"step": 0, "time/export_s": 2.5},
        {"finished": True},
    ]  # fmt: skip
    said = capfd.readouterr()
    assert said.out == "" and said.err.count(f"trackio: {name}, `trackio show") == 2
    assert "noise of the library" in (run_dir / "trackio.log").read_text()
    assert not (run_dir / "errors.jsonl").exists()


@pytest.mark.parametrize(
    ("service", "source", "reason"),
    [
        ("trackio", "raise ValueError('no\\nsuch space')", "trackio: ValueError: no such space; the numbers are in"),
        ("trackio", "import nothing_of_the_kind", "nothing_of_the_kind is not installed (pip install trackio)"),
        (
            "wandb",
            "class errors:\n  UsageError = KeyError\ndef init(**_): raise ConnectionError('unreachable')",
            "wandb: ConnectionError: unreachable; the numbers are in metrics.jsonl, and `python -m runtime.forwarding",
        ),
    ],
    ids=["refused", "not installed", "unreachable"],
)
def test_a_service_that_fails_is_one_line(tmp_path, stand_in, capfd, service, source, reason):
    stand_in(service, source)
    forwarder = Forwarder(service, tmp_path)
    write(tmp_path, ("optimize", 1, {"a": 1.0}))
    forwarder.close(60.0)
    said = capfd.readouterr().err
    assert said.startswith("warning: ") and reason in said and said.count("\n") == 1
    (entry,) = errors(tmp_path)
    assert entry["message"] in said and (entry["stage"], entry["stopped"]) == ("logging", False)
    write(tmp_path, ("optimize", 2, {"a": 2.0}))  # training goes on
    assert not (tmp_path / f"{service}.json").exists()


def test_a_service_that_hangs_is_left(tmp_path, stand_in):
    stand_in("wandb", "import time\ntime.sleep(3600)")
    forwarder = Forwarder("wandb", tmp_path)
    begin = time.monotonic()
    forwarder.close(0.5)
    assert time.monotonic() - begin < 30
    assert forwarder._process.poll() is not None


def test_a_service_that_dies_halfway_keeps_the_rest_for_later(tmp_path, stand_in):
    dying = RECORDER.replace("    def finish", "        if step == 2: raise OSError('gone')\n    def finish")
    stand_in("trackio", dying)
    write(tmp_path, ("optimize", 1, {"a": 1.0}))
    command = [sys.executable, "-m", "runtime.forwarding", "trackio", str(tmp_path)]
    assert subprocess.run(command, cwd=ROOT, stderr=subprocess.DEVNULL).returncode == 0
    write(tmp_path, ("optimize", 2, {"a": 2.0}))
    assert subprocess.run(command, cwd=ROOT, stderr=subprocess.DEVNULL).returncode == 1
    stand_in("trackio", RECORDER)
    assert subprocess.run(command, cwd=ROOT, stderr=subprocess.DEVNULL).returncode == 0
    assert [entry["step"] for entry in stand_in.told() if "step" in entry] == [1, 2, 2]


@pytest.mark.skipif(importlib.util.find_spec("trackio") is None, reason="trackio is not installed")
def test_the_real_trackio(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    run_dir = tmp_path / "X"
    run_dir.mkdir()
    write(run_dir, ("optimize", 3, {"sapo/approx_kl": 0.25}))
    Forwarder("trackio", run_dir).close(300.0)
    (database,) = (tmp_path / "trackio").glob("*.db")
    rows = sqlite3.connect(database).execute("select step, metrics from metrics").fetchall()
    assert [(step, json.loads(metrics)["sapo/approx_kl"]) for step, metrics in rows] == [(3, 0.25)]


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is not installed")
def test_the_real_wandb_without_a_login(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))  # where a login would be
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    run_dir = tmp_path / "X"
    run_dir.mkdir()
    write(run_dir, ("optimize", 3, {"sapo/approx_kl": 0.25}))
    Forwarder("wandb", run_dir).close(300.0)
    assert json.loads((run_dir / "wandb.json").read_text())["lines"] == 1
    (file,) = (run_dir / "wandb").glob("offline-run-*/*.wandb")
    assert b"sapo/approx_kl" in file.read_bytes()
