"""The last step: the final policy as a folder that plain transformers loads."""

from __future__ import annotations

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
