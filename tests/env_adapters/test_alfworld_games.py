"""Generated games, their packs and splits, real folders, bad files."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from env_adapters.alfworld import generate, layouts, prepare
from env_adapters.alfworld.games import detect_grammar, export, installed_logic, read_game_folder
from env_adapters.alfworld.scenes import TASK_TYPES
from env_adapters.base import EnvironmentFault, Task
from env_adapters.disk import locked
from env_adapters.registry import make_adapter

LOGIC = generate.Logic("domain", 'text "rhs": "Your task is to: UNKNOWN GOAL."\n')


def made(split, count, scene="tiny", seed=0, taken=None):
    taken = set() if taken is None else taken
    return list(generate.generate(split, count, scene, seed, LOGIC, "move", taken))


# ------------------------------------------------------------------------------------------------- the generator
def test_same_seed_same_bytes_in_another_process():
    code = (
        "import json, sys; sys.path.insert(0, 'tests/env_adapters')\n"
        "from env_adapters.alfworld import generate as g\n"
        "logic = g.Logic('domain', 'UNKNOWN GOAL')\n"
        "games = g.generate('train', 24, 'tiny', 5, logic, 'move', set())\n"
        "print(json.dumps([[x.task_id, x.data, x.traj] for x in games], sort_keys=True))\n"
    )
    outs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": "."},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outs[0] == outs[1]
    assert len(outs[0]) > 10_000
    assert made("train", 6, seed=5)[0].data != made("train", 6, seed=6)[0].data


@pytest.mark.parametrize("scene", ["tiny", "small", "full"])
def test_unseen_shares_no_layout_and_no_goal_pair(scene):
    taken = set()
    games = {split: made(split, 240, scene, taken=taken) for split in generate.SPLITS}
    common = [game for split in generate.SPLITS if split != "unseen" for game in games[split]]
    pairs = {(g.goal.object, g.goal.receptacle) for g in common}
    unseen_pairs = {(g.goal.object, g.goal.receptacle) for g in games["unseen"]}
    assert not pairs & unseen_pairs
    assert not {g.layout.classes for g in common} & {g.layout.classes for g in games["unseen"]}
    # ... but nothing in it is a word that training cannot meet
    cells = [cell for t in TASK_TYPES for _, found in layouts.cells(scene, 0, False, t) for cell in found]
    assert {o for o, _ in unseen_pairs} <= {goal.object for goal, _ in cells}
    assert {r for _, r in unseen_pairs} <= {goal.receptacle for goal, _ in cells}
    assert len(taken) == 240 * 5  # no two games alike, over all splits
    names = [g.task_id for split in games.values() for g in split]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("scene", ["tiny", "full"])
def test_held_out_splits_are_even_over_types_and_have_many_objects(scene):
    for split in ("seen", "unseen"):
        games = made(split, 300, scene)
        for task_type in TASK_TYPES:
            of_type = [g for g in games if g.goal.task_type == task_type]
            assert len(of_type) == 50
            objects = {g.goal.object for g in of_type}
            assert len(objects) >= 5, (split, task_type, objects)


def test_tiny_scenes_are_tiny_and_hide_things():
    games = made("train", 120)
    for game in games:
        assert 4 <= len(game.layout.classes) <= 5
        start = game.data["pddl_problem"].split("(:goal")[0]
        assert 3 <= start.count("(inReceptacle") <= 4
    assert sum(any(a.startswith("open") for a in g.data["walkthrough"]) for g in games) > 40


def test_small_scenes_are_twice_as_large_and_their_tasks_have_several_steps():
    games = made("train", 120, "small")
    assert {g.goal.task_type for g in games} == set(TASK_TYPES[2:])  # no plain picking, no lamp
    sizes = [len(game.layout.classes) for game in games]
    assert min(sizes) == 8 and max(sizes) == 9
    tiny = [g for g in made("train", 120) if g.goal.task_type in TASK_TYPES[2:]]
    lengths = [[len(g.data["walkthrough"]) for g in some] for some in (games, tiny)]
    assert min(lengths[0]) >= 4 and sum(lengths[0]) / len(lengths[0]) >= sum(lengths[1]) / len(lengths[1])


def test_a_split_that_cannot_be_filled_is_refused():
    with pytest.raises(EnvironmentFault, match="repeats others; ask for fewer games"):
        taken = set()
        for game in made("train", 6, taken=taken):
            assert game
        # every further game of the first kind is declared known
        made("train", 6, taken=_Everything())


class _Everything(set):
    def __contains__(self, item):
        return True


# --------------------------------------------------------------------------------------------------- preparation
def test_progress_and_manifest(make, cache_dir):
    adapter = make(seed=11)
    seen = []
    adapter.prepare(lambda done, total, what: seen.append((done, total, what)))
    assert seen == []  # nothing to do the second time
    facts = adapter.description()
    assert facts["counts"] == {"warm_start": 12, "train": 18, "dev": 6, "seen": 12, "unseen": 12}
    assert facts["grammars"] == {"move": 60}
    assert facts["source"] == "generated"
    assert all(len(digest) == 64 for digest in facts["sha256"].values())


def test_not_prepared_is_said(tmp_path):
    adapter = make_adapter("alfworld", {"source": "generated", "cache_dir": str(tmp_path)})
    with pytest.raises(EnvironmentFault, match=r"is not ready; call prepare\(\) first"):
        adapter.tasks("train")


KILLED = """
import sys
from env_adapters.alfworld import prepare
from env_adapters.registry import make_adapter
prepare.PACK_SIZE = 6
adapter = make_adapter("alfworld", {"source": "generated", "cache_dir": sys.argv[1], "train_games": 36,
    "warm_start_games": 6, "dev_games": 6, "held_out_games": 6, "prepare_processes": 1})
