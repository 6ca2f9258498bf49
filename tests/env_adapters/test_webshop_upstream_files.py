"""The original files' formats, with invented content: rules, missing, torn and wrong files, reading in windows."""

import hashlib
import json

import pytest

from env_adapters.base import EnvironmentFault
from env_adapters.webshop import json_stream, upstream_files
from env_adapters.webshop.json_stream import elements
from env_adapters.webshop.products import Instruction
from env_adapters.webshop.upstream_files import KNOWN, check_files, find_files, prices, product_of, read_products

SMALL = ("items_shuffle_1000.json", "items_ins_v2_1000.json", "items_human_ins.json")


def entry(asin="B000000001", **others):
    return {
        "name": "Linen Curtain", "asin": asin, "category": "garden", "query": " Curtains ",
        "product_category": "Home › Curtains", "full_description": "Falls softly.",
        "small_description": ["Washable", "Two panels"], "pricing": "$18.99", "customization_options": {},
        "images": ["https://example.org/1.jpg"], **others,
    }  # fmt: skip


def write(folder, items, attributes=None, human=None, names=SMALL):
    folder.mkdir(exist_ok=True)
    for name, content in zip(names, (items, attributes or {}, human or {}), strict=True):
        (folder / name).write_text(json.dumps(content))
    return folder


def read(folder, *args, **kwargs):
    return list(read_products(find_files(write(folder, *args, **kwargs))))


# ------------------------------------------------------------------------------------------------------------- rules
def test_a_product_is_read(tmp_path):
    options = {
        "Color": [{"value": " Grey/White ", "image": "x"}, {"value": "NAVY", "image": None}], "Size": None,
        "Fit Type": [{"value": "Slim"}],
    }  # fmt: skip
    human = {
        "B000000001": [
            {
                "asin": "B000000001", "instruction": "I need a grey curtain.", "worker_id": "nobody",
                "instruction_attributes": ["machine washable"], "instruction_options": ["grey | white"],
            }
        ]
    }  # fmt: skip
    attributes = {
        "B000000001": {
            "attributes": ["machine washable", "linen"], "instruction": "find me curtains",
            "instruction_attributes": ["linen"],
        }
    }  # fmt: skip
    (found,) = read(tmp_path, [entry(customization_options=options, brand="Nobody")], attributes, human)
    assert found.title == "Linen Curtain" and found.query == "curtains" and found.category == "garden"
    assert found.options == {"color": ("grey | white", "navy"), "fit type": ("slim",)}
    assert found.bullets == ("Washable", "Two panels") and found.pricing == (18.99,)
    assert found.attributes == ("machine washable", "linen")
    assert found.human_instructions == (
        Instruction("I need a grey curtain.", ("machine washable",), ("grey | white",)),
    )
    assert found.synthetic_instruction == Instruction("find me curtains", ("linen",))


def test_what_is_missing_has_a_stand_in():
    found = product_of(
        entry(small_description="One line", full_description=None, pricing=None, customization_options=None), {}
    )
    assert found.bullets == ("One line",) and found.description == "" and found.options == {}
    assert found.pricing == (100.0,) and found.attributes == ("DUMMY_ATTR",)
    assert found.human_instructions == () and found.synthetic_instruction is None
    assert product_of(entry(name=float("nan"), category="\ud83d!"), {}).title == ""
    assert product_of(entry(category="\ud83d!"), {}).category == "\ufffd!"


@pytest.mark.parametrize(
    "pricing, expected",
    [
        ("$18.99", (18.99,)), ("$1,299.00", (1299.0,)), ("$18.99 - $27.50", (18.99, 27.5)), ("", (100.0,)),
        (None, (100.0,)), ("$1 $2 $3", (1.0, 2.0)), ("from $5", (5.0,)), ("7.50", (100.0,)), ("$", (100.0,)),
        ("$1.2.3 $4", (4.0,)), ("$.5", (0.5,)), ("$27.5$18", (27.5, 18.0)),
    ],
)  # fmt: skip
def test_prices(pricing, expected):
    assert prices(pricing) == expected


def test_who_is_left_out(tmp_path):
    asins = ["B1", "nan", "B2", "", "B1", "B2345678901", "B234567890"]
    found = read(tmp_path, [entry(asin, name=f"number {number}") for number, asin in enumerate(asins)])
    assert [(one.asin, one.title) for one in found] == [
        ("B1", "number 0"),
        ("B2", "number 2"),
        ("B234567890", "number 6"),
    ]


# ------------------------------------------------------------------------------------------------------------- files
def test_which_set(tmp_path):
    with pytest.raises(
        EnvironmentFault, match=r"lacks items_shuffle_1000.json \(4,467,013 bytes\), .*setup.sh -d small"
    ):
        find_files(tmp_path)
    with pytest.raises(EnvironmentFault, match=r"items_shuffle.json \(5,479,720,229 bytes\).*setup.sh -d all"):
        find_files(tmp_path, "full")
    write(tmp_path, [entry()])
    assert find_files(tmp_path).items.name == "items_shuffle_1000.json"
    (tmp_path / SMALL[2]).unlink()
    with pytest.raises(EnvironmentFault, match=r"lacks items_human_ins.json \(5,137,548 bytes\); get"):
        find_files(tmp_path)
    write(tmp_path, [entry()], names=("items_shuffle.json", "items_ins_v2.json", SMALL[2]))
    with pytest.raises(EnvironmentFault, match="holds both product sets; choose with env.product_set"):
        find_files(tmp_path)
    assert find_files(tmp_path, "full").attributes.name == "items_ins_v2.json"


