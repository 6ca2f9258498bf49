"""The `tiny` model: random weights of the Llama architecture and a word-level tokenizer of an environment's words.

(Llama and not Qwen2, from which it differs by the bias of the attention's inputs: transformers 5 loads the tokenizer of
every qwen2 folder as Qwen2's own byte-pair class, whatever the folder says.)

The tokenizer lower-cases and splits at white space; words, single digits and punctuation marks are tokens, and a
number that follows a word keeps that word's token the same (`mug 1`, `mug 12` share `mug`): a small model has to
connect the goal's `mug` with the observation's `mug 1`. A digit that touches what stands before it is another token
(`##2`), so `shelf 12` comes back as `shelf 12` and `shelf 1 2` as `shelf 1 2`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from runtime.files import atomic_folder
from runtime.pretrained import fast_tokenizer, save_random_llama

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
TAGS = ("<think>", "</think>", "<action>", "</action>")
DIGITS = "0123456789"
MARK = "##"  # the token touches the one before it
CHUNK = r"[^\W_]+(?:[/'_.\-][^\W_]+)*|[^\w\s]|_"  # a word (`in/on`, `don't`, `12`, `30.00`) or one other character
PIECE = r"[0-9]|[^0-9]+"
# after the pieces are joined with spaces: what stands without a space on its left, right, both sides
GLUED_LEFT, GLUED_RIGHT, GLUED_BOTH = ",.:;?!)%", "(", "[]"
POSITIONS = 4096  # longest sequence, tokens
# Deviation of the initial weights. At widths of 64-128 the usual 0.02 starts so flat that copying from the prompt
# takes about three times as many tokens to appear (trial: 0.75M tokens of demonstrations, loss 0.45 against 0.25).
INITIAL_STD = 0.08
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{{ '\\n' }}{% endfor %}"


def make_tiny_model(
    folder: str | Path, texts: Sequence[str], *, width: int, layers: int, heads: int, seed: int
) -> Path:
    """Write a model and its tokenizer into `folder`, as a plain transformers folder; the same seed, the same bytes.

    The embedding (tied) has two rows more than the tokenizer has tokens: room for the value tokens.

    Args:
        folder: appears whole; an older one is replaced.
        texts: together they hold every word of the environment (`Adapter.vocabulary()`).
        width: hidden size, a multiple of `heads`.
        layers: transformer blocks.
        heads: attention heads.
        seed: of the random weights.

    Returns:
        The folder.
    """
    tokenizer = word_tokenizer(texts)
    with atomic_folder(folder) as temporary:
        save_random_llama(
            temporary,
            seed,
            vocab_size=len(tokenizer) + 2,
            hidden_size=width,
            intermediate_size=-(-8 * width // 96) * 32,  # 8/3 of the width, as gated MLPs have it, in steps of 32
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            max_position_embeddings=POSITIONS,
            tie_word_embeddings=True,
            initializer_range=INITIAL_STD,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
        tokenizer.save_pretrained(temporary)
    return Path(folder)


def word_tokenizer(texts: Sequence[str]) -> Any:
    """The tokenizer whose tokens are the pieces of `texts`, the ten digits, the tags and three special tokens."""
    special = (PAD, EOS, UNKNOWN)
    tokens = [*special, *TAGS, *DIGITS, *(MARK + digit for digit in DIGITS)]
    tokens += sorted({piece for text in texts for piece in pieces(text)} - set(tokens))
    core = Tokenizer(models.WordPiece({t: i for i, t in enumerate(tokens)}, unk_token=UNKNOWN))
    core.normalizer = normalizers.Lowercase()
    core.pre_tokenizer = pre_tokenizers.Split(Regex(CHUNK), "removed", invert=True)
    core.decoder = _decoder()
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    core.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    tokenizer = fast_tokenizer(
        core,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        model_max_length=POSITIONS,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def pieces(text: str) -> list[str]:
    """The tokens that a text needs.

    Example: pieces("Put mug 12 in/on b07.") == ["put", "mug", "1", "##2", "in/on", "b", "##0", "##7", "."]
    """
    for tag in TAGS:
        text = text.replace(tag, " ")
    found = []
    for chunk in re.findall(CHUNK, text.lower()):
        first, *rest = re.findall(PIECE, chunk) if re.search("[0-9]", chunk) else [chunk]
        found += [first, *(MARK + piece for piece in rest)]
    return found


def _decoder() -> Any:
    """Joins tokens with spaces, takes off the marks, then closes the spaces at tags and punctuation."""
    steps: list[Any] = [decoders.WordPiece(prefix=MARK, cleanup=False), decoders.Fuse()]
    for tag in TAGS:
        steps += [decoders.Replace(f" {tag}", tag), decoders.Replace(f"{tag} ", tag)]
    steps += [decoders.Replace(f" {mark}", mark) for mark in GLUED_LEFT + GLUED_BOTH]
    steps += [decoders.Replace(f"{mark} ", mark) for mark in GLUED_RIGHT + GLUED_BOTH]
    return decoders.Sequence(steps)
