"""A plan and its rows are the same bytes on one thread and on four, while other processes keep all cores busy; and its page is the
same where only what it shows is asked for."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
from collections.abc import Iterator
from typing import Any

import pytest

import planner as fo
from planner.ask import choices as advised
from planner.report.output import table as render
from planner.shared.cores import cores

QUESTIONS: list[dict[str, Any]] = [
    {"slo": 0.5},
    {"slo": 1.0, "tpot": "50ms", "rate": 30.0},
    {"slo": 0.5, "rate": 60.0, "gpu": ["h100", "l40s"]},
    {"ttft": "p95=400ms", "rate": 20.0, "model": "llama-3.1-70b"},
    {"slo": 0.5, "rate": 20.0, "shape": "disaggregated", "routing": "least"},
]


def _busy() -> None:
    while True:
        pass


@pytest.fixture(scope="module")
def crowded() -> Iterator[None]:
    others = [multiprocessing.Process(target=_busy, daemon=True) for _ in range(cores())]
    for other in others:
        other.start()
    with contextlib.ExitStack() as end:
        for other in others:
            end.callback(other.kill)
        yield


@pytest.mark.long("choices of whole traces, four times each")
@pytest.mark.parametrize("question", QUESTIONS, ids=str)
def test_threads_change_nothing(question: dict[str, Any], crowded: None, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for threads in (1, 4, 1, 4):
        # rows are answered on as many threads as there are cores
        monkeypatch.setattr(advised, "cores", lambda threads=threads: threads)
        found.append(json.dumps(fo.plan("azure", **question, choices=True).to_dict(), sort_keys=True))
    assert len(set(found)) == 1
    pages = {render(fo.plan("azure", **question, choices=True, page=page), 120) for page in (False, True)}
    assert len(pages) == 1