def test_another_file_is_told_by_its_size_then_by_its_hash(tmp_path, monkeypatch):
    files = find_files(write(tmp_path, [entry()]))
    with pytest.raises(
        EnvironmentFault, match=r"_1000.json: \d+ bytes, .* has 4,467,013 \(truncated, or another file\)"
    ):
        check_files(files)
    check_files(files, accept_others=True)
    contents = {name: (tmp_path / name).read_bytes() for name in SMALL}
    known = {name: (len(content), hashlib.sha256(content).hexdigest()) for name, content in contents.items()}
    monkeypatch.setattr(upstream_files, "KNOWN", known)
    check_files(files)
    (tmp_path / SMALL[2]).write_bytes(b"[]")  # as long as {}
    with pytest.raises(EnvironmentFault, match=r"items_human_ins.json: SHA-256 \w+…, .*env.accept_other_files=true"):
        check_files(files)


def test_known_sizes_and_hashes_have_their_shape():
    assert len(KNOWN) == 5 and len({digest for _, digest in KNOWN.values()}) == 5
    assert all(len(digest) == 64 and int(digest, 16) and size > 100_000 for size, digest in KNOWN.values())


def test_facts_change_with_the_files(tmp_path):
    before = find_files(write(tmp_path, [entry()])).facts
    assert before == find_files(tmp_path).facts and json.loads(json.dumps(before)) == before
    assert before != find_files(write(tmp_path, [entry(name="Linen Curtains")])).facts


def test_a_file_cut_anywhere_is_named(tmp_path):
    files = find_files(write(tmp_path, [entry("B1"), entry("B2")], {"B1": {"attributes": ["x"]}}))
    for path in (files.items, files.attributes, files.instructions):
        whole = path.read_bytes()
        for end in range(0, len(whole), 3):
            path.write_bytes(whole[:end])
            with pytest.raises(EnvironmentFault, match=f"{path.name}: (is empty|ends early|has no :).*; get it again"):
                list(read_products(files))
        path.write_bytes(whole)
    assert len(list(read_products(files))) == 2


@pytest.mark.parametrize(
    "items, reason",
    [
        ([entry(), "text"], "product 1 is not in WebShop's format"),
        ([{"asin": "B1"}], "product 0 is not in WebShop's format .KeyError: 'small_description'"),
        ([entry(7)], "product 0 is not"),
        ([entry(customization_options={"size": ["s"]})], "product 0 is not"),
        ([entry(customization_options={"size": [{}]})], "product 0 is not .*KeyError: 'value'"),
        ([entry(pricing=5)], "product 0 is not"),
        ({"B1": entry()}, r"starts with '{' where \[ should be"),
        ("text", "starts with"),
    ],
)
def test_a_file_of_another_format(tmp_path, items, reason):
    with pytest.raises(EnvironmentFault, match=reason):
        read(tmp_path, items)


@pytest.mark.parametrize("attributes", [{"B000000001": []}, {"B000000001": {"attributes": "soft"}}])
def test_attributes_of_another_format(tmp_path, attributes):
    with pytest.raises(EnvironmentFault, match="product 0 is not"):
        read(tmp_path, [entry()], attributes)


# ----------------------------------------------------------------------------------------------------------- windows
VALUES = [{"a": [1, 2.5, "x, ]"]}, [], 'é\U0001f600\\"', 12345, -0.5e3, None, True, "", {"b": {}}, "y" * 50]


@pytest.mark.parametrize("window", [1, 2, 3, 7, 64, 1 << 20])
def test_windows_of_any_size_read_the_same(tmp_path, monkeypatch, window):
    monkeypatch.setattr(json_stream, "WINDOW", window)
    path = tmp_path / "file.json"
    for indent in (None, 2):
        path.write_text(json.dumps(VALUES, indent=indent) + "\n")
        assert list(elements(path, "[", "")) == VALUES
        path.write_text(json.dumps(dict(enumerate(VALUES)), indent=indent))
        assert list(elements(path, "{", "")) == [(str(number), value) for number, value in enumerate(VALUES)]


def test_nan_is_read_and_broken_json_is_not(tmp_path, monkeypatch):
    path = tmp_path / "file.json"
    path.write_text('[{"price": NaN}]')
    assert str(list(elements(path, "[", ""))) == "[{'price': nan}]"
    monkeypatch.setattr(json_stream, "WINDOW", 10)
    monkeypatch.setattr(json_stream, "LARGEST", 100)
    path.write_text('[1, {"a": tru ' + " " * 1000 + "}]")
    with pytest.raises(EnvironmentFault, match="is no JSON, after 1 whole elements"):
        list(elements(path, "[", ""))
    path.write_bytes(b'["\xff"]')
    with pytest.raises(EnvironmentFault, match="cannot be read"):
        list(elements(path, "[", ""))
    path.write_text("[1 2]")
    with pytest.raises(EnvironmentFault, match="has '2' where , or ] should be"):
        list(elements(path, "[", ""))
