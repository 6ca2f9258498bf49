"""Ways to spoil a file: out of one whole sample many distinct malformed ones, the same ones every time."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

Mutation = tuple[str, bytes]  # (kind, content)

DEEP = 20_000  # brackets: far beyond what Python's recursion limit lets json read
LONG = 100_000  # characters
HUGE_NUMBER = "9" * 5000  # more digits than Python converts
RAW = {  # what no Python value becomes in JSON, put in as text
    "huge number": HUGE_NUMBER,
    "number beyond all floats": "1e999",
    "deep nesting": "[" * DEEP + "]" * DEEP,
    "deep objects": '{"a":' * DEEP + "0" + "}" * DEEP,
    "bare word": "undefined",
}
WRONG = {  # a value of another type, or one that no field can have
    "null": None,
    "truth value": True,
    "negative number": -1,
    "large number": 10**30,
    "fraction": 0.5,
    "NaN": float("nan"),
    "infinity": float("inf"),
    "minus infinity": float("-inf"),
    "text": "x",
    "empty text": "",
    "long text": "a" * LONG,
    "NUL": "a\x00b",
    "lone surrogate": "a\ud800b",
    "right-to-left mark": "a\u202eb",
    "list": [],
    "list of lists": [[[]]],
    "object": {},
    "object in a list": [{"a": 1}],
    "path out": "../../../etc/passwd",
}
PLACE = '"@raw@"'


def places(tree: Any, path: tuple = ()) -> Iterator[tuple]:
    """The path of every value of a JSON tree below its root."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def with_value(tree: Any, path: tuple, value: Any) -> Any:
    """A copy of a tree with another value at a path."""
    changed = copy.deepcopy(tree)
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return changed


def without(tree: Any, path: tuple) -> Any:
    """A copy of a tree without what stands at a path."""
    changed = copy.deepcopy(tree)
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    del holder[path[-1]]
    return changed


def json_mutations(sample: bytes, seed: str, count: int) -> Iterator[Mutation]:
    """Wrong, missing, unknown and repeated parts of a JSON document, `count` of them and all that concern its root."""
    tree, draw = json.loads(sample), random.Random(seed)
    every = list(places(tree))
    for kind, value in WRONG.items():
        yield f"root is {kind}", json.dumps(value).encode()
    for kind, text in RAW.items():
        yield f"root is {kind}", text.encode()
    choices: list[tuple] = [("missing", path, None) for path in every]
    choices += [(kind, path, value) for path in every for kind, value in WRONG.items()]
    choices += [(kind, path, text) for path in every for kind, text in RAW.items()]
    choices += [("repeated key", path, None) for path in every if isinstance(path[-1], str)]
    choices += [("unknown key", path[:-1], None) for path in every if isinstance(path[-1], str)]
    for kind, path, value in draw.sample(choices, min(count, len(choices))):
        yield kind, _spoiled(tree, kind, path, value)


def _spoiled(tree: Any, kind: str, path: tuple, value: Any) -> bytes:
    if kind == "missing":
        return json.dumps(without(tree, path)).encode()
    if kind == "unknown key":
        return json.dumps(with_value(tree, (*path, "unknown"), 1)).encode()
    if kind == "repeated key":  # a second value of another type: the later one counts in Python's json
        marked = json.dumps(with_value(tree, path, {"@twice@": 0}))
        key = json.dumps(path[-1])
        return marked.replace('{"@twice@": 0}', f"1, {key}: [[]]").encode()
    if kind in RAW:
        return json.dumps(with_value(tree, path, "@raw@")).replace(PLACE, value).encode()
    return json.dumps(with_value(tree, path, value)).encode()


def cuts(sample: bytes, count: int) -> Iterator[Mutation]:
    """The sample cut off at `count` places, evenly spread, the first byte and the last among them."""
    step = max(1, len(sample) // count)
    for end in sorted({*range(0, len(sample), step), len(sample) - 1}):
        yield "cut off", sample[:end]


def flips(sample: bytes, seed: str, count: int) -> Iterator[Mutation]:
    """One bit turned over, at `count` places."""
    draw = random.Random(seed)
    for _ in range(count):
        place, bit = draw.randrange(len(sample)), draw.randrange(8)
        yield "flipped bit", sample[:place] + bytes([sample[place] ^ (1 << bit)]) + sample[place + 1 :]


def noise(sample: bytes, seed: str, count: int) -> Iterator[Mutation]:
    """Bytes that were never this file, and pieces of it in the wrong place."""
    draw = random.Random(seed)
    yield "empty", b""
    yield "only NUL", bytes(len(sample))
    yield "byte order mark", b"\xef\xbb\xbf" + sample
    yield "UTF-16", sample.decode("latin-1").encode("utf-16")
    yield "not UTF-8", sample[: len(sample) // 2] + b"\xff\xfe\xc0" + sample[len(sample) // 2 :]
    yield "twice", sample + sample
    for _ in range(count):
        a, b = sorted(draw.randrange(len(sample) + 1) for _ in range(2))
        yield "piece missing", sample[:a] + sample[b:]
        yield "random bytes", draw.randbytes(draw.randrange(1, 200))
        yield "bytes replaced", sample[:a] + draw.randbytes(b - a) + sample[b:]


def mutations(sample: bytes, form: str, seed: str, count: int) -> list[Mutation]:
    """Distinct spoilt forms of a sample, about `count`; `form` is "json", "jsonl" (one line) or "bytes"."""
    share = max(4, count // 8)
    body = sample.rstrip(b"\n") if form == "jsonl" else sample
    found: list[Mutation] = [*cuts(body, share), *flips(body, seed, share), *noise(body, seed, share // 3)]
    if form in ("json", "jsonl"):
        found += json_mutations(body, seed, count - len(found))
    if form == "jsonl":
        found = [(kind, content.replace(b"\n", b" ") + b"\n") for kind, content in found]
    distinct = {content: kind for kind, content in found if content != sample}
    return [(kind, content) for content, kind in distinct.items()]