adapter.prepare(lambda done, total, what: print(done, flush=True))
print(adapter.description()["sha256"]["train"])
"""


def test_a_killed_preparation_goes_on_where_it_was(tmp_path, monkeypatch):
    def start(folder):
        return subprocess.Popen([sys.executable, "-c", KILLED, str(folder)], stdout=subprocess.PIPE, text=True)

    victim = start(tmp_path / "cut")
    while int(victim.stdout.readline()) < 18:
        pass
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    packs = {p: p.stat().st_mtime_ns for p in (tmp_path / "cut").rglob("*.pack")}
    assert len(packs) >= 3
    assert not list((tmp_path / "cut").rglob("manifest.json"))
    torn = sorted(packs)[0]
    torn.write_bytes(torn.read_bytes()[:-10])  # as if the disk had lost its end
    (torn.parent / f".{torn.name}.999.tmp").write_bytes(b"left over")

    lines = start(tmp_path / "cut").communicate()[0].split()
    assert int(lines[0]) == 6 * (len(packs) - 1)  # whole packs count as done at once
    assert not list((tmp_path / "cut").rglob("*.tmp"))
    whole = start(tmp_path / "whole").communicate()[0].split()
    assert lines[-1] == whole[-1]
    for path, stamp in packs.items():
        assert (path.stat().st_mtime_ns == stamp) == (path != torn)


def test_a_game_that_cannot_be_won_is_the_generators_fault(tmp_path, monkeypatch):
    honest = generate.build_game

    def dishonest(*args):
        data, traj, signature = honest(*args)
        return {**data, "walkthrough": data["walkthrough"][:-1]}, traj, signature

    monkeypatch.setattr(generate, "build_game", dishonest)
    with pytest.raises(EnvironmentFault, match="6 of 6 generated games .* the walkthrough does not win"):
        prepare.prepare_games(tmp_path, {"train": 6}, "tiny", 0, installed_logic(), "move", {}, 1)
    assert not list(tmp_path.glob("*.pack"))
    assert not (tmp_path / prepare.MANIFEST).exists()


def test_two_processes_make_the_same_games_as_one(tmp_path):
    for name, processes in (("one", 1), ("two", 2)):
        monkey = prepare.SMALL_JOB
        prepare.SMALL_JOB = 0
        try:
            folder = tmp_path / name
            prepare.prepare_games(folder, {"train": 12}, "tiny", 3, installed_logic(), "move", {}, processes)
        finally:
            prepare.SMALL_JOB = monkey
    one, two = (json.loads((tmp_path / name / prepare.MANIFEST).read_text()) for name in ("one", "two"))
    assert one == two


def test_a_damaged_pack_is_named(make, tmp_path):
    adapter = make(cache_dir=str(tmp_path), train_games=6, warm_start_games=6, held_out_games=6)
    pack = next(tmp_path.rglob("train-000.pack"))
    content = bytearray(pack.read_bytes())
    content[-2000:] = bytes(2000)
    pack.write_bytes(bytes(content))
    environment = adapter.make()
    with pytest.raises(EnvironmentFault, match="train-000.pack"):
        environment.reset(adapter.tasks("train")[-1])
    pack.write_bytes(content[:100])
    again = make_adapter("alfworld", {**vars(adapter.options)})
    with pytest.raises(EnvironmentFault, match=r"train-000.pack: damaged; prepare\(\) makes it again"):
        again.tasks("train")


@pytest.mark.parametrize("content", ["", "{", "{}", '{"packs": {"train": ["train-000.pack"]}}'])
def test_what_is_damaged_is_made_again(make, tmp_path, content):
    adapter = make(cache_dir=str(tmp_path), train_games=6, warm_start_games=6, held_out_games=6)
    pack, manifest = next(tmp_path.rglob("train-000.pack")), next(tmp_path.rglob("manifest.json"))
    before = pack.read_bytes(), manifest.read_bytes()
    pack.write_bytes(before[0][:100])
    manifest.write_text(content)
    adapter.prepare()
    assert (pack.read_bytes(), manifest.read_bytes()) == before


# -------------------------------------------------------------------------------------------------- real folders
@pytest.fixture(scope="module")
def real_root(make, tmp_path_factory):
    """Generated games of both text generations, written as the real data lies."""
    root = tmp_path_factory.mktemp("real")
    for grammar, split in (("put", "train"), ("move", "seen"), ("put", "unseen")):
        export(make(grammar=grammar)._load(), split, root)
    return root


def test_real_folders_are_found_and_played(real_root, tmp_path, monkeypatch):
    monkeypatch.setenv("ALFWORLD_DATA", str(real_root))
    adapter = make_adapter("alfworld", {"cache_dir": str(tmp_path), "warm_start_games": 4, "dev_games": 1})
    adapter.prepare()
    facts = adapter.description()
    assert facts["source"] == "real"
    assert facts["counts"] == {"warm_start": 4, "train": 13, "dev": 1, "seen": 12, "unseen": 12}
    assert facts["grammars"] == {"put": 30, "move": 12}
    assert adapter.prompt_form == "published"
    environment = adapter.make()
    for split in facts["counts"]:
        for task in adapter.tasks(split):
            environment.reset(task)
            turns = 0
            while (action := environment.expert_action()) is not None:
                result = environment.step(adapter.response(action))
                turns += 1
            assert result.success, task.task_id
            assert turns == len(environment._walkthrough)
    # a step off the walkthrough, and the expert has no more to say
    task = adapter.tasks("train")[0]
    environment.reset(task)
    environment.step(adapter.response("look"))
    assert environment.expert_action() is None
    # the second adapter reads kept scans and translations
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.*")}
    again = make_adapter("alfworld", {"cache_dir": str(tmp_path), "warm_start_games": 4, "dev_games": 1})
    assert again.tasks("train") == adapter.tasks("train")
    again.make().reset(task)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.*")} == before


def test_real_and_packed_games_are_the_same_game(make, real_root):
    adapter = make(grammar="put")
    task = adapter.tasks("train")[3]
    packed = adapter._load().read(task)
    data, traj = read_game_folder(real_root / "json_2.1.1" / "train" / task.task_id.split("/", 1)[1])
    assert data == packed.data
    assert traj == packed.traj


def test_missing_real_games_are_said(tmp_path):
    with pytest.raises(EnvironmentFault, match="json_2.1.1 has none of .*; run alfworld-download"):
        make_adapter("alfworld", {"source": "real", "data_dir": str(tmp_path)})
    assert make_adapter("alfworld", {"source": "generated", "data_dir": str(tmp_path)}).source == "generated"


def test_both_grammars_are_told_apart():
    assert detect_grammar(installed_logic("move").grammar) == "move"
    assert detect_grammar(installed_logic("put").grammar) == "put"
    assert detect_grammar("no grammar at all") == "other"
    assert "help" in installed_logic("move").grammar
    assert "action help" not in installed_logic("put").grammar
    assert "help" not in installed_logic("put").domain


BAD_FILES = [
    ("not json", lambda g, t: ("{nonsense", t), "game.tw-pddl: is not readable JSON"),
    ("binary", lambda g, t: (b"\xff\xfe\x00", t), "game.tw-pddl: is not readable JSON"),
    ("nested", lambda g, t: ("[" * 100_000, t), "game.tw-pddl: is not readable JSON"),
    ("a list", lambda g, t: ("[]", t), "game.tw-pddl: is not a JSON object"),
    ("no grammar", lambda g, t: ({k: v for k, v in g.items() if k != "grammar"}, t), "game.tw-pddl: lacks grammar"),
    ("no solvable", lambda g, t: ({k: v for k, v in g.items() if k != "solvable"}, t), "lacks solvable"),
    ("unsolvable", lambda g, t: ({**g, "solvable": False}, t), "game.tw-pddl: is marked unsolvable"),
    ("no text", lambda g, t: ({**g, "pddl_problem": 3}, t), "game.tw-pddl: pddl_problem is not text"),
    ("traj", lambda g, t: (g, {"task_type": "dance"}), "traj_data.json: task_type is none of"),
    ("no game", lambda g, t: (None, t), "game.tw-pddl: no such file"),
]


@pytest.mark.parametrize(("case", "spoil", "message"), BAD_FILES, ids=[case for case, _, _ in BAD_FILES])
def test_bad_files_are_named_when_wanted_and_counted_in_a_scan(make, tmp_path, case, spoil, message):
    games = make()._load()
    root = tmp_path / "data"
    for number, task in enumerate(games.tasks("train")[:3]):
        stored = games.read(task)
        parts = (dict(stored.data), dict(stored.traj))
        folder = root / "json_2.1.1" / "train" / f"game-{number}" / "trial_0"
        folder.mkdir(parents=True)
        for name, content in zip(
            ("game.tw-pddl", "traj_data.json"), spoil(*parts) if number == 1 else parts, strict=True
        ):
            if content is None:
                continue
            content = json.dumps(content) if isinstance(content, dict) else content
            (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    options = {"data_dir": str(root), "cache_dir": str(tmp_path / "cache"), "warm_start_games": 0, "dev_games": 0}
    adapter = make_adapter("alfworld", options)
    adapter.prepare()
    assert [t.task_id for t in adapter.tasks("train")] == ["train/game-0/trial_0", "train/game-2/trial_0"]
    assert sum(adapter.description()["skipped"].values()) == 1
    wanted = Task("train/x", "train", "pick_and_place_simple", {"game": "json_2.1.1/train/game-1/trial_0"})
    with pytest.raises(EnvironmentFault) as caught:
        adapter.make().reset(wanted)
    assert message in str(caught.value)
    assert "game-1" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_problem_that_does_not_translate_names_its_file(make, tmp_path):
    stored = make()._load().read(make().tasks("train")[0])
    folder = tmp_path / "json_2.1.1" / "train" / "game" / "trial_0"
    folder.mkdir(parents=True)
    (folder / "game.tw-pddl").write_text(json.dumps({**stored.data, "pddl_problem": "(define (problem x)"}))
    (folder / "traj_data.json").write_text(json.dumps(stored.traj))
    adapter = make_adapter("alfworld", {"data_dir": str(tmp_path), "cache_dir": str(tmp_path / "cache")})
    with pytest.raises(EnvironmentFault, match="game.tw-pddl: the PDDL problem does not translate"):
        adapter.make().reset(adapter.tasks("train")[0])


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    adapter = make_adapter("alfworld", {"source": "generated", "cache_dir": str(tmp_path / "file")})
    with pytest.raises(EnvironmentFault, match="cannot be made .*; set env.cache_dir"):
        adapter.prepare()


def test_a_lock_left_by_a_dead_process_does_not_block(tmp_path):
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time\nfrom pathlib import Path\nfrom env_adapters.disk import locked\n"
            "with locked(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)",
            str(tmp_path / "lock"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout.readline() == "held\n"
    holder.kill()
    holder.wait()
    start = time.monotonic()
    with locked(tmp_path / "lock"):
        assert time.monotonic() - start < 5
