"""The page as a reader meets it: in a real browser, wide and narrow, with text that tries to break out."""

import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pipeline.report.__main__ import main
from pipeline.report.page import script_json
from pipeline.report.sampling import LONGEST_TEXT
from pipeline.run_directory import RunPaths
from runtime.errors import append_error
from tests.made_run import add_iteration, episode, make_run

ROOT = Path(__file__).resolve().parents[3]
BREAK_OUT = "globalThis.brokenOut = true"
HOSTILE = (
    f"</script><script>{BREAK_OUT}</script>",
    f"</textarea></title></style><img src=x onerror='{BREAK_OUT}'><svg onload='{BREAK_OUT}'>",
    f"<!--<script>{BREAK_OUT}//--> ]]> {{data}} ${{{BREAK_OUT}}} `\\u003cscript>",
    "\u202efdp.exe\u202c \u2067right to left\u2069 \u200bnothing\u200b\ufeff",
    "\x1b[2J\x1b]0;title\x07 \x00 \x9b31m",
    "lone surrogate \ud83d, separators \u2028\u2029, emoji \U0001f600",
    "x" * 1_000_000,
    "needle in a haystack",
    "__proto__",
    "",
)


class Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.names = []

    def handle_starttag(self, tag, attributes):
        self.names.append(tag)


def hostile_run(root: Path) -> RunPaths:
    """Hostile text in every place where the text of a model, an environment or a configuration can stand."""
    paths = make_run(root, texts=HOSTILE)
    bad = HOSTILE[1]
    add_iteration(paths, 7, [
        episode(7, bad, task_type=bad, goal=bad, split=bad),
        episode(7, "train/t-lost", (), status="error", error=bad, turns=()),
    ])  # fmt: skip
    append_error(paths.errors, bad, 7, 0, bad, bad)
    paths.config.write_text(paths.config.read_text().replace("name: tiny", f"name: {json.dumps(bad)}"))
    return paths


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A run's page, hostile text in it, and the folder of the run."""
    paths = hostile_run(tmp_path_factory.mktemp("runs") / "a<b>&'\"")
    assert main([str(paths.root)]) == 0
    return paths.root / "report.html"


@pytest.fixture
def page(browser, pages):
    """The browser with the page freshly opened; afterwards nothing has complained and nothing was fetched."""
    browser.complaints.clear()
    browser.requests.clear()
    browser.open(pages.as_uri())
    yield browser
    assert browser.complaints == []
    assert set(browser.requests) <= {pages.as_uri()}
    assert browser.ask("globalThis.brokenOut") is None


def test_no_text_is_a_tag(pages):
    text = pages.read_text(encoding="utf-8")
    parser = Elements()
    parser.feed(text)
    head, body = ["head", *["meta"] * 5, "title", "style"], ["body", "header", "nav", "main", "noscript", "p"]
    assert parser.names == ["html", *head, *body, "script", "script"]
    assert len(text) < 1_000_000  # the line of a megabyte was cut


def test_json_in_a_script_comes_back_as_it_was():
    data = {"<a>": ["</script>", "<!--", "\u2028\ud800", "&lt;", None, 1.5, True]}
    assert "<" not in script_json(data) and json.loads(script_json(data)) == data
    with pytest.raises(ValueError):
        script_json({"a": float("nan")})


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (400, False), (400, True)])
def test_all_curves_are_drawn_and_nothing_is_wider_than_the_window(browser, pages, width, dark):
    browser.open(pages.as_uri(), width=width, dark=dark)
    browser.wait("document.querySelectorAll('.panel svg').length === document.querySelectorAll('.panel').length")
    titles = browser.ask("[...document.querySelectorAll('.panel h3')].map(node => node.firstChild.textContent.trim())")
    assert {"Success on held-out tasks", "Return", "Turns", "Invalid actions", "Policy loss", "approx_kl", "Entropy",
            "Explained variance", "Saturated readouts", "Time", "Peak memory", "V", "Q", "seen",
            } <= set(titles)  # fmt: skip
    empty = "[...document.querySelectorAll('.panel')].filter(one => !one.querySelector('.line, .point, .dot')).length"
    assert browser.ask(empty) == 0
    broken = "[...document.querySelectorAll('svg *')].filter(one => /NaN|undefined/.test(one.outerHTML)).length"
    assert browser.ask(broken) == 0
    assert browser.ask("document.documentElement.scrollWidth") == width
    paper = browser.ask("getComputedStyle(document.documentElement).backgroundColor")
    assert (paper == "rgb(22, 23, 26)") is dark


