"""One episode as text, and two beside each other."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from pipeline.inspect.__main__ import main
from pipeline.inspect.reading import open_run
from pipeline.inspect.scores import TokenTexts, turn_scores
from pipeline.inspect.transcript import first_difference, token_numbers, token_style
from runtime.scoring import read_scores
from tests.made_up_run import made_up_trajectory, made_up_turn, write_made_up_run


def shown(capsys, *arguments: str) -> str:
    assert main(list(map(str, arguments))) == 0
    return capsys.readouterr().out


def test_a_transcript_has_the_numbers_of_each_turn(whole_run, capsys):
    run = open_run(whole_run)
    episode = next(one for one in run.trajectories(4) if len(one.trajectory.turns) > 1)
    out = shown(capsys, whole_run, "show", f"4:{episode.trajectory.task_id}")
    targets, scores = episode.targets, turn_scores(run, episode.trajectory)
    for turn in range(len(episode.trajectory.turns)):
        entropy = sum(scores[turn].entropies) / len(scores[turn].entropies)
        assert (
            f"turn {turn}  V {targets.values[turn]:.2f}  Q {targets.q_values[turn]:.2f}  "
            f"advantage {targets.advantages[turn]:+.2f}  return {targets.returns[turn]:.2f}  entropy {entropy:.2f}"
        ) in out
        assert episode.trajectory.turns[turn].observation in out
    assert "tokens shaded by ratio" in out and episode.trajectory.goal in out


def test_scores_of_tokens_are_those_of_the_scoring_pass(whole_run):
    run = open_run(whole_run)
    stored = read_scores(run.paths.advantages(3))
    for episode in run.trajectories(3):
        one, turns = stored[episode.trajectory.key], turn_scores(run, episode.trajectory)
        for name in ("old_logprobs", "ref_logprobs", "entropies"):
            assert [x for turn in turns for x in getattr(turn, name)] == list(getattr(one, name))
        numbers = token_numbers(episode.trajectory.turns[0], turns[0], "ratio")
        assert numbers[0] == one.old_logprobs[0] - one.ref_logprobs[0]


def test_tokens_add_up_to_the_response(whole_run):
    run = open_run(whole_run)
    texts = TokenTexts(run.paths.model)
    for episode in run.trajectories(2):
        for turn in episode.trajectory.turns:
            assert "".join(texts.each(turn.response_ids)).startswith(turn.response)
    assert TokenTexts(run.paths.root / "nothing").each((3, 4)) == ["<3>", "<4>"]


def test_every_token_has_a_row(whole_run, capsys):
    episode = next(open_run(whole_run).trajectories(4))
    out = shown(capsys, whole_run, "show", f"4:{episode.trajectory.task_id}", "--tokens", "--prompts")
    assert "logprob" in out and f"{episode.trajectory.turns[0].sampling_logprobs[0]:.4f}" in out
    assert out.count("find the door") == 1 + len(episode.trajectory.turns)  # the goal, and a prompt a turn


def test_colours_by_level():
    assert [token_style(x) for x in (0.0, 0.24, 0.25, 0.5, 1.0, 7.0)] == [
        "", "", "black on #fddbc7", "black on #f4a582", "black on #d6604d", "black on #d6604d",
    ]  # fmt: skip
    assert token_style(-0.6) == "black on #92c5de"


def test_two_episodes_part_where_an_action_differs(whole_run, capsys):
    a, b, c = made_up_turn("a", "x"), made_up_turn("b", "y"), made_up_turn("b", "z")
    assert first_difference([a, b], [a, b]) is None
    assert first_difference([a, b], [a, c]) == 1
    assert first_difference([a, b], [a]) == 1
    out = shown(capsys, whole_run, "show", "4:corridor-0003", "--diff", "4:corridor-0004")
    assert "they part at turn 0" in out and "train/corridor-0003" in out and "train/corridor-0004" in out
    assert "the two episodes are the same" in shown(capsys, whole_run, "show", "e4:near/corridor-0003", "--diff", "e4")


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("3:corridor-000", "fits 10 tasks (train/corridor-0"),
        ("3:corridr-0099", "no such task among the 24 of iteration 3; did you mean train/corridor-00"),
        ("9:corridor-0001", "iteration 9: not in this run; near are 1, 2, 3, 4"),
        ("e1:corridor-0001", "evaluation 1: not in this run; near are 0, 2, 4"),
        ("corridor-0001", "must be ITERATION:TASK such as 12:task-00031"),
        ("4:", "must be ITERATION:TASK"),
    ],
)
def test_a_wrong_address_is_one_line(whole_run, capsys, address, message):
    assert main([str(whole_run), "show", address]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1


def test_hostile_text_does_not_act_on_the_terminal(tmp_path, capsys):
    bad = "\x1b]0;owned\x07\u202e[red]</think>\n" + "A" * 1_000_000
    turns = [made_up_turn(bad, bad, valid=False, action=""), made_up_turn(bad, "x", action=bad, truncated=True)]
    one = made_up_trajectory("t", turns, status="truncated", goal=bad, task_type=bad, error=None)
    long = made_up_trajectory("u", [made_up_turn(bad)], status="truncated")
    root = write_made_up_run(tmp_path / "run", {1: [(one, [1.0, 2.0]), (long, None)], 2: [(one, None)]})
    for flags in ((), ("--diff", "2"), ("--tokens", "--prompts")):
        out = shown(capsys, root, "show", "1:t", *flags)
        assert not set(out) & {"\x1b", "\x07", "\u202e"}
        assert r"\x1b]0;owned\x07\u202e[red]" in out.replace("\n", "")
        assert len(out) < 60_000 and "(1,000,0" in out
    assert len(shown(capsys, root, "show", "1:u", "--full")) > 1_000_000


def test_tokens_are_coloured_on_a_terminal(whole_run):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, color_system="truecolor", width=100)
    assert main([str(whole_run), "show", "4:corridor-0003", "--shade", "logprob"], console) == 0
    assert "\x1b[38;5;0;48;2;" in stream.getvalue() or "\x1b[30;48;2;" in stream.getvalue()
