"""The terminal session, over the toy world and, with the reward's parts, over the shop."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from env_adapters.play import main, play
from tests.corridor import CorridorAdapter

ROOT = Path(__file__).resolve().parents[2]


def session(typed):
    adapter, shown = CorridorAdapter(CorridorAdapter.Options()), []
    play(adapter, adapter.make(), adapter.tasks("far")[1], typed, shown.append)
    return shown


def test_an_episode_is_played_to_its_end():
    shown = session(["?", "fly", "wait", "!", "right", "right"])  # two rooms: right, right is the door
    assert "task: find the door" in shown[0] and "room 0 of 2" in shown[0]
    assert shown[1] == "left\nright\nwait"
    assert shown[2].startswith("not an action here")
    assert shown[3] == "\n(nothing happened)\nroom 0 of 2"
    assert shown[4:6] == ["> right", "\nroom 1 of 2"]
    assert shown[-1] == "\nsuccess, reward 1, score 1, turns 4"  # fly, wait, the expert's right, right
    assert len(shown) == 8


def test_an_empty_line_ends_it():
    assert len(session(["", "right"])) == len(session(["q"])) == 1


def run(name, *flags, typed):
    return subprocess.run(
        [sys.executable, "-m", f"env_adapters.{name}", "play", *flags], input=typed, text=True, capture_output=True,
        cwd=ROOT, timeout=120,
    )  # fmt: skip


def test_shopping_in_a_terminal_shows_the_parts_of_the_reward(tmp_path):
    flags = ("--split", "test", "--set", f"cache_dir={tmp_path}", "--set", "catalogue=tiny", "--set", "products=60")
    done = run("webshop", *flags, typed="!\n!\n!\n!\n!\n")
    assert done.returncode == 0, done.stderr
    assert "WebShop [SEP] Instruction: [SEP] " in done.stdout
    for part in (
        "success, reward 10, score 1",
        "r_type: 1.0",
        "attributes: ",
        "options: ",
        "price: True",
        "score: 1.0",
    ):
        assert part in done.stdout, part


def test_what_is_wrong_is_one_line(tmp_path, capsys):
    for flags, words in (
        (["--set", "seed"], "must be option=value"),
        (["--set", "sed=1"], "did you mean seed?"),
        (["--set", f"cache_dir={tmp_path}", "--set", "products=20", "--task", "5000"], "numbered from 0"),
        (["--set", f"cache_dir={tmp_path}", "--set", "products=20", "--split", "tset"], "webshop has train, "),
    ):
        assert main("webshop", ["play", *flags]) == 2
        found = capsys.readouterr().err
        assert words in found and found.startswith("error: ") and found.count("\n") == 1, found
