"""The arrows: pipeline -> stages -> runtime, env_adapters apart; heavy packages have one door each."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("pipeline", "stages", "runtime", "env_adapters")
FILES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]

MAY_IMPORT = {
    "pipeline": {"pipeline", "stages", "runtime", "env_adapters.base", "env_adapters.registry"},
    "stages": {"stages", "runtime", "env_adapters.base", "env_adapters.registry"},
    "runtime": {"runtime", "env_adapters.base", "env_adapters.registry"},
    "env_adapters": {"env_adapters"},
}
DOORS = {
    "deepspeed": {"runtime/engine.py"},
    "mpi4py": {"runtime/distributed.py"},
    "torch.distributed": {"runtime/distributed.py"},
    "transformers": {"runtime/pretrained.py"},
    "vllm": {"runtime/vllm_generation.py"},
    "jsonargparse": {"pipeline/config_loading.py"},
    "textworld": {"env_adapters/alfworld"},
    "alfworld": {"env_adapters/alfworld"},
    "rapidfuzz": {"env_adapters/webshop"},
    "spacy": {"env_adapters/webshop"},
    "tensorboard": set(),
    "scipy": set(),  # for tests
    "rich": {"pipeline/inspect"},
    "matplotlib": {"pipeline/report/figures.py"},
    "wandb": {"runtime/forwarding.py"},
    "trackio": {"runtime/forwarding.py"},
}
MATHS = ["losses", "targets", "estimators", "value_readout", "logprobs"]


def imports(path: Path) -> set[str]:
    """Every module that a file imports, wherever in it; not what only a type checker or the stage's main sees."""
    found = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "__name__ == '__main__'"):
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return found


def within(module: str, parents: set[str]) -> bool:
    return any(module == parent or module.startswith(f"{parent}.") for parent in parents)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_arrows(path):
    package = path.relative_to(ROOT).parts[0]
    ours = {module for module in imports(path) if within(module, set(PACKAGES))}
    for module in ours - set(PACKAGES):
        # `from env_adapters.base import Task` counts for the module that holds Task
        assert within(module, MAY_IMPORT[package]) or module == "env_adapters", f"{path}: {package} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_doors(path):
    name = path.relative_to(ROOT).as_posix()
    for heavy, doors in DOORS.items():
        if any(within(module, {heavy}) for module in imports(path)):
            assert any(name == door or name.startswith(f"{door}/") for door in doors), f"{name} imports {heavy}"


def test_every_door_is_used():
    """A door that nothing goes through any more is one that something may slip through."""
    for heavy, doors in DOORS.items():
        for door in doors:
            own = [path for path in FILES if path.relative_to(ROOT).as_posix().startswith(door)]
            assert any(within(module, {heavy}) for path in own for module in imports(path)), f"{door}: {heavy}"


def test_the_arrow_test_sees_what_it_looks_for(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("def f():\n    from stages.optimize import run\n    import torch.distributed as dist\n")
    assert {"stages.optimize", "torch.distributed"} <= imports(bad)


@pytest.mark.parametrize("module", MATHS)
def test_the_maths_needs_torch_alone(module):
    code = (
        f"import sys, runtime.{module}\n"
        "heavy = {'transformers', 'deepspeed', 'mpi4py', 'textworld', 'safetensors', 'yaml'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120)


def test_the_version_is_the_packages():
    import tomllib

    from pipeline import VERSION

    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == VERSION