def test_a_curve_is_where_its_numbers_are(page):
    """Success of `seen` rises from 1/8 to 7/8."""
    page.wait("document.querySelector('.panel svg .k0 .point')")
    points = page.ask("[...document.querySelectorAll('.panel')][0].querySelectorAll('.k0 .point').length")
    assert points == 2
    first, last = page.ask(
        "[...[...document.querySelectorAll('.panel')][0].querySelectorAll('.k0 .point')]"
        ".map(one => [+one.getAttribute('cx'), +one.getAttribute('cy')])"
    )
    assert first[0] < last[0] and first[1] > last[1]
    said = page.ask("document.querySelector('.panel .readout').textContent")
    assert "seen 87.5 % [52.9 %, 97.8 %], n 8" in said  # Wilson: (7/8 + z²/16 +- ...) / (1 + z²/8)


def test_a_trajectory_opens_with_v_and_q_along_its_turns(page):
    page.ask("[...document.querySelectorAll('.item')].find(one => one.textContent.includes('train/t-3')).click()")
    page.wait("location.hash.startsWith('#episode=') && document.querySelector('.detail svg')")
    assert page.ask("document.querySelector('.detail h3').textContent") == "find the door of train/t-3"
    assert page.ask("document.querySelectorAll('.detail .turn').length") == 12
    assert page.ask("document.querySelectorAll('.detail svg path.line').length") == 3  # V, Q, lambda-return
    shown = page.ask("document.querySelector('.detail .meta').textContent")
    assert "V" in shown and "Q" in shown and "advantage" in shown and "λ-return" in shown
    # links by task: the same task in the run's five other iterations
    others = page.ask("[...document.querySelectorAll('.others a')].map(one => one.textContent)")
    assert len(others) == 5
    page.ask("document.querySelector('.others a').click()")
    page.wait("document.querySelector('.detail .note').textContent.includes('iteration 1 ')")
    page.ask("history.back()")
    page.wait("!document.querySelector('.detail .note').textContent.includes('iteration 1 ')")


def test_an_invalid_turn_and_an_evaluation_are_told_apart(page):
    page.ask(f"location.hash = '#episode=' + encodeURIComponent({json.dumps('2:train/t-2')})")
    page.wait("document.querySelector('.detail h3').textContent === 'find the door of train/t-2'")
    assert page.ask("document.querySelectorAll('.detail .turn.wrong').length") == 1
    page.wait("document.querySelectorAll('.detail svg .invalid').length === 1")
    page.ask(f"location.hash = '#episode=' + encodeURIComponent({json.dumps('e6:seen/t-1')})")
    page.wait("document.querySelector('.detail h3').textContent === 'find the door of seen/t-1'")
    assert "λ-return" not in page.ask("document.querySelector('.detail').textContent")
    page.ask("location.hash = '#episode=' + encodeURIComponent('9:nowhere')")
    page.wait("document.querySelector('.detail').textContent.includes('not in the page')")


def test_search_finds_text_and_marks_it(page):
    page.ask("(node => { node.value = 'NEEDLE in'; node.dispatchEvent(new Event('input')); })"
             "(document.querySelector('input[type=search]'))")  # fmt: skip
    page.wait("document.querySelectorAll('.item').length === 6")  # one episode of each iteration
    page.ask("document.querySelector('.item').click()")
    page.wait("document.querySelector('.detail mark')")
    assert page.ask("document.querySelector('.detail mark').textContent") == "needle in"


def test_filters_and_orders(page):
    def choose(label: str, value: str) -> None:
        page.ask(
            f"(node => {{ node.value = {json.dumps(value)}; node.dispatchEvent(new Event('change')); }})"
            f"(document.querySelector('select[aria-label=\"{label}\"]'))"
        )

    total = page.ask("document.querySelectorAll('.item').length")
    assert total == 6 * 8 + 2 * 16 + 2
    choose("Where from", "=seen")
    assert page.ask("document.querySelectorAll('.item').length") == 16
    choose("Where from", "rollouts")
    choose("Result", "error")
    assert page.ask("document.querySelectorAll('.item').length") == 1
    choose("Result", "success")
    assert page.ask("document.querySelectorAll('.item').length") == 4 * 6 + 1
    choose("Result", "")
    choose("Sort by", "invalid")
    assert "train/t-2" in page.ask("document.querySelector('.item').textContent")


