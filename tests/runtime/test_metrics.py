"""metrics.jsonl and TensorBoard events."""

import json
import math
import os

import pytest

from runtime.metrics import MetricsLog, read_metrics


def test_lines_are_json_with_none_for_what_json_cannot_hold(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.write("optimize", 3, 1.23456, {"sapo/approx_kl": 0.25, "sapo/entropy": math.nan, "x": math.inf})
    log.close()
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {
        "stage": "optimize", "iteration": 3, "seconds": 1.235, "sapo/approx_kl": 0.25, "sapo/entropy": None, "x": None,
    }  # fmt: skip


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_torn_last_line_is_dropped_and_the_next_one_is_whole(tmp_path, cut):
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    log.write("optimize", 1, 1.0, {"a": 1.0})
    log.write("optimize", 2, 1.0, {"a": 2.0})
    log.close()
    path.write_bytes(path.read_bytes()[:-cut])
    log = MetricsLog(path)
    assert log.has("optimize", 1) and not log.has("optimize", 2)
    log.write("optimize", 2, 1.0, {"a": 2.0})
    log.close()
    assert [(line["iteration"], line["a"]) for line in read_metrics(path)] == [(1, 1.0), (2, 2.0)]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
def test_a_full_disk_is_one_error_and_closing_is_none(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log._file.close()
    log._file = open("/dev/full", "w")  # takes nothing, as a full disk
    with pytest.raises(OSError, match="No space left on device"):
        log.write("optimize", 1, 1.0, {"a": 1.0})
    log.close()


def test_lines_that_are_no_metrics_are_skipped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'\xff\xfe\n[1]\n{"stage": 3}\n{"stage": "evaluate", "iteration": 0}\n')
    assert read_metrics(path) == [{"stage": "evaluate", "iteration": 0}]


def test_tensorboard_gets_the_same_numbers(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = MetricsLog(tmp_path / "metrics.jsonl", tmp_path / "tensorboard")
    log.write("collect_rollouts", 7, 2.5, {"rollout/success": 0.375})
    log.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    (success,) = events.Scalars("rollout/success")
    (seconds,) = events.Scalars("time/collect_rollouts_s")
    assert (success.step, success.value, seconds.value) == (7, 0.375, 2.5)
