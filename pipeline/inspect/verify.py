"""Check every shard, manifest and checkpoint of a run, and name what is wrong.

Manifests against each other, files against their hashes, every trajectory against the run's settings and seeds, scores
against trajectories, targets against Eq. 4-7 computed once more. What a stage has not finished is checked as far as it
goes. The exit code is 0 where nothing was found, 1 otherwise.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from rich.console import Console

from pipeline.config import ConfigError
from pipeline.inspect.check_episodes import Rules, check_evaluation, check_rollouts
from pipeline.inspect.check_files import check_logs, check_manifests, check_outputs, check_policies
from pipeline.inspect.check_targets import check_targets
from pipeline.inspect.findings import Finding, from_damage, from_message
from pipeline.inspect.reading import Run
from pipeline.inspect.terminal import printable
from pipeline.run_directory import RunError
from runtime.progress import Progress

SHOWN_A_FILE = 10  # findings of one file that are listed; the others are counted
TEXT_LIMIT = 500


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None so far."""


def run(opened: Run, arguments: argparse.Namespace, console: Console) -> int:
    """Print each finding as a line, then how many there are."""
    listed: dict[str, int] = {}
    for finding in find_faults(opened):
        place = finding.place.partition(":")[0]
        listed[place] = listed.get(place, 0) + 1
        if listed[place] <= SHOWN_A_FILE:
            console.print(printable(f"{finding.place}: {finding.fact}", TEXT_LIMIT), soft_wrap=True)
    for place, count in listed.items():
        if count > SHOWN_A_FILE:
            console.print(f"{printable(place)}: {count - SHOWN_A_FILE} more", soft_wrap=True)
    total = sum(listed.values())
    checked = f"{len(opened.manifests)} manifests, {len(opened.iterations())} iterations"
    console.print(f"checked {checked}: {f'{total} faults' if total else 'nothing wrong'}")
    return 1 if total else 0


def find_faults(run: Run) -> Iterator[Finding]:
    """Everything that is wrong with a run, each fault once or, where several checks see it, more often."""
    for line in run.damage:
        yield from_damage(run, line)
    try:
        settings = run.settings()
    except (RunError, ConfigError) as fault:
        yield from_message(run, run.paths.config, fault)
        return  # nothing else can be judged without them
    yield from check_manifests(run, settings)
    yield from check_outputs(run)
    yield from check_policies(run, settings)
    yield from check_logs(run)
    rules = Rules.of(run, settings)
    numbers = run.iterations()
    with Progress(True)(len(numbers), "verify", "iteration") as bar:
        for iteration in numbers:
            shards = check_rollouts(run, settings, rules, iteration)
            yield from shards.findings
            if ("compute_advantages", iteration) in run.manifests:
                yield from check_targets(run, settings, iteration, shards)
            bar.update()
    for iteration in run.evaluation_numbers():
        yield from check_evaluation(run, rules, iteration)