def test_hostile_text_is_shown_as_text(page):
    page.ask(f"location.hash = '#episode=' + encodeURIComponent({json.dumps('4:train/t-0')})")
    page.wait("document.querySelectorAll('.detail .observation').length === 12")
    shown = page.ask("[...document.querySelectorAll('.detail .observation')].map(one => one.textContent)")
    assert shown[:3] == list(HOSTILE[:3])
    assert shown[3] == "⟨U+202E⟩fdp.exe⟨U+202C⟩ ⟨U+2067⟩right to left⟨U+2069⟩ ⟨U+200B⟩nothing⟨U+200B⟩⟨U+FEFF⟩"
    assert shown[4] == "⟨U+001B⟩[2J⟨U+001B⟩]0;title⟨U+0007⟩ ⟨U+0000⟩ ⟨U+009B⟩31m"
    assert shown[5] == "lone surrogate ⟨U+D83D⟩, separators ⟨U+2028⟩⟨U+2029⟩, emoji \U0001f600"
    assert shown[6] == "x" * LONGEST_TEXT + f" […] ({10**6 - LONGEST_TEXT} more characters in the shard)"
    assert shown[7:10] == ["needle in a haystack", "__proto__", ""]
    page.ask(f"location.hash = '#episode=' + encodeURIComponent({json.dumps(f'7:{HOSTILE[1]}')})")
    page.wait(f"document.querySelector('.detail h3').textContent === {json.dumps(HOSTILE[1])}")
    page.frame()
    assert page.ask("document.querySelectorAll('img, iframe, textarea, [onerror], [onload]').length") == 0
    assert page.ask("document.documentElement.scrollWidth") == 1280
    assert HOSTILE[1] in page.ask("document.querySelector('#head').textContent")  # the model's name
    assert HOSTILE[1] in page.ask("document.querySelector('#errors').parentElement.textContent")


def test_the_policy_of_the_page_lets_no_other_script_run(browser, pages):
    browser.open(pages.as_uri())
    browser.ask("document.body.append(Object.assign(document.createElement('script'), "
                f"{{textContent: '{BREAK_OUT}'}}))")  # fmt: skip
    browser.ask(
        "document.body.append(Object.assign(document.createElement('img'), {src: 'https://example.org/x.png'}))"
    )
    browser.frame()
    assert browser.ask("globalThis.brokenOut") is None
    refused = [one for one in browser.complaints if "Content Security Policy" in one]
    assert any("example.org" in one for one in refused) and any("inline script" in one for one in refused)
    browser.complaints.clear()


def test_a_sample_says_that_it_is_one(browser, tmp_path):
    paths = make_run(tmp_path / "x")
    assert main([str(paths.root), "--sample-mb", "0.004", "--output", str(tmp_path / "small.html")]) == 0
    browser.open((tmp_path / "small.html").as_uri())
    said = browser.ask("document.querySelector('#episodes').nextElementSibling.textContent")
    assert said.startswith("A sample: ") and "of the run's 80 episodes" in said
    items = browser.ask("document.querySelectorAll('.item').length")
    assert 0 < items < 80 and f"A sample: {items} of" in said


def test_a_run_that_has_just_begun_has_a_page(browser, tmp_path):
    paths = make_run(tmp_path / "x", iterations=0, tasks=1)
    for folder in ("evaluations", "metrics.jsonl"):
        (paths.root / folder).rename(tmp_path / folder)
    assert main([str(paths.root)]) == 0
    browser.complaints.clear()
    browser.open((paths.root / "report.html").as_uri())
    assert "0 of 6 iterations complete; 0 episodes" in browser.ask("document.querySelector('#head').textContent")
    assert browser.complaints == []


def test_the_page_needs_light_packages_alone(tmp_path):
    paths = make_run(tmp_path / "x", iterations=2)
    code = (
        "import sys; from pipeline.report.__main__ import main\n"
        f"assert main([{str(paths.root)!r}]) == 0\n"
        "heavy = {'torch', 'transformers', 'deepspeed', 'textworld', 'tensorboard', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120)


def test_figures(tmp_path):
    paths = make_run(tmp_path / "x", iterations=2)
    assert main([str(paths.root), "--png", str(tmp_path / "png")]) == 0
    names = sorted(path.name for path in (tmp_path / "png").iterdir())
    assert names == ["calibration.png", "cost.png", "critic.png", "learning.png", "outcome.png"]
    assert all((tmp_path / "png" / name).read_bytes().startswith(b"\x89PNG") for name in names)


def test_the_same_run_gives_the_same_page(tmp_path):
    paths = make_run(tmp_path / "x", iterations=2)
    for name in ("a.html", "b.html"):
        assert main([str(paths.root), "--output", str(tmp_path / name)]) == 0
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_what_is_no_run_is_one_line(tmp_path, capsys):
    assert main([str(tmp_path / "nowhere")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and "no such folder" in said and said.count("\n") == 1
