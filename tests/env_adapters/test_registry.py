import subprocess
import sys
import textwrap

import pytest

from env_adapters.base import EnvironmentFault
from env_adapters.registry import adapter_class, adapter_names, make_adapter


def test_builtin_name():
    assert adapter_class("alfworld").name == "alfworld"
    assert "alfworld" in adapter_names()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("alfworl", ["'alfworl'", "did you mean alfworld?"]),
        ("zzz", ["known are alfworld"]),
        ("env_adapters.alfworld:AlfworldAdaptor", ["did you mean AlfworldAdapter?"]),
        ("env_adapters.nothing:Class", ["cannot import env_adapters.nothing"]),
        (":", ["cannot import", "Empty module name"]),
        (".x:Class", ["cannot import .x"]),
        ("env_adapters.base:Task", ["is no adapter", "lacks"]),
    ],
)
def test_unknown_names_are_refused_with_a_remedy(name, words):
    with pytest.raises(EnvironmentFault) as caught:
        adapter_class(name)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["def x(:", "x = undefined_name"])
def test_a_module_that_cannot_be_imported_is_one_line(tmp_path, monkeypatch, content):
    (tmp_path / "broken_world.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(EnvironmentFault, match=r"cannot import broken_world \((Syntax|Name)Error: .*mend the path"):
        adapter_class("broken_world:World")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scen": "tiny"}, ["'scen'", "did you mean scene?"]),
        ({"scene": "tinny"}, ["scene='tinny'", "did you mean tiny?"]),
        ({"train_games": "many"}, ["train_games='many'", "int"]),
        ({"train_games": 1.5}, ["train_games=1.5", "int"]),
        ({"train_games": True}, ["train_games=True", "int"]),
        ({"train_games": -1}, ["train_games=-1", "negative"]),
        ({"success_reward": 0}, ["success_reward=0"]),
        ({"data_dir": 3}, ["data_dir=3", "str"]),
    ],
)
def test_bad_options_are_refused_in_one_line(options, words):
    with pytest.raises(EnvironmentFault) as caught:
        make_adapter("alfworld", options)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "\n" not in str(caught.value)


def test_numbers_may_come_as_text():
    options = make_adapter("alfworld", {"train_games": "7", "success_reward": 1, "source": "generated"}).options
    assert options.train_games == 7
    assert options.success_reward == 1.0


def test_a_third_party_registers_an_entry_point(tmp_path):
    package = tmp_path / "my_world"
    package.mkdir()
    (package / "__init__.py").write_text("from env_adapters.alfworld import AlfworldAdapter as MyAdapter\n")
    facts = tmp_path / "my_world-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: my-world\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[sapo.env_adapters]\nmine = my_world:MyAdapter\n")
    code = "from env_adapters.registry import *; print(adapter_class('mine').__name__, adapter_names())"
    path = {"PYTHONPATH": f"{tmp_path}:."}
    out = subprocess.run([sys.executable, "-c", code], env=path, capture_output=True, text=True, check=True).stdout
    assert "AlfworldAdapter" in out
    assert "'mine'" in out


def test_nothing_heavy_is_imported_and_a_missing_engine_is_one_line():
    code = textwrap.dedent(
        """
        import sys
        class Block:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in ("textworld", "alfworld", "fast_downward", "torch", "numpy"):
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        sys.meta_path.insert(0, Block())
        from env_adapters.registry import make_adapter
        from env_adapters.base import EnvironmentFault, Observation
        adapter = make_adapter("alfworld", {"source": "generated"})
        adapter.prompt(Observation("g", "t", ("look",)), (), 0)
        adapter.vocabulary()
        try:
            adapter.prepare()
        except EnvironmentFault as fault:
            print(fault)
        """
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "not installed" in out
    assert "pip install 'textworld[pddl]==1.7.0'" in out
    assert out.count("\n") == 1
