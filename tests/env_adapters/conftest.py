"""Small sets of generated games on the real engine, and invented shops, made once a session."""

from __future__ import annotations

import pytest

from env_adapters.registry import make_adapter

SIZES = {"train_games": 18, "warm_start_games": 12, "dev_games": 6, "held_out_games": 12}


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("alfworld")


@pytest.fixture(scope="session")
def make(cache_dir):
    """Build and prepare an adapter over generated games; equal options share one folder."""

    def build(**options):
        adapter = make_adapter(
            "alfworld", {"source": "generated", "cache_dir": str(cache_dir), "prepare_processes": 1, **SIZES, **options}
        )
        adapter.prepare()
        return adapter

    return build


@pytest.fixture(scope="session")
def tiny(make):
    return make()


@pytest.fixture(scope="session")
def shop_adapter(tmp_path_factory):
    """Build and prepare a WebShop adapter over an invented catalogue; equal options share one folder."""
    folder = tmp_path_factory.mktemp("webshop")

    def build(**options):
        adapter = make_adapter("webshop", {"cache_dir": str(folder), **options})
        adapter.prepare()
        return adapter

    return build
