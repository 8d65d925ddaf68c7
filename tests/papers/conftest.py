"""Traces shared by the simulator's tests."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from planner.papers import run
from planner.predict.engine import Node


@pytest.fixture(scope="session")
def lengths(shared_data: Path) -> Callable[[str], np.ndarray]:
    """(input, output) of a named raw trace, rows with a zero dropped, shape (rows, 2)."""
    raw = shared_data / "workloads" / "raw"

    def read(name: str) -> np.ndarray:
        if "+" in name:
            return np.concatenate([read(part.split(" (")[0].strip()) for part in name.split("+")])
        if name.startswith("input "):  # "input 1000, output 300 for every request"
            words = name.replace(",", "").split()
            return np.array([[int(words[1]), int(words[3])]])
        path = raw / name
        if name.endswith(".jsonl"):
            items = [json.loads(line) for line in path.read_text().splitlines()]
            rows = [(i["input_length"], i["output_length"]) for i in items]
        else:
            with path.open(newline="") as file:
                reader = csv.reader(file)
                head = [h.lower() for h in next(reader)]
                i = next(k for k, h in enumerate(head) if "context" in h or "input" in h or "prompt" in h)
                o = next(k for k, h in enumerate(head) if "generated" in h or "output" in h)
                rows = [(int(float(r[i])), int(float(r[o]))) for r in reader]
        table = np.array(rows)
        return table[(table > 0).all(axis=1)]

    return read


class LogEntry(NamedTuple):
    """One iteration: scheduler, start and duration [s], who decoded, (request, chunk) prefills, who was evicted, memory."""

    scheduler: str
    start: float
    duration: float
    decode: tuple[int, ...]
    prefill: tuple[tuple[int, int], ...]
    evicted: tuple[int, ...]
    held: int


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[LogEntry]:
    """Every iteration of every ``run_policy``."""
    entries: list[LogEntry] = []

    class Logged(Node):
        def finish(self) -> None:
            batch, start = self.batch, self.now
            prefill = tuple((r.index, chunk) for r, chunk in batch.prefills)
            decode, evicted = tuple(r.index for r in batch.decodes), tuple(r.index for r in batch.evicted)
            name = type(self.policy).__name__
            entries.append(LogEntry(name, start, self.end - start, decode, prefill, evicted, self.held))
            super().finish()

    monkeypatch.setattr(run, "Node", Logged)
    return entries
