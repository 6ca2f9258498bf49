"""`python -m tests.pictures`: makes the pictures of docs/inspecting.md out of the tests' own small run."""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
from pathlib import Path

from rich.console import Console

from pipeline.inspect.__main__ import main
from pipeline.report.__main__ import main as report
from tests.chromium import Browser, find_chromium
from tests.whole_run import make_whole_run

DOCS = Path(__file__).resolve().parents[1] / "docs"
FONT = re.compile(r"@font-face \{.*?\}\s*", flags=re.DOTALL)  # fetched from elsewhere: the reader's own font will do
PICTURES = {
    "inspecting-overview": (96, []),
    "inspecting-trajectories": (110, "trajectories --iteration all --failed --sort value_drop --limit 6".split()),
    "inspecting-show": (96, ["show", "4:corridor-0023"]),
    "inspecting-diff": (110, ["show", "4:corridor-0023", "--diff", "1"]),
}


def make_pictures(run_dir: Path) -> None:
    """Each command of PICTURES as docs/<name>.svg; the run is shown as runs/<its name>."""
    with contextlib.chdir(run_dir.parent.parent):
        for name, (width, arguments) in PICTURES.items():
            console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True,
                              color_system="truecolor", highlight=False, markup=False, emoji=False)  # fmt: skip
            argv = [f"runs/{run_dir.name}", *arguments]
            assert main(argv, console) == 0
            title = " ".join(["python -m pipeline.inspect", *argv])
            (DOCS / f"{name}.svg").write_text(FONT.sub("", console.export_svg(title=title, unique_id="rich")))


def picture_page(run_dir: Path) -> None:
    """The page of the run as docs/report.png, its curves and one of its episodes; where there is a Chromium."""
    program = find_chromium()
    if program is None:
        print("no Chromium on this machine: docs/report.png stays as it is")
        return
    with tempfile.TemporaryDirectory() as scratch, Browser(program, Path(scratch) / "profile") as browser:
        page = Path(scratch) / "report.html"
        assert report([str(run_dir), "--output", str(page)]) == 0
        browser.open(page.as_uri(), width=1180, height=760)
        browser.wait("document.querySelectorAll('.panel svg').length === document.querySelectorAll('.panel').length")
        browser.picture(DOCS / "report.png")
        browser.ask("document.querySelector('#episodes').scrollIntoView()")
        browser.frame()
        browser.picture(DOCS / "report-episode.png")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        run_dir = make_whole_run(Path(folder) / "runs" / "corridor-seed0")
        make_pictures(run_dir)
        picture_page(run_dir)
