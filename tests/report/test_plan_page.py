"""The page of a plan: what is said where, on how many lines, and the same words in every format."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import planner as fo
import planner.report.output as output
from planner.choices import Choice, Choices
from planner.cli.main import run
from planner.errors import InfeasibleError
from planner.plans import Narrowing, Plan, Sized, Sureness
from planner.promise import Promise
from planner.report import formatter
from planner.report.blocks import to_markdown, to_terminal
from planner.report.page import as_html
from planner.report.pages import usd
from planner.report.text.plan import of_plan, one_line, otherwise, summary
from planner.shared.remarks import Remark

pytestmark = pytest.mark.usefixtures("few_replayed")

PROMISE = Promise("ttft_s", 0.5, 0.99)


def row(kind: str, name: str, flags: str, cost: float | None, limit_s: float | None = None) -> Choice:
    gpus = None if cost is None else round(cost)
    return Choice(kind, name, {}, flags, cost, gpus, "", "none keeps it" if cost is None else None, limit_s=limit_s)


@pytest.fixture(scope="module")
def plain() -> Plan:
    found: Plan = fo.plan(slo=4.0, rate=400.0, method="mgc", kv="reserved", pools=1, model="llama-3.1-8b")
    return found


@pytest.fixture(scope="module")
def plan(plain: Plan) -> Plan:
    """With everything that can stand on a page."""
    base = plain.cost_usd_per_hour
    rows = (
        row("routing", "routing least", "--routing least", 0.9 * base),
        row("precision", "FP8 weights", "--weights fp8", 0.65 * base),
        *(row("gpu", f"type-{k}", f"--gpu type-{k}", (0.7 + 0.02 * k) * base) for k in range(8)),
        row("profile", "measured", "--profile p", 0.99 * base),
        row("traffic", "20% more traffic, 480/s", "--rate 480", 1.2 * base),
        row("redundancy", "a node may fail, 8 spare", "--redundancy 8", 1.1 * base),
        row("promise", "P99 TTFT 250 ms", "--ttft 250ms", None, 0.25),
        row("promise", "P99 TTFT 350 ms", "--ttft 350ms", 1.6 * base, 0.35),
        row("promise", "P99 TTFT 700 ms", "--ttft 700ms", 0.95 * base, 0.7),
        row("promise", "P99 TTFT 750 ms", "--ttft 750ms", 0.4 * base, 0.75),
    )
    at = [Sized(c, (n,), n, 2.69 * n) for c, n in ((0.5, 63), (0.1, 46), (0.9, 99))]
    sure = Sureness(0.8, 0.8, 0.13, 8, 0.84, *at, (), 1.0, (Narrowing("calibration", 0.07, 12, 32.0),))
    few = Remark("few_requests", {"requests": 2, "promise": "P99 TTFT", "wanted": 500})
    remarks = {**plain.remarks, "warnings": (*plain.remarks.get("warnings", ()), few)}
    choices = Choices(rows, base, plain.gpus, PROMISE)
    return replace(plain, choices=choices, sureness=sure, remarks=remarks)


def lines(plan: Plan, width: int) -> list[str]:
    return to_terminal(of_plan(plan), width).split("\n")


def test_the_answer_comes_first_and_all_of_it_on_thirty_lines(plan: Plan) -> None:
    page = lines(plan, 100)
    assert len(page) <= 30
    assert "few for P99 TTFT" in " ".join(page[:3]), "what makes the answer unfit stands above it"
    buy = next(k for k, line in enumerate(page) if line.startswith("BUY"))
    assert buy <= 4
    assert f"{plan.gpus} x h100-80gb" in page[buy]
    assert usd(plan.cost_usd_per_year) in page[buy]
    assert "80% confidence" in page[buy]
    odds = "one chance in ten with 46 ($1.08M), even odds with 63 ($1.48M), nine in ten with 99 ($2.33M)"
    assert page[buy + 1].strip() == odds
    assert any(line.startswith("RUN  vllm serve meta-llama/Llama-3.1-8B-Instruct") for line in page)
    assert any("fleetopt calibrate --gpu" in line and "about 12 GPUs less" in line for line in page)


def test_a_page_that_ctrl_c_cut_short_says_so(plan: Plan) -> None:
    assert plan.choices is not None
    (told,) = [line for line in lines(replace(plan, choices=replace(plan.choices, waiting=3)), 200) if " rows" in line]
    assert "(17 rows, interrupted: 3 of 20 other choices were not sized)" in told
    (whole,) = [line for line in lines(plan, 200) if " rows" in line]
    assert "(17 rows)" in whole


def test_what_two_types_save_takes_measuring_both(plan: Plan) -> None:
    times = next(r for r in plan.remarks["assumptions"] if r.code == "iteration_times")
    other = replace(times, values={**times.values, "gpu": "l40s-48gb"})
    both = replace(plan, remarks={**plan.remarks, "assumptions": (times, other)})
    saved = [line for line in lines(both, 200) if "about 12 GPUs less" in line]
    assert len(saved) == 2 and all("; all measured, about" in line for line in saved)
    assert any("; measured, about 12 GPUs less" in line for line in lines(plan, 200))


def test_what_an_estimate_misses_by_much_is_not_fit_to_buy_on(plain: Plan) -> None:
    """Mixtures of experts and split fleets: above the answer, once; dense models have their band below it."""
    quick = {"tp": 1, "token_budget": 2048}
    asked = {"slo": 4.0, "rate": 20.0, "method": "mgc", "kv": "reserved", "pools": 1, "gpu": "h200", **quick}
    page = lines(fo.plan(model="gpt-oss-120b", **asked), 160)
    assert "not fit to buy on without calibrating" in " ".join(page[:3])
    assert " ".join(page).count("fleetopt calibrate") == 1
    split = lines(fo.plan(model="llama-3.1-8b", rate=20.0, slo=4.0, gpu="h200", shape="disaggregated", **quick), 160)
    assert "apart (one fleet measured): not fit" in " ".join(split[:3])
    assert "not fit" not in " ".join(lines(plain, 160))


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_it_fits(plan: Plan, width: int) -> None:
    assert max(map(len, lines(plan, width))) <= width


def test_a_size_that_has_the_confidence_is_told_where_there_is_one(plan: Plan) -> None:
    """Of a fleet that has less than was asked for; nine in ten is more than four in five."""
    sure = plan.sureness
    assert sure is not None
    said = [
        next(x for x in lines(replace(plan, sureness=replace(sure, chance=0.71, **change)), 200) if x.startswith("BUY"))
        for change in (
            {},
            {"steps": (Sized(0.71, (70,), 70, 188.3), Sized(0.85, (80,), 80, 215.2))},
            {"high": Sized(0.9, None), "most": 0.75},
        )
    ]
    ends = ("not 80%: 99 GPUs do", "not 80%: 80 GPUs do", "not 80%: no number of GPUs does")
    assert all(line.endswith(end) for line, end in zip(said, ends, strict=True))


def test_odds_in_words_are_those_a_size_has(plan: Plan) -> None:
    """A size that load alone keeps from being smaller has better odds than it was looked for with, and none that are not bought
    for the confidence asked are told to have it."""
    sure, n = plan.sureness, plan.gpus
    assert sure is not None
    low, median, high = (Sized(c, (k,), k, 2.69 * k) for c, k in ((0.36, n - 9), (0.83, n - 1), (0.91, n + 9)))
    page = lines(replace(plan, sureness=replace(sure, low=low, median=median, high=high)), 200)
    told = next(line for line in page if f" with {n - 9} " in line)
    assert [part.split(" with ")[0].strip() for part in told.split(", ")] == ["36%", "about 80%", "nine in ten"]


def test_cheaper_rows_save_something_and_the_cheapest_come_first(plan: Plan) -> None:
    page = lines(plan, 100)
    head = next(k for k, line in enumerate(page) if line.startswith("CHEAPER"))
    rows = page[head + 2 : head + 7]
    assert rows[0].startswith("FP8 weights (check quality)")
    assert rows[0].endswith("--weights fp8")
    saved = [float(re.search(r"-(\d+)%", line)[1]) for line in rows]  # type: ignore[index]
    assert saved == sorted(saved, reverse=True)
    assert page[head + 7] == "", "five, and no more"
    assert not any("--profile p" in line for line in page), "a hundredth is nothing"


def test_a_cliff_is_shown_in_place_of_the_next_limit(plan: Plan) -> None:
    told = otherwise(plan)
    assert any(t.startswith("P99 TTFT 750 ms") and "-60%, a cliff" in t for t in told)
    assert not any(t.startswith("P99 TTFT 700 ms") for t in told)
    assert any(t.startswith("P99 TTFT 350 ms") for t in told)
    assert any(t.startswith("20% more traffic") for t in told)
    flat = replace(plan.choices, rows=tuple(r for r in plan.choices.rows if r.limit_s != 0.75))  # type: ignore[union-attr, type-var]
    assert any(t.startswith("P99 TTFT 700 ms") for t in otherwise(replace(plan, choices=flat)))


def test_the_same_words_everywhere(plan: Plan) -> None:
    words = re.findall(r"[\w$%.]+", " ".join(plan_line for plan_line in summary(plan)[:8]))
    texts = {
        "markdown": to_markdown(of_plan(plan)),
        "notebook": html.unescape(plan._repr_html_()),
        "json": " ".join(json.loads(formatter("json", "plan")(plan))["summary"]),
        "yaml": " ".join(yaml.safe_load(formatter("yaml", "plan")(plan))["summary"]),
        "html": html.unescape(re.sub(r"<[^>]+>", " ", as_html(fo.overview(plan, choices=0)))),
    }
    for name, text in texts.items():
        missing = [w for w in words if w not in text]
        # a report sizes its own choices and sureness
        assert name == "html" or not missing, (name, missing)
    assert usd(plan.cost_usd_per_year) in texts["html"]


def test_quiet_is_one_line_and_a_file_is_written_beside_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], plain: Plan
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ["plan", "--slo", "4", "--rate", "400", "--method", "mgc", "--set", "kv=reserved", "--pools", "1"]

    def said(*words: str) -> str:
        with pytest.raises(SystemExit) as end:
            run([*words])
        assert end.value.code == 0
        return capsys.readouterr().out

    assert said(*asked, "-q") == one_line(plain) + "\n"
    page = said(*asked, "-o", "plan.yaml")
    assert "BUY" in page
    assert yaml.safe_load((tmp_path / "plan.yaml").read_text())["summary"][0] in page
    why = said("explain", "plan.yaml")
    assert "iteration times estimated" in why
    assert "fixed by" in why
    assert why.count("assumed:") == len(plain.assumptions)
    assert "fixed by" in said("explain", *asked[1:])


def test_a_saved_plan_carries_its_rows(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.yaml").write_text(formatter("yaml", "plan")(plan), encoding="utf-8")
    assert plan.choices is not None
    for words, count in ((["--sort", "cost"], len(plan.choices.rows)), (["--why", "fp8"], 1), (["--why", "type-"], 8)):
        with pytest.raises(SystemExit) as end:
            run(["options", "plan.yaml", *words, "-f", "json"])
        assert end.value.code == 0
        rows = json.loads(capsys.readouterr().out)["rows"]
        assert len(rows) == count
    with pytest.raises(SystemExit):
        run(["options", "plan.yaml", "--why", "nothing like it"])
    assert "no row is called" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run(["options", "plan.yaml", "--sort", "cost"])
    told = capsys.readouterr().out
    assert told.index("FP8 weights") < told.index("routing least") < told.index("20% more traffic")


def run_page(words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """The page of one command at 100 columns."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("FLEETOPT_NO_OPTIONS", raising=False)
    with pytest.raises(SystemExit):
        run(words.split())
    said = capsys.readouterr()
    return said.out + said.err


