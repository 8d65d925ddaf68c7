"""What a contributed GPU, model or price list must hold; a failure names the entry and what it lacks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from planner.catalog.hf import NOT_MODELLED, model_from_mapping
from planner.catalog.load import FOLDER as CATALOG
from planner.catalog.load import gpus, models, normalized, price_offers
from planner.catalog.prices import FOLDER, parse_offers
from planner.machine.hardware import shard
from planner.shared.documents import shipped
from tests.catalog.families import ACCEPTED

MODEL_FOLDER = CATALOG / "models"

GPU_KEYS = {"memory_gib", "bandwidth_gb_per_s", "tflops", "link_gb_per_s", "aliases", "sources"}
GPU_OPTIONAL = {"gpus_per_node", "sm_count", "attention_kernel", "node_link_gb_per_s", "pair_gb_per_s", "gpu_class"}
MODEL_KEYS = {"source", "aliases", "config", "parameters_billion", "repositories"}


def problems_of_gpu(name: str, entry: dict[str, Any], sources: dict[str, str]) -> list[str]:
    """What an entry of gpus.yaml lacks, in words."""
    found = [f"{key} missing" for key in sorted(GPU_KEYS - entry.keys())]
    found += [f"{key} is no key of a GPU" for key in sorted(entry.keys() - GPU_KEYS - GPU_OPTIONAL)]
    if "bf16" not in entry.get("tflops", {"bf16": 0}):
        found.append("tflops.bf16 missing")
    named = entry.get("sources", [])
    if len(named) != 4:
        found.append(f"sources: 4 keys (memory, bandwidth, tflops, link), got {len(named)}")
    found += [f"sources: {key!r} is not explained under `sources`" for key in named if key not in sources]
    return [f"gpus.yaml: {name}: {problem}" for problem in found]


def problems_of_model(name: str, entry: dict[str, Any]) -> list[str]:
    """What a file of a model lacks, in words; a config.json that lacks keys is told by the reader itself."""
    found = [f"{key} missing" for key in ("source", "aliases", "config") if key not in entry]
    found += [f"{key} is no key of a model" for key in sorted(entry.keys() - MODEL_KEYS)]
    if not re.search(r"(read|entered) 20\d\d-\d\d-\d\d$", entry.get("source", "read 2026-11-21")):
        found.append("source: does not end with the day it was read")
    if name != normalized(name):
        found.append(f"the file's name is not canonical: {normalized(name)}")
    if len(entry.get("parameters_billion", (0, 0))) != 2:
        found.append("parameters_billion: two values, total and active")
    return [f"{name}.json: {problem}" for problem in found]


def test_gpus_are_complete() -> None:
    data = shipped(CATALOG / "gpus.yaml")
    assert not [p for name, entry in data["gpus"].items() for p in problems_of_gpu(name, entry, data["sources"])]
    used = {key for entry in data["gpus"].values() for key in entry["sources"]}
    assert not sorted(set(data["sources"]) - used), "explained under `sources` but used by no GPU"


@pytest.mark.parametrize("path", sorted(MODEL_FOLDER.glob("*.json")), ids=lambda p: p.stem)
def test_model_files_are_complete(path: Any) -> None:
    entry = json.loads(path.read_text(encoding="utf-8"))
    assert not problems_of_model(path.stem, entry)
    # raises with every key that is missing or ill-typed
    spec = model_from_mapping(entry["config"], path.name, path.stem)
    assert spec.parameters_total > 5e8
    # an encoder keeps nothing of what it read
    assert (shard(spec).full_bytes_per_token > 0.0) == (spec.pooling != "encoder")


@pytest.mark.parametrize("name", sorted(ACCEPTED.keys() & models().keys()))
def test_the_catalog_agrees_with_what_makers_say(name: str) -> None:
    assert models()[name].parameters_total == pytest.approx(ACCEPTED[name].parameters * 1e9, rel=0.02)
    assert shard(models()[name]).full_bytes_per_token == pytest.approx(ACCEPTED[name].kv_bytes, rel=1e-9)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.csv")), ids=lambda p: p.stem)
def test_price_lists_are_complete(path: Any) -> None:
    offers = parse_offers(path.read_text(encoding="utf-8"), path.name, gpus())
    assert offers
    assert {offer.vendor for offer in offers} == {path.stem}, "one file per vendor, named after it"
    assert len({(o.gpu, o.region, o.term) for o in offers}) == len(offers), "one offer per GPU, region and term"


def test_the_check_names_what_is_missing() -> None:
    """The check itself: an entry that lacks things is told which."""
    assert problems_of_gpu("x1", {"memory_gib": 80, "sources": ["a"], "color": 1}, {}) == [
        "gpus.yaml: x1: aliases missing",
        "gpus.yaml: x1: bandwidth_gb_per_s missing",
        "gpus.yaml: x1: link_gb_per_s missing",
        "gpus.yaml: x1: tflops missing",
        "gpus.yaml: x1: color is no key of a GPU",
        "gpus.yaml: x1: sources: 4 keys (memory, bandwidth, tflops, link), got 1",
        "gpus.yaml: x1: sources: 'a' is not explained under `sources`",
    ]
    assert problems_of_model("M 1", {"source": "a page", "config": {}, "heads": 8}) == [
        "M 1.json: aliases missing",
        "M 1.json: heads is no key of a model",
        "M 1.json: source: does not end with the day it was read",
        "M 1.json: the file's name is not canonical: m-1",
    ]


def test_several_vendors_and_terms() -> None:
    offers = price_offers()
    assert {"on-demand", "spot", "reserved-1y"} <= {o.term for o in offers}
    for name in ("h100-80gb", "h200-141gb", "a100-80gb", "b200-180gb", "b300-270gb", "l40s-48gb", "mi300x-192gb"):
        assert len({o.vendor for o in offers if o.gpu == name}) >= 2, name


def test_the_document_names_every_family_that_is_refused() -> None:
    text = (Path(__file__).parents[2] / "docs" / "catalog.md").read_text(encoding="utf-8")
    assert not [family for family in NOT_MODELLED if f"`{family}`" not in text]
    families = {(f.config.get("text_config") or f.config)["model_type"] for f in ACCEPTED.values()}
    assert f"{len(ACCEPTED)} configurations of {len(families)} families" in text
