"""Progress where the output is no terminal, and clocks."""

import io

from runtime import progress
from runtime.progress import LineBar, Progress, ProgressReport, clock


def test_a_line_says_how_much_is_done_and_left():
    bar = LineBar(64, "rollouts", "tasks", io.StringIO())
    bar.update(48)
    bar.note(success="0.41")
    # 30 s for 48 tasks: 16 tasks left take 30 * 16 / 48 = 10 s
    assert bar.line(30.0) == "rollouts: 48/64 tasks (75%), 00:30 gone, 00:10 left, success 0.41"


def test_what_an_earlier_process_did_is_no_speed_of_this_one():
    bar = LineBar(64, "rollouts", "episode", io.StringIO(), before=40)
    bar.update(8)
    # 8 episodes in 30 s: 16 left take 60 s, not the 10 s that 48 in 30 s would give
    assert bar.line(30.0) == "rollouts: 48/64 episode (75%), 00:30 gone, 01:00 left"


def test_without_a_total_there_is_no_share():
    bar = LineBar(0, "scan", "files", io.StringIO())
    bar.update(5)
    assert bar.line(61.0) == "scan: 5 files, 01:01 gone"


def test_lines_are_rare(monkeypatch):
    stream = io.StringIO()
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with Progress(True, stream)(10, "optimize", "turns") as bar:
        for _ in range(10):
            now[0] += 10.0
            bar.update()
    # at 30, 60 and 90 of 100 seconds
    assert [line.split("(")[0] for line in stream.getvalue().splitlines()] == [
        "optimize: 3/10 turns ", "optimize: 6/10 turns ", "optimize: 9/10 turns ",
    ]  # fmt: skip


def test_other_ranks_are_silent():
    stream = io.StringIO()
    with Progress(False, stream)(3, "x") as bar:
        bar.update(3)
        bar.note(a=1)
    assert bar.done == 3 and stream.getvalue() == ""


def test_a_report_of_totals_becomes_a_bar_for_each_work():
    made = []

    class Recording(Progress):
        def __call__(self, total, what, unit="it", before=0):
            made.append(super().__call__(total, what, unit, before))
            return made[-1]

    report = ProgressReport(Recording(False))
    for done in (1, 5, 9):
        report(done, 9, "train games")
    report(2, 4, "unseen games")
    report.close()
    assert [(bar.what, bar.done, bar.total) for bar in made] == [("train games", 9, 9), ("unseen games", 2, 4)]


def test_clock():
    assert (clock(75), clock(3675), clock(59.6)) == ("01:15", "1:01:15", "01:00")