JOBS = [
    ("plan --cdf azure --slo 0.5 --rate 20 --pools 1", ["confidence", "with 4 ($94.3k)", "$2.69"]),
    pytest.param(
        "plan --users 500 --think-time 60s --slo 1 --pools 1 --tp 1 --token-budget 2048",
        ["500 users", "requests/s"],
        marks=pytest.mark.long("a population that comes to rest; smaller ones in CI, tests/size/test_population.py"),
    ),
    ("plan --concurrency 64 --isl 1000 --osl 200 --slo 1 --tp 1 --token-budget 2048", ["64 always under way"]),
    (
        "plan --tpot mean=12ms --isl 1000 --osl 200 --rate 20 --tp 1 --token-budget 2048 --confidence 50%",
        ["mean TPOT <= 12 ms"],
    ),
    ("plan --throughput 5k --isl 1000 --osl 200 --tp 1 --token-budget 2048", ["25 requests/s", "P99 E2E <= 24 h"]),
    (
        "plan --slo 0.5 --rate 20 --gpu nvidia-h100 --tp 1 --token-budget 2048 --pools 1 --confidence 50%",
        ["x h100-80gb"],
    ),
]
LONG_JOBS = [("plan --model deepseek-v3 --gpu h200 --tpot 50ms --rate 50", ["a cliff"])]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        *JOBS,
        *(pytest.param(*job, marks=pytest.mark.long("a model of many GPUs; smaller ones in CI")) for job in LONG_JOBS),
    ],
    ids=lambda j: str(j)[:40],
)
def test_a_job_is_answered_by_one_command(
    words: str, told: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = words in dict(LONG_JOBS)
    page = run_page(words + ("" if whole else " --no-options"), monkeypatch, capsys)
    assert len(page.splitlines()) <= 30
    assert [t for t in told if t not in " ".join(page.split())] == []


@pytest.mark.long("each way out sized for a model of many GPUs")
def test_a_job_that_no_number_of_gpus_does_shows_what_would_do_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Estimated iteration times of H100s leave a 70B model too unsure of 500 ms: each way out with its size and price."""
    seen: list[InfeasibleError] = []
    laid_out = output.table

    def render(result: InfeasibleError, width: int | None = None) -> str:
        seen.append(result)
        return laid_out(result, width)

    monkeypatch.setattr(output, "table", render)
    page = run_page("plan --model llama-3.1-70b --rate 20 --slo 0.5", monkeypatch, capsys)
    found = seen[0].to_dict()
    assert len(page.splitlines()) <= 30
    flat = " ".join(page.split())
    assert flat.startswith(f"NO FLEET {found['message']}")
    most = re.search(r"a chance of more than (\d+)%", flat)
    assert most is not None and int(most[1]) < 80
    assert f"--confidence {most[1]}%" in flat
    assert "fleetopt calibrate" in flat
    rows = found["choices"]["rows"]  # type: ignore[index]
    assert {"confidence", "precision", "gpu", "promise"} <= {r["kind"] for r in rows}
    assert {"--weights fp8", "--gpu b200-180gb"} <= {r["flags"] for r in rows}
    for r in rows:
        month = f"${round(730.0 * r['cost_usd_per_hour']):,}"
        line = next(line for line in page.splitlines() if line.endswith(f" {r['flags']}"))
        assert line.startswith(r["name"]) and f" {r['gpus']:,} " in line and month in line
    lines = page.splitlines()
    same = [
        next(k for k, line in enumerate(lines) if line.endswith(f" {r['flags']}"))
        for r in rows
        if r["kind"] != "promise"
    ]
    others = [k for k, line in enumerate(lines) if "  --ttft " in line]
    assert max(same) < min(others)
    cost = {r["flags"]: r["cost_usd_per_hour"] for r in rows}
    order = [cost[next(f for f in cost if lines[k].endswith(f" {f}"))] for k in sorted(same)]
    assert order == sorted(order), "the cheapest that keeps the promise first"


def test_two_requests_are_no_traffic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("two.csv").write_text("time_s,input_tokens,output_tokens\n0,500,100\n1,700,200\n", encoding="utf-8")
    page = run_page("plan --cdf two.csv --slo 0.5 --rate 20 --no-options", monkeypatch, capsys)
    assert "requests are few" in " ".join(page.split("\n\n")[0].split()) or "error: " in page


def test_two_plans_are_told_apart_by_what_each_difference_alone_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    quick = ["--method", "mgc", "--set", "kv=reserved", "--pools", "1"]
    for name, more in (("a.yaml", ["--rate", "400", "--slo", "4"]), ("b.yaml", ["--rate", "800", "--slo", "3"])):
        with pytest.raises(SystemExit):
            run(["plan", *quick, *more, "-o", name])
    plans = [yaml.safe_load((tmp_path / name).read_text()) for name in ("a.yaml", "b.yaml")]
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        run(["diff", "a.yaml", "b.yaml", "-f", "json"])
    assert end.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["old"]["gpus"], found["new"]["gpus"]) == (plans[0]["gpus"], plans[1]["gpus"])
    alone = {row["option"]: row for row in found["changed"]}
    assert set(alone) == {"rate", "promises"}
    asked = {"method": "mgc", "kv": "reserved", "pools": 1}
    assert alone["rate"]["gpus"] == fo.plan(rate=800, slo=4, **asked).gpus  # type: ignore[arg-type]
    assert alone["promises"]["gpus"] == fo.plan(rate=400, slo=3, **asked).gpus  # type: ignore[arg-type]
    with pytest.raises(SystemExit):
        run(["diff", "a.yaml", "a.yaml"])
    assert "the questions are the same" in capsys.readouterr().out
