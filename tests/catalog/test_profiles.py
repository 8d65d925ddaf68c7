"""Profiles: one format, strict, found in the order that is promised."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from planner.catalog import Profile, gpu, model, profile
from planner.catalog.load import FOLDER
from planner.catalog.profiles import (
    ReservedSlots,
    estimated_profile,
    load_profile,
    parse_profile,
    profile_names,
    save_profile,
    served_by,
    user_directory,
)
from planner.errors import InputError
from planner.machine.iteration import IterationModel
from planner.machine.roofline import CONSTANTS

FULL = Profile(
    name="mine",
    gpu="h100-80gb",
    model="llama-3.1-8b",
    tp=2,
    iteration=IterationModel(t0=8e-5, w=5e-3, b=2e-5, c=1e-6, tau=128, g=5e-8, h=1e-6, e=4e-8, a=7e-10, x=1e-7),
    provenance="measured",
    band=0.09,
    date="2026-11-21",
    engine="vllm",
    engine_version="0.15",
    command="fleetopt calibrate --gpu h100",
    points=24,
    error_mean=0.031,
    error_p95=0.09,
    covered={"decodes": (1.0, 256.0), "context_tokens": (128.0, 32768.0)},
    kv_tokens=420904,
    request_s=0.0004,
    api_overhead_s=0.02,
    reserved=ReservedSlots(16.0, 65536.0),
    replica_usd_per_hour=5.4,
    settings={"max_num_batched_tokens": 8192, "enable_prefix_caching": False, "attention_backend": "FLASH_ATTN"},
    source="a test",
    notes=("one line: with a colon", "±"),
)


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "profiles"
    monkeypatch.setenv("FLEETOPT_PROFILES", str(folder))
    return folder


@pytest.mark.parametrize(
    "original", [FULL, dataclasses.replace(FULL, covered={}, settings={}, notes=(), reserved=None)]
)
def test_written_is_what_is_read(original: Profile, tmp_path: Path) -> None:
    path = save_profile(original, tmp_path / "sub" / "p.yaml")
    assert load_profile(path) == original
    assert [p.name for p in path.parent.iterdir()] == ["p.yaml"]  # nothing half-written beside it


def test_saved_into_a_directory_under_its_name(tmp_path: Path) -> None:
    assert save_profile(FULL, tmp_path).name == "mine.yaml"


SHIPPED = sorted((FOLDER / "profiles").glob("*.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_a_shipped_profile_says_where_it_comes_from_and_what_it_was_never_tested_on(path: Path) -> None:
    shipped = load_profile(path)
    assert shipped.name == path.stem and shipped.source and shipped.untested
    assert shipped.date is not None and re.fullmatch(r"20\d\d-\d\d(-\d\d)?", shipped.date)
    if shipped.provenance != "estimated":
        assert shipped.points and shipped.command and shipped.covered["decodes"][1] > 0.0
        # four loads of one shape leave nothing to leave out
        assert shipped.error_mean is not None or shipped.points < 6
        assert shipped.band > (shipped.error_mean or 0.0) and "publication" in shipped.source
    if shipped.provenance == "fitted":
        assert (not shipped.automatic and shipped.engine_version is not None) or "b200" in path.stem
        assert any(str(shipped.engine) in line for line in shipped.untested)


def test_paper_profile() -> None:
    paper = profile("fleetopt-paper")
    assert paper.iteration == IterationModel(t0=0.008, h=0.00065)
    assert paper.iteration.time(128) == pytest.approx(0.008 + 0.00065 * 128)
    assert (paper.gpus, paper.replica_usd_per_hour, paper.provenance) == (8, 2.21, "estimated")
    assert paper.reserved is not None
    # the node's memory as the paper counts it: 64K slots of 320 KB a token
    assert paper.kv_tokens == 16 * 65536
    assert paper.kv_tokens * 327_680 == pytest.approx(344e9, rel=0.01)
    assert any("Measurement does not support" in note for note in paper.notes)


def test_every_problem_at_once_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(
        "schema: fleetopt-profile/1\n"
        "name: bad\n"
        "gpu: h100-80gb\n"
        "tp: two\n"
        "provenance: guessed\n"
        "iteration:\n"
        "  t0: 0.001\n"
        "  q: 3\n"
        "  h: -1\n"
        "band: 0.3\n"
        "covered: {decodes: [5, 1], widgets: [1, 2]}\n"
        "reserved: {slots: 16}\n"
        "prise: 3\n"
    )
    with pytest.raises(InputError) as caught:
        load_profile(path)
    assert list(caught.value.problems) == [
        f"{path}:4: tp: expected a number, got 'two'",
        f"{path}:5: provenance: 'guessed' is none of measured, fitted, estimated",
        f"{path}:8: iteration.q: unknown key",
        f"{path}:9: iteration.h: must be >= 0, got -1",
        f"{path}:11: covered.decodes: lowest above highest: [5, 1]",
        f"{path}:11: covered.widgets: unknown key",
        f"{path}:12: reserved.context_tokens: missing",
        f"{path}:13: prise: unknown key",
        f"{path}: model: missing",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a mapping"),
        ("- 1\n", "expected a mapping"),
        ("a: [1\n", "not YAML"),
        ("schema: fleetopt-profile/9\nname: x\n", "schema: expected 'fleetopt-profile/1', got 'fleetopt-profile/9'"),
    ],
)
def test_not_a_profile(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"p\.yaml") as caught:
        load_profile(path)
    assert message in str(caught.value)


def test_numbers_people_write() -> None:
    data = {**FULL.to_dict(), "iteration": {"t0": "8e-3", "h": 1}, "engine_version": 0.15}
    read = parse_profile(data)
    assert read.iteration.t0 == 0.008
    assert read.engine_version == "0.15"


def test_search_order(own_directory: Path, tmp_path: Path) -> None:
    hardware = {"gpu": "h100", "model": "llama-3.1-8b", "tp": 2}
    assert user_directory() == own_directory
    assert profile(**hardware).provenance == "estimated"  # type: ignore[arg-type]
    save_profile(FULL, own_directory / "mine.yaml")
    assert profile(**hardware) == FULL  # type: ignore[arg-type]
    assert profile("Mine") == FULL
    assert profile_names()[0] == "mine" and "fleetopt-paper" in profile_names()
    # another TP or dtype is another replica
    assert profile(gpu="h100", model="llama-3.1-8b", tp=1).provenance == "estimated"
    assert profile(gpu="h100", model=model("llama-3.1-8b", weight_dtype="fp8"), tp=2).provenance == "estimated"
    # the user's file wins over the shipped one of the same name; a path wins over both
    save_profile(dataclasses.replace(FULL, name="fleetopt-paper"), own_directory / "fleetopt-paper.yaml")
    assert profile("fleetopt-paper").tp == 2
    elsewhere = save_profile(dataclasses.replace(FULL, band=0.5), tmp_path / "else.yaml")
    assert profile(elsewhere).band == profile(str(elsewhere)).band == 0.5


def test_the_paper_is_used_only_by_name() -> None:
    found = profile(gpu="a100", model="llama-3.1-70b", tp=8)
    assert found.provenance == "estimated"
    assert found.iteration.t0 != 0.008


def test_estimates_say_how_far_to_trust_them() -> None:
    dense = estimated_profile(gpu("h100"), model("llama-3.1-8b"))
    mixture = estimated_profile(gpu("h100"), model("qwen3-30b-a3b"))
    assert dense.trust == f"estimated, ±{100 * dense.band:.0f}%" and dense.band < 0.35
    assert mixture.band > dense.band
    assert FULL.trust == "measured, ±9%"


def test_unknown_names() -> None:
    with pytest.raises(InputError, match="unknown profile 'fleetopt-papper'; did you mean 'fleetopt-paper'"):
        profile("fleetopt-papper")
    with pytest.raises(InputError, match="no such file"):
        profile("absent.yaml")
    with pytest.raises(InputError, match="needs a name, or a GPU and a model"):
        profile()


def test_a_broken_file_of_the_user_is_not_skipped(own_directory: Path) -> None:
    own_directory.mkdir()
    (own_directory / "broken.yaml").write_text("name: x\n")
    with pytest.raises(InputError, match=r"broken\.yaml"):
        profile(gpu="h100", model="llama-3.1-8b")


def test_outside_the_covered_range() -> None:
    assert FULL.outside(decodes=300, context_tokens=4096) == ("decodes = 300 is outside the measured range 1..256",)
    assert estimated_profile(gpu("l4"), model("qwen3-8b")).outside(decodes=1e9) == ()


def test_a_profile_of_the_same_shape_serves_a_later_release() -> None:
    """Llama 3 8B and 3.1 8B differ in context length only: one measurement is good for both."""
    from planner.catalog import profile

    found = profile(gpu="a100", model="llama-3.1-8b")
    assert (found.name, found.provenance) == ("llama-3-8b-a100-80gb-tp1", "measured")
    assert profile(gpu="a100", model="llama-3-8b") == found
    assert profile(gpu="a100", model="qwen3-8b").provenance == "estimated"


def test_measured_kernels_gain_the_host_time_of_the_version_asked_for() -> None:
    """vLLM 0.27 makes its next batch while the GPU runs this one: no time of an iteration, where 0.9 took 1.5 ms."""
    kernels = profile("llama-3-8b-a100-80gb-tp1")
    old, new = served_by(kernels, "vllm"), served_by(kernels, "vllm@0.27.1")
    assert old.iteration.t0 - kernels.iteration.t0 == pytest.approx(CONSTANTS["vllm_iteration_s"])
    assert new.iteration.t0 == kernels.iteration.t0 and new.iteration.h == old.iteration.h
    assert new.engine_version == "0.27.1"
