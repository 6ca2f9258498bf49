import json
import subprocess
import sys
import tracemalloc
from dataclasses import replace

import pytest

from runtime import shards
from runtime.records import RecordError, Targets, Trajectory, Turn
from runtime.shards import ShardWriter, read_shards, read_targets, read_trajectories, shard_path, write_targets


def make(task_id: str = "train/a-1", response: str = "take mug 1", sample: int = 0, **changes) -> Trajectory:
    turn = Turn(
        "You see é.", ("take mug 1",), (5, 9), response, (42, 2), (-0.1, -0.02), "take mug 1", True, 0.5, 0.01, 0.2
    )
    fields = dict(
        task_id=task_id, sample=sample, split="train", task_type="pick", goal="put a mug", iteration=1, seed=7,
        policy="abc", temperature=1.0, status="terminated", success=True, score=1.0,
        turns=(turn, replace(turn, admissible_actions=None)),
    )  # fmt: skip
    return Trajectory(**{**fields, **changes})


def write(folder, trajectories, rank=0):
    path = shard_path(folder, rank)
    with ShardWriter(path) as shard:
        for one in trajectories:
            shard.append(one)
    return path


def test_round_trip_ordered_by_task_not_by_time(tmp_path):
    written = [make("train/b"), make("train/a", sample=1), make("train/a"), make("train/c")]
    write(tmp_path, written[:2], rank=1)
    write(tmp_path, written[2:], rank=0)
    assert read_trajectories(tmp_path) == [written[2], written[1], written[0], written[3]]
    assert read_trajectories(tmp_path / "nothing") == []


@pytest.mark.parametrize("text", ["\ud800 lone \udfff", "nul \0 nul", "line\u2028break\nand\rmore", "ü 漢 🙂", '"\\'])
def test_any_text_survives_on_one_ascii_line(tmp_path, text):
    path = write(tmp_path, [make(response=text)])
    content = path.read_bytes()
    assert content.count(b"\n") == 1 and content.isascii()
    assert read_trajectories(tmp_path)[0].turns[0].response == text


def test_a_person_can_read_the_first_line(tmp_path):
    path = write(tmp_path, [make(response="\ud800"), make("train/b")])
    command = f"head -n 1 {path} | {sys.executable} -m json.tool"
    shown = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True).stdout
    assert json.loads(shown)["turns"][0]["response_ids"] == [42, 2]


def test_cut_at_every_byte_of_the_last_record(tmp_path):
    first, second = make("train/a"), make("train/b", response="\ud800 é")
    whole = write(tmp_path / "whole", [first, second]).read_bytes()
    kept = len(whole[: whole.index(b"\n") + 1])
    path = shard_path(tmp_path, 0)
    for cut in range(kept, len(whole)):
        path.write_bytes(whole[:cut])
        shards = read_shards(tmp_path)
        assert shards.trajectories == (first,) and shards.num_torn == (cut > kept)
        with ShardWriter(path) as shard:
            assert path.read_bytes() == whole[:kept]
            assert shard.num_torn_bytes == cut - kept
            shard.append(second)
        assert path.read_bytes() == whole
    path.write_bytes(whole)
    with ShardWriter(path) as shard:
        assert shard.num_torn_bytes == 0
    assert path.read_bytes() == whole


