"""Stage: reserve the value tokens w+ and w- on the base model's files, before any engine exists (Eq. 1-3).

Reads the model that `model.name` means. Writes the run's `model` folder: weights with two zero rows in the head,
config and tokenizer that agree with them, value_tokens.json.
"""

from __future__ import annotations

if __name__ == "__main__":
    import sys
    from pathlib import Path as _Path

    sys.path.insert(0, str(_Path(__file__).resolve().parents[1]))

import time

from runtime.files import remove_tree, temporary_name
from runtime.pretrained import load_tokenizer
from runtime.prompts import PromptRenderer
from runtime.reservation import reserve_value_tokens
from runtime.seeding import seed_from_names
from runtime.sources import resolve_model
from stages.context import Context, StageResult


def run(context: Context) -> StageResult:
    """Resolve the model's name and reserve its value tokens. Rank 0 writes; the others have nothing to do."""
    if not context.distributed.is_main:
        return StageResult()
    config, target = context.config, context.paths.model
    scratch = temporary_name(target)
    start = time.perf_counter()
    try:
        source = resolve_model(
            config.model.name,
            context.adapter,
            scratch,
            width=config.model.tiny_width,
            layers=config.model.tiny_layers,
            heads=config.model.tiny_heads,
            seed=seed_from_names(config.run.seed, "tiny_model"),
        )
        resolved = time.perf_counter()
        reservation = reserve_value_tokens(
            source,
            target,
            config.value.r_max,
            config.value.temperature,
            config.value.initial_rows,
            seed_from_names(config.run.seed, "value_rows") % 2**63,
        )
        check_prompts(context)
    finally:
        remove_tree(scratch)
    return StageResult(
        counts={
            "positive_id": reservation.tokens.positive_id,
            "negative_id": reservation.tokens.negative_id,
            "vocabulary_rows": reservation.num_rows,
            "rewritten_bytes": reservation.rewritten_bytes,
        },
        seconds={"resolve_s": resolved - start, "reserve_s": time.perf_counter() - resolved},
    )


def check_prompts(context: Context) -> None:
    """Try the chat template now: the first prompt may be minutes away."""
    config = context.config
    renderer = PromptRenderer(
        load_tokenizer(context.paths.model),
        context.adapter,
        config.env.history_length,
        config.env.prompt_tokens,
        config.model.chat_template,
    )
    renderer.check_template()


if __name__ == "__main__":
    from pipeline.one_stage import main  # the script, not the module, sits above the pipeline

    main("reserve_vocab")
