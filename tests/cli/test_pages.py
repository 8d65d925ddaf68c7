"""Every command's page fits 80, 100 and 120 columns; nothing is left out where the page is of any width."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import planner.report.output as output
from planner.cli.main import run
from planner.report.blocks import Table, folded, to_terminal

pytestmark = pytest.mark.usefixtures("fewer_replayed", "few_paths", "short_traces")

QUICK = ("--method", "mgc", "--kv", "reserved", "--slo", "4", "--rate", "40")
SESSIONS = "turns=10,first=2000,growth=400,osl=300,gap=30s"
COMMANDS = [
    ("plan", *QUICK),
    ("plan", *QUICK, "--slo", "tpot:p95=400ms", "--e2e", "60", "--gpu", "h100", "--gpu", "l40s"),
    ("evaluate", "plan.yaml", "--rate", "20,40"),
    ("what-if", "plan.yaml", "--set", "rate=5,10", "--set", "gpu=h100,h200"),
    ("schedule", "plan.yaml", "--hours", "servegen-m-small"),
    ("schedule", "plan.yaml", "--monthly-growth", "8%", "--months", "4"),
    ("simulate", "plan.yaml", "--requests", "1000", "--seeds", "1"),
    ("simulate", "--policies", "sarathi,eb", "--rates", "4", "--requests", "300"),
    ("stability", "--rate", "4"),
    ("batching", "--rate", "4"),
    ("wait", "--rate", "4"),
    ("reproduce", "wait"),
    ("gpu", "list"),
    ("gpu", "show", "h100"),
    ("model", "list"),
    ("model", "show", "llama-3.1-8b"),
    ("prices", "show"),
    ("profile", "list"),
    ("profile", "show", "llama-3.1-8b-h100-80gb-tp1-trtllm"),
    ("workload", "list"),
    ("workload", "show", "azure"),
    ("calibrate", "--from", "points.csv", "--no-write", "--force"),
    ("autoscale", "plan.yaml", "--hours", "servegen-m-small", "--startup", "110s"),
    ("cost", "plan.yaml", "--hours", "servegen-m-small", "--spot-share", "30%", "--rent-peak"),
    ("check", "plan.yaml", "--emit-rules", "monitoring"),
    ("deploy", "plan.yaml", "--to", "k8s", "-o", "k8s.yaml"),
    ("report", "plan.yaml", "-o", "report.html", "--no-options"),
    ("plan", *QUICK, "--no-options", "--set", "max_queue=40", "--client-timeout", "20s", "--set", "retries=1"),
    ("plan", "--cdf", SESSIONS, "--rate", "5", "--slo", "8", "--pools", "1", "--no-options"),
    ("workload", "show", SESSIONS),
    ("workload", "compare", "azure", "azure-conv"),
    ("workload", "mix", "azure=3", "azure-conv=1", "--rate", "20", "-o", "mixed.csv"),
    ("workload", "sql", "--dialect", "postgres", "--table", "logs", "-o", "query.sql"),
    ("compress", "measure", "--prompts", "prompts.jsonl", "--boundary", "100"),
    ("profile", "compare", "llama-3.1-8b-h100-80gb-tp1-trtllm", "qwen3-32b-h100-80gb-tp4-sglang"),
    ("init", "--slo", "0.5", "-o", "fleet.yaml"),
    ("doctor",),
]
INFEASIBLE = ("plan", "--method", "mgc", "--kv", "reserved", "--pools", "1", "--slo", "10ms")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan, and iteration times as a GPU gave them."""
    where: Path = tmp_path_factory.mktemp("pages")
    with pytest.raises(SystemExit), pytest.MonkeyPatch.context() as patch:
        patch.chdir(where)
        run(["plan", *QUICK, "-o", "plan.yaml"])
    rows = ["gpu,model,tp,n_decode,decode_ctx,prefill_seqs,prefill_new_tokens_per_seq,prefill_past_tokens,measured_ms"]
    rows += [
        f"h100,llama-3.1-8b,1,{n},{c},{int(p > 0)},{p},0,{6.0 + 0.03 * (n + p) + 6e-5 * n * c:.6f}"
        for n in (1, 8, 64, 128) for c in (256, 1024, 2048) for p in (0, 512, 2048)
    ]  # fmt: skip
    (where / "points.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    prompts = [
        json.dumps({"prompt": "One sentence says this. Another one says more about it. " * k}) for k in (2, 8, 12)
    ]
    (where / "prompts.jsonl").write_text("\n".join(prompts), encoding="utf-8")
    return where


@pytest.mark.parametrize("command", [*COMMANDS, INFEASIBLE], ids=lambda c: " ".join(c[:2]))
def test_a_page_fits(
    command: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run at 80 columns, where the lines for the reader are held too; what was shown is laid out anew at the others."""
    shown: list[Any] = []
    laid_out = output.table

    def render(result: Any, width: int | None = None) -> str:
        shown.append(result)
        return laid_out(result, width)

    monkeypatch.setattr(output, "table", render)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as end:
        run([*command])
    said = capsys.readouterr()
    assert end.value.code in ((4,) if command == INFEASIBLE else (0, 5, 6)), said.err
    assert [line for text in said for line in text.splitlines() if len(line) > 80] == []
    for width in (100, 120):
        for result in shown:
            assert [line for line in laid_out(result, width).splitlines() if len(line) > width] == []
    for result in shown:
        assert "--wide" not in laid_out(result)


def test_wide_shows_all(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(folder)
    lines = {}
    for more in ((), ("--wide",)):
        with pytest.raises(SystemExit):
            run(["evaluate", "plan.yaml", "--rate", "20", *more])
        lines[more] = capsys.readouterr().out
    assert "left out for the width" in lines[()]
    assert "left out" not in lines["--wide",]
    assert "P90 E2E" in lines["--wide",]


def test_columns_go_in_the_order_stated_and_numbers_are_never_cut() -> None:
    columns, row = ["name", "a", "b", "c"], ["x", "1" * 10, "2" * 10, "3" * 10]
    assert Table(columns, [row], {"name"}, drop=["b", "a"]).fitting(40) == [0, 1, 2, 3]
    assert Table(columns, [row], {"name"}, drop=["b", "a"]).fitting(39) == [0, 1, 3]
    assert Table(columns, [row], {"name"}, drop=["b", "a"]).fitting(28) == [0, 1, 3]
    assert Table(columns, [row], {"name"}, drop=["b", "a"]).fitting(20) == [0, 3]
    for width in range(16, 60):
        text = Table(columns, [row], {"name"}, drop=["b", "a"]).to_text(width)
        assert set(re.findall(r"\d+", text)) <= {*row}
        assert max(map(len, text.splitlines())) <= width


def test_words_fold_and_commands_stay_commands() -> None:
    assert folded("one two three", 8) == "one two\n  three"
    assert folded("run --first 1 --second 2", 16, command=True) == "run --first 1 \\\n  --second 2"
    assert folded("anything", None) == "anything"
    assert to_terminal([]) == ""


def test_words_are_folded_when_the_least_wanted_columns_are_gone() -> None:
    columns, row = ["name", "a", "b"], ["one two three four five", "1" * 10, "2" * 10]
    assert Table(columns, [row], {"name"}, drop=["b"]).fitting(40) == [0, 1, 2]
    assert Table(columns, [row], {"name"}, drop=["b"], words=30).fitting(40) == [0, 1]
    # what is not named goes only where folding does not help
    assert Table(columns, [row], {"name"}, drop=["b"], words=30).fitting(30) == [0, 1]