def test_a_long_tail_without_any_newline_is_cut_whole(tmp_path):
    path = shard_path(tmp_path, 0)
    for size in (1, 65535, 65536, 65537, 200000):
        for head in (b"", b"{}\n"):
            path.write_bytes(head + b"x" * size)
            with ShardWriter(path) as shard:
                assert shard.num_torn_bytes == size
            assert path.read_bytes() == head


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (b'{"task_id": "x', "not JSON"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[1]", "JSON object"),
        (b"", "not JSON"),
        (b"[" * 100000, "not JSON"),
        (b'{"schema": 1}', "not a trajectory"),
        (b'{"schema": 99}', "schema 99"),
        (b'{"schema": 1, "turns": null}', "not a trajectory"),
    ],
)
def test_damage_before_the_end_names_file_and_line(tmp_path, damage, words):
    path = write(tmp_path, [make("train/a"), make("train/b")])
    first, second, _ = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([first, damage, second, b""]))
    with pytest.raises(RecordError, match=words) as caught:
        read_shards(tmp_path)
    assert f"{path}:2" in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("task_id", 5, "task_id is '5', expected str"),
        ("sample", True, "sample is 'True', expected int"),
        ("success", "false", "success is 'false', expected bool"),
        ("score", "high", "score is 'high', expected float"),
        ("temperature", None, "temperature is 'None', expected float"),
        ("turns.reward", "lots", "turn 0: reward is 'lots', expected float"),
        ("turns.reward", float("nan"), "turn 0: reward is 'nan', expected float"),
        ("turns.valid", "no", "turn 0: valid is 'no', expected bool"),
        ("turns.observation", 3, "turn 0: observation is '3', expected str"),
        ("turns.sampling_logprobs", ["a", "b"], "turn 0: sampling_logprobs must be finite"),
        ("turns.sampling_logprobs", [float("nan"), 0.0], "turn 0: sampling_logprobs must be finite"),
        ("turns.sampling_logprobs", [10**400, 0], "turn 0: sampling_logprobs must be finite"),
        ("turns.reward", 10**400, "turn 0: reward is '1000000"),
    ],
)
def test_a_value_of_the_wrong_kind_names_its_field(tmp_path, field, value, words):
    path = write(tmp_path, [make("train/a")])
    data = json.loads(path.read_bytes())
    holder = data["turns"][0] if field.startswith("turns.") else data
    holder[field.removeprefix("turns.")] = value
    path.write_text(json.dumps(data) + "\n")
    with pytest.raises(RecordError) as caught:
        read_shards(tmp_path)
    assert f"{path}:1: {words}" in str(caught.value) and "delete the line" in str(caught.value)


@pytest.mark.parametrize(
    ("status", "ends", "words"),
    [
        ("terminated", ({"terminated": True}, {}), "turn 0 of 2 says terminated"),
        ("terminated", ({}, {"truncated": True}), "turn 1 of 2 says truncated, the trajectory terminated"),
        ("error", ({}, {"terminated": True}), "turn 1 of 2 says terminated, the trajectory error"),
    ],
)
def test_an_end_that_contradicts_the_trajectory_is_refused(tmp_path, status, ends, words):
    good = make("train/a")
    ended = replace(good, turns=(good.turns[0], replace(good.turns[1], terminated=True)), task={"game": "a.json"})
    turns = tuple(replace(turn, **end) for turn, end in zip(good.turns, ends, strict=True))
    write(tmp_path, [ended, replace(good, task_id="train/b", status=status, turns=turns)])
    with pytest.raises(RecordError, match=words):
        read_shards(tmp_path)
    path = shard_path(tmp_path, 0)
    path.write_bytes(path.read_bytes().split(b"\n")[0] + b"\n")
    assert read_trajectories(tmp_path) == [ended]


def test_the_first_of_a_key_counts_unless_it_is_an_error(tmp_path):
    one, again = make("train/a", response="first"), make("train/a", response="second")
    lost = make("train/b", status="error", turns=(), error="gone")
    lost_again, found = replace(lost, error="gone again"), make("train/b", response="played again")
    write(tmp_path, [one, lost], rank=0)
    write(tmp_path, [again, lost_again, found, lost], rank=1)
    shards = read_shards(tmp_path)
    assert shards.trajectories == (one, found)
    assert shards.num_duplicates == 4


def test_a_second_writer_is_refused_and_a_dead_one_forgotten(tmp_path):
    path = shard_path(tmp_path, 0)
    with ShardWriter(path):
        with pytest.raises(RecordError, match="another process"):
            ShardWriter(path)
    code = f"import os; from runtime.shards import ShardWriter; s = ShardWriter({str(path)!r}); os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    ShardWriter(path).close()


