"""`python -m tests.pictures`: makes the pictures of docs/inspecting.md out of the tests' own small run."""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
from pathlib import Path

from rich.console import Console

from pipeline.inspect.__main__ import main
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


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        make_pictures(make_whole_run(Path(folder) / "runs" / "corridor-seed0"))
