"""The last step: the final policy as a folder that plain transformers loads.

By hand, after the last stage: `deepspeed pipeline/export.py --run-dir runs/X`.
"""

from __future__ import annotations

if __name__ == "__main__":
    import sys
    from pathlib import Path as _Path

    sys.path[0] = str(_Path(__file__).resolve().parents[1])  # not pipeline/, whose `inspect` is not Python's

from pathlib import Path

from pipeline.manifests import NAME
from pipeline.run_directory import link_or_copy
from runtime.files import atomic_folder


def export_policy(policy: Path, export: Path) -> None:
    """Make `export` hold the policy's files, value_tokens.json included; linked, where the disk can, not copied."""
    with atomic_folder(export) as folder:
        for source in sorted(policy.rglob("*")):
            if source.is_file() and source.name != NAME:
                destination = folder / source.relative_to(policy)
                destination.parent.mkdir(parents=True, exist_ok=True)
                link_or_copy(source, destination)


if __name__ == "__main__":
    from pipeline.one_stage import main

    main("export")