def test_what_a_killed_writer_appended_is_there(tmp_path):
    code = (
        "import os; from tests.runtime.test_shards import make; from runtime.shards import ShardWriter;"
        f"s = ShardWriter({str(shard_path(tmp_path, 0))!r}); s.append(make()); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)})
    assert read_trajectories(tmp_path) == [make()]


def test_what_is_not_a_number_is_refused(tmp_path):
    with ShardWriter(shard_path(tmp_path, 0)) as shard:
        with pytest.raises(RecordError, match="finite"):
            shard.append(make(score=float("nan")))
        with pytest.raises(RecordError, match="a task's payload JSON"):
            shard.append(make(task={"games": {1, 2}}))
    assert shard_path(tmp_path, 0).read_bytes() == b""


def test_prefixes_keep_shards_apart(tmp_path):
    for prefix in ("seen-t0.4-", "unseen-t0.4-", "seen-t0-"):
        with ShardWriter(shard_path(tmp_path, 0, prefix)) as shard:
            shard.append(make(prefix.replace("-", "/")))
    assert [one.task_id for one in read_trajectories(tmp_path, "seen-t0.4-")] == ["seen/t0.4/"]


def test_targets_round_trip_and_damage(tmp_path):
    one = Targets("a#0", (0.1, 0.2), (0.3, 0.4), (1.0, -1.0), (0.5, -0.5), (1.1, -0.8), (0.0, 1e-300))
    path = tmp_path / "targets.jsonl"
    write_targets(path, [one, replace(one, key="b#0")])
    assert read_targets(path) == [one, replace(one, key="b#0")]
    content = path.read_bytes()
    for damage, words in [
        (content[:-1], "torn"),
        (b"3\n" + content, "targets.jsonl:1: not targets"),
        (content + b'{"key": "c"}\n', ":3"),
        (content.replace(b"[0.1, 0.2]", b"[0.1]", 1), ":1: series of different length"),
    ]:
        path.write_bytes(damage)
        with pytest.raises(RecordError, match=words):
            read_targets(path)


@pytest.mark.parametrize("change", [{"advantages": [float("nan")]}, {"returns": [float("inf")]}, {"values": [True]},
                                    {"q_values": [10**400]}, {"weight": float("nan")}, {"key": 3}])  # fmt: skip
def test_targets_are_finite_numbers_under_a_text(tmp_path, change):
    path = tmp_path / "targets.jsonl"
    write_targets(path, [Targets("a#0", *[(0.5,)] * 6)])
    path.write_text(json.dumps(json.loads(path.read_text()) | change) + "\n")
    with pytest.raises(RecordError, match=r"targets.jsonl:1: not targets .*; run compute_advantages with --recompute"):
        read_targets(path)


def test_a_shard_is_read_line_by_line(tmp_path):
    """4,000 lines of three tasks: what they take in memory does not grow with the file of 3 MB."""
    path = write(tmp_path, [make("train/a"), make("train/b"), make("train/c")])
    path.write_bytes(path.read_bytes() * 1334)
    assert path.stat().st_size > 2_500_000
    tracemalloc.start()
    found = read_shards(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (len(found.trajectories), found.num_duplicates) == (3, 3999)
    assert peak < 500_000


def test_a_line_without_an_end_is_not_read_into_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "LONGEST_LINE", 1000)
    path = write(tmp_path, [make()])
    path.write_bytes(b"x" * 5000 + b"\n")
    with pytest.raises(RecordError, match="rank-00000.jsonl:1: longer than 1000 bytes; delete the line"):
        read_shards(tmp_path)


def test_a_record_of_a_newer_version_is_named(tmp_path):
    path = write(tmp_path, [make()])
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 2'))
    with pytest.raises(RecordError, match=r":1: trajectory schema 2, this version reads 1; use the version that wrote"):
        read_shards(tmp_path)
