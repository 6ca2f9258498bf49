"""The adapter over files in the original's format, made up here: the way of a user who has the real ones."""

from __future__ import annotations

import json

import pytest

from env_adapters.base import EnvironmentFault
from env_adapters.contract import check_adapter
from env_adapters.registry import make_adapter
from env_adapters.webshop.catalogue import generate


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """Sixty invented products as the original files would hold them."""
    folder, items, about, human = tmp_path_factory.mktemp("data"), [], {}, {}
    for product in generate("full", 60, 4, 0):
        items.append({
            "asin": product.asin, "name": product.title, "category": product.category, "query": product.query,
            "product_category": product.product_category, "full_description": product.description,
            "small_description": list(product.bullets), "pricing": product.price_tag.replace(" to ", " - "),
            "customization_options": {
                name.title(): [{"value": value, "image": None} for value in values]
                for name, values in product.options.items()
            }, "images": ["x.jpg"],
        })  # fmt: skip
        about[product.asin] = {
            "attributes": list(product.attributes), "instruction": product.synthetic_instruction.text,
            "instruction_attributes": list(product.synthetic_instruction.attributes),
        }  # fmt: skip
        human[product.asin] = [
            {"asin": product.asin, "instruction": wish.text, "instruction_attributes": list(wish.attributes),
             "instruction_options": list(wish.options), "worker_id": "nobody"}
            for wish in product.human_instructions
        ]  # fmt: skip
    for name, content in (("items_shuffle_1000", items), ("items_ins_v2_1000", about), ("items_human_ins", human)):
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("goals", ["human", "synthetic"])
def test_contract(data_dir, tmp_path_factory, goals):
    cache = tmp_path_factory.getbasetemp() / "cache"
    options = {"data_dir": str(data_dir), "cache_dir": str(cache), "accept_other_files": True, "goals": goals}
    adapter = make_adapter("webshop", options)
    seen = check_adapter(adapter, games=2)
    facts = adapter.description()
    assert seen["expert_games"] == 8 and facts["products"] == 60
    assert (facts["source"], facts["catalogue"]["verified"]) == ("original", False)
    assert set(facts["catalogue"]["files"]) == {
        "items_shuffle_1000.json", "items_ins_v2_1000.json", "items_human_ins.json",
    }  # fmt: skip


def test_other_files_than_the_published_are_refused_with_size_and_remedy(data_dir, tmp_path):
    adapter = make_adapter("webshop", {"data_dir": str(data_dir), "cache_dir": str(tmp_path)})
    with pytest.raises(EnvironmentFault, match=r"items_shuffle_1000.json: .* bytes, the published file has 4,467,013"):
        adapter.prepare()
    (data_dir / "items_ins_v2_1000.json").rename(tmp_path / "moved.json")
    try:
        with pytest.raises(EnvironmentFault, match=r"lacks items_ins_v2_1000.json \(147,099 bytes\); get them with"):
            adapter.prepare()
    finally:
        (tmp_path / "moved.json").rename(data_dir / "items_ins_v2_1000.json")
