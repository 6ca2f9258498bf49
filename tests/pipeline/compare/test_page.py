"""The files of a comparison: the page in a real browser, wide and narrow, and figures out of the kept numbers alone."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from pipeline.compare.__main__ import main
from pipeline.compare.writing import write
from tests.pipeline.compare.measured import make
from tests.processes import ROOT

HOSTILE = "</script><img src=x onerror='globalThis.brokenOut = true'>|\u202e"
FILES = ["comparison.html", "numbers.json.gz", "success-near.png", "table.json", "table.md"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two variants of three seeds, the last one with a name that tries to break out."""
    out = tmp_path_factory.mktemp("comparison")
    runs = [make("sapo", i, success=(0.0, 0.25, 0.5 + i / 10)) for i in range(3)]
    runs += [make(HOSTILE, i, success=(0.0, 0.5, 0.6), wall_s=(3.0 + i, 4.0), won="1001") for i in range(3)]
    write(out, runs, [f"{HOSTILE}: failed"])
    return out


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (400, False)])
def test_the_page_shows_curves_and_tables(browser, folder, width, dark):
    page = (folder / "comparison.html").as_uri()
    browser.complaints.clear()
    browser.requests.clear()
    browser.open(page, width=width, dark=dark)
    browser.wait("document.querySelectorAll('.panel svg').length === 4")
    assert browser.ask("document.querySelectorAll('.panel:first-child path.thin').length") == 6
    assert browser.ask("document.querySelectorAll('.panel:first-child path.band').length") == 2
    broken = "[...document.querySelectorAll('svg *')].filter(one => /NaN|undefined/.test(one.outerHTML)).length"
    assert browser.ask(broken) == 0
    assert browser.ask("document.documentElement.scrollWidth") == width
    assert (
        browser.ask("document.querySelectorAll('table').length") == 8
    )  # none at equal trajectories: all played as many
    said = browser.ask("document.querySelector('.panel .readout').textContent")
    assert said.startswith("sapo 60.0 % [50.0 %, 70.0 %]") and "60.0 % [60.0 %, 60.0 %]" in said
    assert "left out: </script><img" in browser.ask("document.querySelector('#head').textContent")
    assert browser.ask("document.querySelectorAll('img').length") == 0
    assert browser.ask("globalThis.brokenOut") is None
    assert browser.complaints == [] and set(browser.requests) <= {page, "about:blank"}


def test_the_last_points_are_where_their_numbers_are(browser, folder):
    """At the end sapo has 0.6 and the other one 0.6 too; half-way 0.25 and 0.5: the other one is higher."""
    browser.open((folder / "comparison.html").as_uri())
    browser.wait("document.querySelectorAll('.panel svg').length === 4")
    places = "[...document.querySelectorAll('.panel:first-child .k{} .point')].map(one => +one.getAttribute('cy'))"
    sapo, other = browser.ask(places.format(0)), browser.ask(places.format(1))
    assert sapo[1] > other[1] and sapo[2] == pytest.approx(other[2]) and sapo[0] == pytest.approx(other[0])


def test_it_can_be_drawn_again_from_the_numbers_alone(folder, tmp_path, capsys):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "numbers.json.gz").write_bytes((folder / "numbers.json.gz").read_bytes())
    assert main(["--from", str(tmp_path / "kept"), "--out", str(tmp_path / "anew")]) == 1  # one run is left out
    assert sorted(path.name for path in (tmp_path / "anew").iterdir()) == FILES
    for name in FILES:
        assert (tmp_path / "anew" / name).read_bytes() == (folder / name).read_bytes(), name
    assert "left out: " in capsys.readouterr().err


def test_several_comparisons_become_one(folder, tmp_path, capsys):
    write(tmp_path / "more", [make("grpo", i) for i in range(3)], [])
    both = [str(folder), str(tmp_path / "more")]
    main(["--from", *both, "--out", str(tmp_path / "all")])
    table = json.loads((tmp_path / "all" / "table.json").read_text())
    assert [one["name"] for one in table["variants"]] == ["sapo", HOSTILE, "grpo"] and len(table["pairs"]) == 3
    assert main(["--from", *both]) == 2 and "--out" in capsys.readouterr().err
    assert main(["--from", str(folder), str(folder), "--out", str(tmp_path / "x")]) == 2
    assert "sapo, seed 0: two runs" in capsys.readouterr().err
    elsewhere = replace(make("ppo"), settings={**make().settings, "env.name": "shop"})
    write(tmp_path / "shop", [elsewhere], [])
    assert main(["--from", str(folder), str(tmp_path / "shop"), "--out", str(tmp_path / "x")]) == 2
    assert "runs in corridor and shop" in capsys.readouterr().err


def test_one_run_of_one_variant_has_a_page_too(tmp_path):
    write(tmp_path, [make()], [])
    table = json.loads((tmp_path / "table.json").read_text())
    assert table["pairs"] == table["equal"] == [] and sorted(path.name for path in tmp_path.iterdir()) == FILES


def test_redrawing_needs_light_packages_alone(folder, tmp_path):
    code = (
        "import sys; from pipeline.compare.__main__ import main\n"
        f"assert main(['--from', {str(folder)!r}, '--out', {str(tmp_path)!r}]) == 1\n"
        "heavy = {'torch', 'transformers', 'deepspeed', 'textworld', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120)
