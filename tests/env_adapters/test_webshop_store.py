"""The product store: round trip, look-ups, damage, two builders, constant memory."""

import json
import multiprocessing
import tracemalloc

import pytest

from env_adapters.base import EnvironmentFault
from env_adapters.webshop.products import Instruction, Product, from_dict, to_dict
from env_adapters.webshop.store import ProductStore, ensure_store
from tests.env_adapters.webshop_catalogues import product

CURTAIN = Product(
    asin="B0000EXMPL", title='Linen "Curtain" — 52 x 84\tin \U0001f9e1', category="garden", query="curtains",
    product_category="Home & Kitchen › Window Treatments ›Curtains", description="", bullets=("Washable", "\0[SEP]\n"),
    pricing=(18.99, 27.5), options={"color": ("grey", "white"), "a | b": ()}, attributes=("machine washable",),
    human_instructions=(Instruction("i need a grey curtain.", ("machine washable",), ("grey",)),),
    synthetic_instruction=Instruction("find me curtains", ("machine washable",)),
)  # fmt: skip


def several():
    return [product("B2", "lamp"), CURTAIN, product("A", "kettle"), product("0000000001", "basket")]


def test_a_product_survives_json():
    assert from_dict(json.loads(json.dumps(to_dict(CURTAIN)))) == CURTAIN
    assert from_dict(to_dict(product("B1"))) == product("B1")


def test_price_tag_and_crumbs():
    assert CURTAIN.price_tag == "$18.99 to $27.5" and product("B1", pricing=(100.0,)).price_tag == "$100.0"
    assert CURTAIN.crumbs == ("Home & Kitchen", "Window Treatments", "Curtains")


def test_products_by_number_and_by_id(tmp_path):
    store = ensure_store(tmp_path / "products", {"seed": 1}, several)
    assert len(store) == 4 and list(store) == several() and store.facts == {"seed": 1}
    for number, one in enumerate(several()):
        assert store.product(number) == one and store.index_of(one.asin) == number
    for unknown in ("", "B", "B20", "B0000EXMPL0", "zz", "é", "\ud800"):
        with pytest.raises(KeyError):
            store.index_of(unknown)
    for outside in (-1, 4):
        with pytest.raises(IndexError):
            store.product(outside)
    # Sorted as bytes: "0000000001" < "A" < "B0000EXMPL" < "B2".
    assert store.ranks().tolist() == [3, 2, 1, 0]


def test_the_catalogues_name_is_its_content(tmp_path):
    names = [
        ensure_store(tmp_path / str(number), {"number": number}, lambda made=made: made).catalogue
        for number, made in enumerate([several(), several(), several()[::-1], several()[:3]])
    ]
    assert names[0] == names[1] and len(set(names)) == 3


def test_it_is_made_once_and_again_where_the_facts_differ(tmp_path):
    made = []

    def products():
        made.append(1)
        return several()

    for facts, times in (({"seed": 1}, 1), ({"seed": 1}, 1), ({"seed": 2}, 2)):
        ensure_store(tmp_path / "products", facts, products)
        assert len(made) == times
    assert sorted(path.name for path in tmp_path.iterdir()) == [".products.lock", "products"]


def test_an_open_store_outlives_its_folder(tmp_path):
    old = ensure_store(tmp_path / "products", {"seed": 1}, several)
    ensure_store(tmp_path / "products", {"seed": 2}, lambda: [product("B9")])
    assert old.product(1) == CURTAIN and old.index_of("A") == 2


@pytest.mark.parametrize("asin", ["", "B12345678901", "é", "B\n", "B\0"])
def test_an_id_that_cannot_be_one(tmp_path, asin):
    with pytest.raises(EnvironmentFault, match="must be 1 to 10 printable ASCII characters"):
        ensure_store(tmp_path / "products", {}, lambda: [product("B1"), product(asin)])
    assert not (tmp_path / "products").exists() and not list(tmp_path.glob(".*.tmp"))


def test_an_id_twice_and_no_product_at_all(tmp_path):
    with pytest.raises(EnvironmentFault, match="'B2' occurs twice"):
        ensure_store(tmp_path / "products", {}, lambda: [*several(), product("B2")])
    with pytest.raises(EnvironmentFault, match="no product came"):
        ensure_store(tmp_path / "products", {}, list)


def test_a_torn_store_is_refused_and_made_again(tmp_path):
    folder = tmp_path / "products"
    ensure_store(folder, {}, several)
    for path in sorted(folder.iterdir()):
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(EnvironmentFault, match="no whole product store"):
            ProductStore(folder)
        assert list(ensure_store(folder, {}, several)) == several()


def test_a_damaged_line_is_named(tmp_path):
    store = ensure_store(tmp_path / "products", {}, several)
    path = tmp_path / "products" / "products.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"kettle"', b'"kettl",'))
    with pytest.raises(EnvironmentFault, match="product 2 is damaged .* delete that folder"):
        ProductStore(tmp_path / "products").product(2)
    assert store.product(3) == several()[3]


def test_a_killed_builder_leaves_nothing_in_the_way(tmp_path):
    (tmp_path / ".products.tmp").mkdir()
    (tmp_path / ".products.tmp" / "products.jsonl").write_text("half")
    assert len(ensure_store(tmp_path / "products", {}, several)) == 4
    assert not (tmp_path / ".products.tmp").exists()


def test_a_disk_that_does_not_take_it(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFault, match="cannot be written .* set env.cache_dir"):
        ensure_store(tmp_path / "file" / "products", {}, several)


def _build(folder, made):
    def products():
        made.value += 1  # under the folder's lock
        return (product(f"B{number}") for number in range(2000))

    ensure_store(folder, {}, products)


def test_two_builders_wait_for_each_other(tmp_path):
    context = multiprocessing.get_context("fork")
    made = context.Value("i", 0)
    both = [context.Process(target=_build, args=(tmp_path / "products", made)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(60)
    assert [process.exitcode for process in both] == [0, 0] and made.value == 1
    assert len(ProductStore(tmp_path / "products")) == 2000


def test_products_stream_through(tmp_path):
    """Writing 10 MB of products takes the memory of a buffer (1 MiB) and of some numbers a product."""
    tracemalloc.start()
    try:
        ensure_store(
            tmp_path / "products", {}, (lambda: (product(f"B{n}", description="lamp " * 2000) for n in range(1000)))
        )
        assert tracemalloc.get_traced_memory()[1] < 2_500_000
    finally:
        tracemalloc.stop()
