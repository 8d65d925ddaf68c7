"""The same question in other words, units, files and names: the same bytes. The same traffic written otherwise: the same fleet."""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray
from typer.testing import CliRunner

import planner as fo
from planner.catalog import load
from planner.cli.main import app
from planner.report import formatter

pytestmark = pytest.mark.usefixtures("fewer_replayed")

PROMISED = ("--slo", "500ms", "--tpot", "40ms")
ASKED = ("--cdf", "day.csv", "--rate", "5", *PROMISED, "--gpu", "l40s")
QUICK = {"tp": 1, "pools": 1, "token_budget": 2048, "confidence": 0.5}
ROWS = 1500


@cache
def requests() -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Stamps in whole 64ths of a second, which floats hold to the last bit; inputs, outputs."""
    rng = np.random.Generator(np.random.PCG64(37))
    stamps = np.round(np.cumsum(rng.exponential(0.1, ROWS)) * 64.0) / 64.0
    return stamps, rng.integers(50, 3000, ROWS), rng.integers(5, 400, ROWS)


def written(stamps: Any, inputs: Any, outputs: Any, column: str = "timestamp") -> None:
    """A trace in the folder one is in."""
    rows = "".join(f"{t},{i},{o}\n" for t, i, o in zip(stamps, inputs, outputs, strict=True))
    Path("day.csv").write_text(f"{column},input_tokens,output_tokens\n{rows}")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stamps, *lengths = requests()
    written(stamps.tolist(), *lengths)


def said(*words: str, to: str = "json", **quick: Any) -> str:
    """What the command line prints of a plan."""
    quickly = [word for name, value in {**QUICK, **quick}.items() for word in ("--set", f"{name}={value}")]
    run = CliRunner().invoke(app, ["plan", *words, *quickly, "--format", to])
    assert run.exit_code == 0, run.output
    return run.stdout


@cache
def first(to: str = "json") -> str:
    """What the question is first answered with."""
    return said(*ASKED, to=to)


@pytest.mark.parametrize("to", ["json", "table"])
def test_units_do_not_matter(to: str) -> None:
    for words in (
        ("--rate", "5rps", "--ttft", "0.5", "--tpot", "25tok/s"),
        ("--rate", "300/min", "--slo", "p99=0.5s", "--slo", "tpot:p99=40ms"),
        ("--rate", "18k/h", "--slo", "ttft:500 ms", "--tpot", "0.04s"),
    ):
        assert said("--cdf", "day.csv", "--gpu", "l40s", *words, to=to) == first(to), words


def test_nor_does_where_an_option_is_given() -> None:
    """By flag, by ``--set``, in a file of either kind, over one that says otherwise, in Python."""
    asked = first()
    options = {"cdf": "day.csv", "rate": 5, "slo": 0.5, "tpot": "40ms", "gpu": ["l40s"]}
    every = [word for name, value in {**options, "gpu": "l40s"}.items() for word in ("--set", f"{name}={value}")]
    assert said(*every) == asked
    Path("all.yaml").write_text(yaml.safe_dump({**options, **QUICK}))
    Path("other.json").write_text(json.dumps({**options, "rate": 70, "tpot": "1ms", "scenarios": {"now": {"rate": 5}}}))
    for words in (["--config", "all.yaml"], ["--config", "other.json", "--tpot", "40ms", "--rate", "5"],
                  ["--config", "other.json", "--set", "tpot=0.04", "--scenario", "now"]):  # fmt: skip
        assert said(*words) == asked, words
    found = fo.plan("day.csv", rate=5, slo="500ms", tpot=0.04, gpu="l40s", **QUICK)
    assert formatter("json")(found) + "\n" == asked
    # a plan is a question too, and its answer is itself
    Path("plan.yaml").write_text(said(*ASKED, to="yaml"))
    Path("answer.json").write_text(said("--config", "plan.yaml"))
    assert json.loads(Path("answer.json").read_text())["pools"] == json.loads(asked)["pools"]


@pytest.mark.parametrize(
    ("column", "unit", "later"),
    [("timestamp", 1.0, 4096.5), ("timestamp", 1.0, 1_790_000_000.0), ("timestamp_ms", 1e3, 0.0), ("t_s", 1.0, -7.25)],
)
def test_nor_do_the_units_and_the_origin_of_stamps(column: str, unit: float, later: float) -> None:
    asked = first()
    stamps, *lengths = requests()
    written((unit * (stamps + later)).tolist(), *lengths, column)
    assert said(*ASKED) == asked


def test_nor_do_the_names_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the same numbers under a name that the catalog does not know, as long as the other for the width of the page."""
    price = ("--price", "l40s=0.9")
    asked = {to: said(*ASKED, *price, to=to) for to in ("json", "table")}
    shipped = load.shipped

    def renamed(file: Path) -> Any:
        found = copy.deepcopy(shipped(file))
        if file.name in ("gpus.yaml", "power.yaml"):
            entry = found["gpus"]["l40s-48gb"]
            found["gpus"]["zz9s-48gb"] = {**entry, "aliases": ["zz9s"]} if "aliases" in entry else entry
        return found

    kept = (load.gpus, load._gpu_index)
    try:
        monkeypatch.setattr(load, "shipped", renamed)
        for cached in kept:
            cached.cache_clear()
        words = [word.replace("l40s", "zz9s") for word in (*ASKED, *price)]
        for to, text in asked.items():
            assert said(*words, to=to).replace("zz9s", "l40s") == text
    finally:
        monkeypatch.undo()
        for cached in kept:
            cached.cache_clear()


def answer(*words: str) -> tuple[int, list[dict[str, Any]]]:
    found = json.loads(said("--cdf", "day.csv", "--gpu", "l40s", *PROMISED, *words))
    (pool,) = found["pools"]
    return found["gpus"], [x for x in pool["latency"] if x["quantile"] == 0.99]


def same(one: tuple[int, list[dict[str, Any]]], other: tuple[int, list[dict[str, Any]]]) -> None:
    """As many GPUs, and every P99 within the band that is printed with it."""
    assert one[0] == other[0]
    for a, b in zip(one[1], other[1], strict=True):
        assert b["low_s"] <= a["value_s"] <= b["high_s"] and a["low_s"] <= b["value_s"] <= a["high_s"], (a, b)


def test_the_order_of_rows_of_one_stamp_does_not_matter() -> None:
    """Some five requests come with each whole half second."""
    stamps, inputs, outputs = requests()
    stamps = np.floor(2.0 * stamps) / 2.0
    written(stamps.tolist(), inputs, outputs)
    asked = answer()
    for seed in (1, 2):
        rows = np.lexsort((np.random.Generator(np.random.PCG64(seed)).random(ROWS), stamps))
        assert not np.array_equal(rows, np.arange(ROWS))
        written(stamps[rows].tolist(), inputs[rows], outputs[rows])
        same(answer(), asked)


def test_twice_the_rows_at_half_the_share_are_the_same_traffic() -> None:
    """A random part of a trace in which every request stands twice: as many requests, few of which meet their double."""
    asked = answer("--rate", "2.5")
    stamps, inputs, outputs = (np.repeat(x, 2) for x in requests())
    written(stamps.tolist(), inputs, outputs)
    same(answer("--rate", "2.5"), asked)
