"""Mistakes people make on the command line: each one clear line that says what is wrong, an exit code, and no answer."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from planner.ask import choices, plan, stock
from planner.cli.main import app, run
from planner.errors import InputError
from planner.operate.autoscale import derive
from planner.papers import printed as papers
from planner.question.options import OPTIONS

pytestmark = pytest.mark.usefixtures("fewer_replayed", "few_paths")

FILES = {
    "asked.yaml": "slo: 2\nrate: 20\nscenarios:\n  big:\n    rate: 40\n",
    "typo.yaml": "slo: 2\nrat: 20\n",
    "twice.yaml": "slo: 2\nslo: 3\n",
    "broken.yaml": "slo: [2\n",
    "empty.csv": "",
    "text.txt": "hello\n",
    "good.csv": "time_s,input_tokens,output_tokens\n"
    + "".join(f"{k / 10},{100 + k},{20 + k % 50}\n" for k in range(400)),
    "nooutput.csv": "inputtokens,ContextTokens\n7,5\n",
    "other.csv": "when (time),Prompt,Completion\n0,700,50\n1,800,40\n",
    "days.csv": "time,input_tokens,output_tokens\n01/11/2026 08:00:00,5,6\n",
    "seen.csv": "t_s,input_tokens,output_tokens,images\n0,700,50,2\n1,800,40,0\n",
    "bad.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9,-5,10\n",
}
QUICK = "--method mgc --kv reserved --pools 1"

USAGE, INPUT, INFEASIBLE = 2, 3, 4

MISTAKES = [
    # promises
    ("plan", INPUT, "no latency promise given"),
    ("plan --slo 500", INPUT, "write 500ms (500s if seconds are meant)"),
    ("plan --slo fast", INPUT, "'fast' is not a duration"),
    ("plan --slo -1", INPUT, "limit must be a positive time"),
    ("plan --slo 0.5 --tpot 40", INPUT, "write 40ms (40s if seconds are meant)"),
    ("plan --slo 0.5 --quantile 101", INPUT, "--quantile 101: must lie between 0 and 1, got 1.01"),
    (f"plan --slo 1ms {QUICK}", INFEASIBLE, "cannot be kept by any number of replicas"),
    # hardware and model
    ("plan --slo 0.5 --gpu h10", INPUT, "did you mean 'h100'"),
    ("plan --slo 0.5 --gpu", USAGE, "--gpu: takes a value, for example h100"),
    ("plan --slo 0.5 --model llama-3.1-8", INPUT, "did you mean 'llama-3.1-8b'"),
    ("plan --slo 0.5 --model llama-3.1-405b --gpu l4", INPUT, "does not fit on l4-24gb"),
    ("plan --slo 0.5 --tp 3", INPUT, "tp 3 does not divide the 32 attention heads"),
    ("plan --slo 0.5 --tp 16", INPUT, "more than the 8 GPUs of a h100-80gb node"),
    ("plan --slo 0.5 --profile nowhere", INPUT, "unknown profile 'nowhere'"),
    ("plan --slo 0.5 --price h100", INPUT, "'h100' is not GPU=NUMBER"),
    ("plan --slo 0.5 --price h100=free", INPUT, "--price h100=free: 'free' is not a number"),
    ("plan --slo 0.5 --price h100=-1", INPUT, "--price h100=-1: must be positive"),
    (f"plan --slo 4 --rate 9000 --inventory h100=2 {QUICK}", INFEASIBLE, "no fleet within the inventory"),
    # traffic
    ("plan --slo 0.5 --cdf azur", INPUT, "did you mean 'azure'"),
    ("plan --slo 0.5 --cdf nowhere.csv", INPUT, "nowhere.csv: no such file"),
    ("plan --slo 0.5 --cdf empty.csv", INPUT, "empty.csv: the file is empty"),
    ("plan --slo 0.5 --cdf bad.csv", INPUT, "bad.csv:2: input tokens '-5' is not a count"),
    ("plan --slo 0.5 --cdf text.txt", INPUT, "text.txt: not a format known here"),
    ("plan --slo 0.5 --cdf .", INPUT, "is a folder, not a file"),
    ("plan --slo 0.5 --rate 0", INPUT, "--rate: must be a positive number"),
    ("plan --slo 0.5 --rate ten", INPUT, "--rate: 'ten' is not a rate"),
    ("plan --slo 0.5 --rate 3 --rate 4", USAGE, "--rate is given 2 times"),
    ("plan --slo 0.5 --isl 2000", INPUT, "--isl 2000: without osl"),
    ("plan --slo 0.5 --isl 2000 --osl 300", INPUT, "states no arrival rate of its own"),
    ("plan --slo 0.5 --isl 2000 --osl 300 --cdf azure", INPUT, "--isl 2000: beside cdf"),
    ("plan --slo 0.5 --set osl_scale=0", INPUT, "must be a positive factor"),
    ("plan --slo 0.5 --drop-longer-than 1", INPUT, "no request of azure has at most 1 tokens"),
    ("plan --slo 0.5 --cached-share 1.2", INPUT, "--cached-share: must lie in [0, 1)"),
    ("plan --slo 0.5 --cached-share chat=0.5", INPUT, "azure has no category chat"),
    # search and output
    ("plan --slo 0.5 --method mg", INPUT, "did you mean 'mgc'"),
    ("plan --slo 0.5 --pools 9", INPUT, "--pools: 1 to 4, got 9"),
    ("plan --slo 0.5 --routing fastest", INPUT, "'fastest' is none of"),
    ("plan --slo 0.5 --utilization-cap 1.5", INPUT, "--utilization-cap: must lie between 0 and 1"),
    ("plan --slo 0.5 --set availability_target=99.9%", INPUT, "write 0.001 for enough of them 99.9% of the time"),
    ("plan --slo 0.5 --max-model-len 1000", INPUT, "shorter than the workload's longest request"),
    ("plan --slo 0.5 --format jsn", INPUT, "did you mean 'json'"),
    ("plan --slow 0.5", USAGE, "--slow: no such option of plan; did you mean '--slo'?"),
    ("plan 0.5", USAGE, "0.5: is given as --slo 0.5"),
    ("plann --slo 0.5", USAGE, "plann: no such command; did you mean 'plan'?"),
    # configuration and plan files
    ("plan --config nowhere.yaml", INPUT, "nowhere.yaml: no such file"),
    ("plan --config typo.yaml", INPUT, "typo.yaml: rat: unknown option; did you mean 'rate'"),
    ("plan --config twice.yaml", INPUT, "'slo' is given twice"),
    ("plan --config broken.yaml", INPUT, "broken.yaml:2: not YAML"),
    ("plan --config asked.yaml --scenario bigg", INPUT, "did you mean 'big'"),
    ("plan --slo 0.5 --scenario big", INPUT, "scenario 'big' of which file"),
    # other commands
    ("evaluate", USAGE, "Missing argument"),
    ("evaluate nowhere.yaml", INPUT, "nowhere.yaml: no such file"),
    ("autoscale plan.yml", INPUT, "plan.yml: no such file; did you mean 'plan.yaml'"),
    ("cost nowhere/plan.yaml", INPUT, "no such file, nor a folder nowhere"),
    ("evaluate asked.yaml", INPUT, "asked.yaml: holds no fleet"),
    ("evaluate plan.yaml --rate ten", INPUT, "--rate: 'ten' is not a number"),
    ("evaluate plan.yaml --set gpu=h200", INPUT, "--set gpu=h200: fixed by the plan"),
    ("evaluate plan.yaml --set rate", INPUT, "'rate' is not OPTION=VALUE"),
    ("what-if plan.yaml", INPUT, "nothing to change"),
    ("what-if plan.yaml --set rat=5", INPUT, "--set rat=5: unknown option; did you mean 'rate'"),
    ("what-if plan.yaml --set rate=5,x", INPUT, "--set rate=5,x: 'x' is not a rate"),
    ("what-if plan.yaml --set rate=5,6 --set gpu=h100,h200,l40s --zip", INPUT, "rate has 2, gpu has 3"),
    ("schedule plan.yaml", INPUT, "no rates by hour"),
    ("schedule plan.yaml --hours nowhere.csv", INPUT, "no such file or shipped service"),
    ("schedule plan.yaml --config asked.yaml --hours servegen-m-small", INPUT, "a plan file and --config"),
    ("schedule plan.yaml --monthly-growth 0", INPUT, "--monthly-growth: must be positive"),
    ("schedule plan.yaml --monthly-growth 8% --from January", INPUT, "'January' is not a day"),
    ("simulate", INPUT, "nothing to simulate"),
    ("simulate --policies ebb --rates 4", INPUT, "did you mean 'eb'"),
    ("simulate --policies eb", INPUT, "--rates is needed with --policies"),
    ("simulate plan.yaml --requests 0", INPUT, "--requests: must be at least 1"),
    ("stability --rate 0", INPUT, "--rate: must be a positive number"),
    ("wait --rate 4 --delta 2", INPUT, "delta: must lie between 0 and 1"),
    ("batching --gpu nix", INPUT, "unknown GPU 'nix'"),
    ("reproduce nothing", INPUT, "'nothing' is none of fleetopt"),
    ("gpu show h10", INPUT, "did you mean 'h100'"),
    ("model show llama-9", INPUT, "unknown model 'llama-9'"),
    ("profile show nowhere", INPUT, "unknown profile 'nowhere'"),
    ("workload show nowhere", INPUT, "nowhere: no such file or shipped workload"),
    ("workload import text.txt -o out.csv", INPUT, "text.txt: not a format known here"),
    ("calibrate --from nowhere.csv", INPUT, "nowhere.csv: no such file"),
    ("calibrate --server not-a-url --gpu h100 --model m", INPUT, "'not-a-url' is not http(s)://host[:port]"),
    ("compress measure --prompts nowhere.jsonl --boundary 8192", INPUT, "nowhere.jsonl: no such file"),
    ("deploy nowhere.yaml", INPUT, "nowhere.yaml: no such file"),
    ("deploy plan.yaml --to helm", INPUT, "'helm' is none of compose, dynamo, k8s"),
    ("deploy plan.yaml --to k8s --format json", USAGE, "--format: no option of deploy, but of plan"),
    ("check plan.yaml", INPUT, "no metrics to look at"),
    ("check plan.yaml --prometheus nowhere.json", INPUT, "nowhere.json: no such file"),
    ("check plan.yaml --prometheus text.txt", INPUT, "text.txt:1: not JSON"),
    ("autoscale plan.yaml --hours servegen-m-smal", INPUT, "did you mean 'servegen-m-small'"),
    ("autoscale plan.yaml --hours servegen-m-small --startup soon", INPUT, "'soon' is not a duration"),
    ("autoscale plan.yaml --hours servegen-m-small --to terraform", INPUT, "'terraform' is none of hpa, keda, wva"),
    ("report plan.yaml -o report.pdf", INPUT, "a report is a page (.html) or Markdown (.md)"),
    ("report nowhere.yaml", INPUT, "nowhere.yaml: no such file"),
    ("cost plan.yaml --spot-share 130%", INPUT, "must lie in 0 to 1"),
    ("cost plan.yaml --reserved h100=1.79", INPUT, "'h100=1.79' is not GPU=USD@TERM"),
    ("init --slo 500", INPUT, "write 500ms"),
    ("init --slo 0.5 --gpu h10", INPUT, "did you mean 'h100'"),
    ("compress measure --prompts text.txt --boundary 8192", INPUT, "text.txt:1: not JSON"),
    ("workload sql --dialect oracle --table logs", INPUT, "oracle"),
    ("workload compare azure nowhere", INPUT, "nowhere: no such file or shipped workload"),
    ("workload mix azure=x azure-conv=1 -o mixed.csv", INPUT, "weight of azure: 'x' is not a number"),
    ("prices import text.txt", INPUT, "text.txt: not a price list"),
    ("profile compare llama-3.1-8b-h100-80gb-tp1-trtllm nowhere", INPUT, "unknown profile 'nowhere'"),
    ("plan --slo 0.5 --cdf turns=10,first=2000", INPUT, "states no arrival rate of its own"),
    ("plan --slo 0.5 --set max_queue=-1", INPUT, "must not be negative"),
    ("plan --slo 0.5 --client-timeout 0", INPUT, "--client-timeout: must be positive"),
    ("plan --slo 0.5 --engine tgi", INPUT, "'tgi' is none of sglang, trtllm, vllm"),
    ("plan --slo 0.5 --weights int8", INPUT, "did you mean 'int4'"),
    ("plan --slo 0.5 --spot-price h100=1 --spot-share 2", INPUT, "--spot-share: must lie in [0, 1]"),
    ("plan --slo 0.5 --shape split", INPUT, "'split' is none of colocated, disaggregated, both"),
    ("plan --slo 0.5 --set boundaries=4k,x", INPUT, "'x' is not a number of tokens"),
    # percent for shares, promises in other spellings, files taken for others
    ("plan --slo 0.5 --headroom 20", INPUT, "write 20% for 20 in a hundred"),
    ("plan --slo 0.5 --cached-share 60", INPUT, "write 60% for 60 in a hundred"),
    ("plan --slo 0.5 --spot-price h100=1.2 --spot-share 50", INPUT, "write 50% for 50 in a hundred"),
    ("plan --slo 0.5 --memory-utilization 95", INPUT, "write 95% for 95 in a hundred"),
    ("plan --slo p101=300ms", INPUT, "quantile must lie in (0, 1), got 1.01"),
    ("plan --slo 0,5", INPUT, "'0,5' is not a duration"),
    ("plan --slo 0.5 --quantile most", INPUT, "--quantile: 'most' is not a quantile"),
    ("plan --goodput 99%", INPUT, "'99%' is no limit on ttft, tpot or e2e"),
    ("plan --goodput 99%:ttft=500ms", INPUT, "limits only ttft"),
    ("plan --slo 500 ms", USAGE, "a number and its unit are one word: 500ms"),
    ("plan --slo 0.5 --tp auto", INPUT, "tp: 'auto' is not a number"),
    ("plan --slo 0.5 --gpu 8xh100", INPUT, "did you mean 'h100'"),
    ("plan --slo 0.5 --gpu h100,", INPUT, "expected a GPU name or a list of them"),
    ("plan --slo 0.5 --inventory 64", INPUT, "--inventory: expected GPU=number"),
    ("plan --slo 0.5 --rate 1,000", INPUT, "write 1000"),
    ("plan --slo 0.5 --rate nan", INPUT, "--rate: 'nan' is not a rate"),
    ("plan --slo 0.5 --set gammas=a", INPUT, "--set gammas=a: 'a' is not a number"),
    ("plan --slo 0.5 --rate inf", INPUT, "--rate: 'inf' is not a rate"),
    ("plan --slo 0.5 --isl 2000 --osl -5 --rate 3", INPUT, "osl: must be at least 1 token"),
    ("plan --slo 0.5 --redundancy one", INPUT, "--redundancy: 'one' is not a whole number"),
    ("plan --slo 0.5 --cdf plan.yaml", INPUT, "plan.yaml: a plan, not a workload"),
    ("plan --slo 0.5 --model missing/config.json", INPUT, "missing/config.json: no such file"),
    ("evaluate text.txt", INPUT, "expected options as `name: value` lines"),
    ("evaluate plan.yaml --replicas 5", USAGE, "--replicas: no option of evaluate, but of simulate"),
    ("schedule plan.yaml --hours 24", INPUT, "24: no such file or shipped service"),
    ("report plan.yaml -o .", INPUT, ".: is a folder"),
    ("plan --slo 0.5 --max-queue 40", USAGE, "--max-queue: is written --set max_queue=40"),
    ("plan --slo 0.5 --growth use", USAGE, "growth: is written --set growth=use"),
    ("plan --slo 0.5 --set max_que=4", INPUT, "--set max_que=4: 'max_que': unknown option; did you mean 'max_queue'"),
    ("schedule plan.yaml --hours servegen-m-small --buffer 10%", USAGE, "--buffer: is written --headroom 10%"),
    # names and places of people
    ("plan azure.csv", USAGE, "azure.csv: is given as --cdf azure.csv"),
    ("plan --slo 0.5 h200", USAGE, "h200: is given as --gpu h200"),
    ("plan --slo 0.5 asked.yaml", USAGE, "asked.yaml: is given as --config asked.yaml"),
    ("h100", USAGE, "h100: no command; plan takes it as --gpu h100"),
    (
        "plan --slo 0.5 --config good.csv",
        INPUT,
        "--config good.csv: traffic, not a plan or a configuration; it is given as --cdf",
    ),
    ("evaluate good.csv", INPUT, "good.csv: traffic, not a plan or a configuration"),
    (
        "plan --slo 0.5 --cdf nooutput.csv",
        INPUT,
        "--cdf nooutput.csv: no column of output tokens, such as output_tokens",
    ),
    (
        "plan --slo 0.5 --cdf other.csv",
        INPUT,
        "--cdf other.csv: not a format known here (found: whentime, prompt, completion)",
    ),
    ("plan --slo 0.5 --cdf days.csv", INPUT, "time '01/11/2026 08:00:00' is not a time"),
    (
        "plan --slo 0.5 --inventory a100=10",
        INPUT,
        "--inventory a100=10: 'a100' is none of the GPUs searched (h100); write --gpu a100",
    ),
    (
        "plan --slo 0.5 --model gpt-4",
        INPUT,
        "--model: model 'gpt-4' cannot be hosted: its weights are not published; sized like it",
    ),
    ("plan --slo 0.5 --model claude-3-haiku", INPUT, "sized like it: 'gpt-oss-20b'"),
    ("plan --slo 0.5 --model llama", INPUT, "--model: unknown model 'llama'; did you mean 'llama"),
    ("plan --slo 0.5 --gpu v100", INPUT, "--gpu: unknown GPU 'v100'; did you mean"),
    (
        "plan --slo 0.5 --gpu h100x8",
        INPUT,
        "--gpu: unknown GPU 'h100x8': a type, without how many; did you mean 'h100'",
    ),
    ("plan --slo 0.5 -o nowhere/plan.yaml", INPUT, "-o nowhere/plan.yaml: folder"),
    ("plan --slo 0.5 -o .", INPUT, "-o .: is a folder"),
    ("plan --slo 0.5 --plot fleet.gif", INPUT, "--plot fleet.gif: a picture is one of .svg"),
    ("plan --slo 0.5 --rate 100/fortnight", INPUT, "--rate: '100/fortnight' is not a rate"),
    ("plan --slo 0.5 --policies eb", USAGE, "--policies: no option of plan, but of simulate"),
    ("plan --slo 0.5 --startup 4min", USAGE, "--startup: no option of plan, but of schedule"),
    ("plan --slo 0.5 --verify-wth kernel", USAGE, "did you mean '--verify'?"),
    ("plan --tpot 0.001ms --method mgc --pools 1", INFEASIBLE, "cannot be kept by any number of replicas"),
    ("plan --slo 0.5 --images -1 --model qwen3-vl-8b", INPUT, "--images: must not be negative, got -1"),
    ("plan --slo 0.5 --images 2", INPUT, "--images 2: no image encoder of llama-3.1-8b is known"),
    ("plan --slo 0.5 --images 2 --image-size big", INPUT, "--image-size: 'big' is no size of an image"),
    ("plan --slo 0.5 --image-size 1024x768", INPUT, "--image-size 1024x768: no prompt has images"),
    ("plan --slo 0.5 --images 2 --cdf seen.csv", INPUT, "--images 2: seen says itself how many images"),
    ("plan --slo 0.5 --shape epd", INPUT, "an image encoder on GPUs of its own, is not modelled"),
    (
        "capacity --have h100=x --cdf azure --slo 4 --method mgc --kv reserved --pools 1",
        INPUT,
        "--have h100=x: 'x' is not a number",
    ),
    ("plan --slo 0.5 --users 500 --rate 3", INPUT, "--users 500: not together with rate"),
    ("plan --slo 1 --users 500", INPUT, "--users 500: how often does each ask?"),
    ("plan --slo 1 --users 500 --think-time soon", INPUT, "--think-time: 'soon' is not a duration"),
    ("capacity --slo 1 --have h100=-3", INPUT, "--have: h100=-3 is no number of GPUs"),
    ("capacity --have h100=4", INPUT, "no latency promise given"),
    ("capacity --slo 1 --method occupancy", INPUT, "capacity: of what fleet?"),
    ("plan --slo 0.5 --input 2000 --output 300 --rate 3", USAGE, "--input: is written --isl 2000"),
    ("plan --slo 0.5 --tensor-parallel-size=2", USAGE, "--tensor-parallel-size: is written --tp 2"),
    ("plan --slo 0.5 --kv-cache-dtype fp8", USAGE, "--kv-cache-dtype: is written --set kv_dtype=fp8"),
    ("plan --slo 0.5 --request-rate 3", USAGE, "--request-rate: is written --rate 3"),
    ("gpu shwo h100", USAGE, "shwo: no such command; did you mean 'show'?"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files with mistakes in them, and a plan without."""
    where: Path = tmp_path_factory.mktemp("mistakes")
    for name, text in FILES.items():
        (where / name).write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit), pytest.MonkeyPatch.context() as patch:
        patch.chdir(where)
        run(["plan", "--slo", "4", "--rate", "20", *QUICK.split(), "-o", "plan.yaml"])
    return where


@pytest.mark.parametrize(("line", "code", "told"), MISTAKES, ids=[m[0] for m in MISTAKES])
def test_a_mistake_is_one_clear_line(
    line: str, code: int, told: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    # the framework's own complaints stand in a box as wide as the page
    monkeypatch.setenv("COLUMNS", "400")
    before = {p.name for p in folder.iterdir()}
    with pytest.raises(SystemExit) as end:
        run(line.split())
    said = capsys.readouterr()
    assert end.value.code == code, said.err
    assert told in said.err
    if code != USAGE:
        assert said.err.startswith("error: ")
        assert told in said.err.splitlines()[0]
    assert said.out == ""
    assert "Traceback" not in said.err
    assert {p.name for p in folder.iterdir()} == before


def test_columns_of_other_names_are_guessed_in_the_command_to_try(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    said = [_ended(["plan", "--slo", "0.5", "--cdf", name], capsys)[1] for name in ("other.csv", "days.csv")]
    named = "--map input=prompt --map output=completion --map time=whentime"
    assert said[0].endswith(f"\ntry: fleetopt workload import other.csv {named} -o traffic.csv\n")
    assert "A time is a number, or like 2026-11-01T08:00:00." in said[1]


CHECK = 6
"""Exit of a check that was made, and failed."""

IN_FULL = 12
"""One in so many of the commands is answered to its end; of the others the question is only read."""


WORK = (
    (plan, "make_plan"), (stock, "capacity_of_stock"), (derive, "needs_of"), (choices, "choices_after"),
    (papers, "import_module"),
)  # fmt: skip
"""Where the work begins once a question is read."""


def test_what_is_told_to_try_works_when_pasted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    tried: list[tuple[str, ...]] = []
    without = 0
    for line, _, _ in MISTAKES:
        said = _ended(line.split(), capsys)[1].splitlines()
        told = [tuple(shlex.split(t.removeprefix("try: fleetopt "))) for t in said if t.startswith("try: ")]
        tried += told
        without += not told
    broken = []

    def only_asked(*_: Any, **__: Any) -> None:
        raise InputError("asked")

    # many mistakes end with one command
    for number, words in enumerate(dict.fromkeys(tried)):
        quick = list(words)
        # a large question is answered in a moment by the closed form
        if words[0] in ("plan", "capacity") and "--config" not in words and "--method" not in words:
            quick += QUICK.split()
        if words[0] == "simulate" and "--policies" in words and "--requests" not in words:
            quick += ["--requests", "50"]
        whole = number % IN_FULL == 0 or (len(quick) > len(words) and words[0] == "simulate")
        with monkeypatch.context() as patch:
            for module, name in () if whole else WORK:
                patch.setattr(module, name, only_asked)
            code, said_then = _ended(quick if whole else list(words), capsys)
        (tmp_path / "fleetopt.yaml").unlink(missing_ok=True)
        if code not in (0, CHECK) and "error: asked" not in said_then:
            broken.append((shlex.join(words), said_then))
    # a calibration takes a GPU, or points that one gave
    assert all(words.startswith("calibrate ") for words, _ in broken), broken
    assert without + len(broken) <= 0.05 * len(MISTAKES), broken


def _ended(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[object, str]:
    """How a command ends, and what it says on stderr."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        run(words)
    return end.value.code, capsys.readouterr().err


def test_help_is_short_and_all_of_it_is_not_long() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    assert len(commands["plan"].params) <= 70
    own = [p for p in commands["schedule"].params if not getattr(p, "hidden", False)]
    assert not {p.name for p in own} & set(OPTIONS)
    shown = CliRunner().invoke(app, ["plan", "--help"], env={"COLUMNS": "100"}).output
    every = CliRunner().invoke(app, ["plan", "--help-all"], env={"COLUMNS": "100"}).output
    flags = [line for line in shown.splitlines() if re.match(r"\W+--[a-z]", line)]
    assert 12 <= len(flags) <= 20
    assert shown.count("fleetopt plan ") >= 2
    assert all(word in every for word in ("--shape", "--spot-share", "--utilization-cap"))
    assert "--spot-share" not in shown


def test_no_command_has_two_options_of_one_name() -> None:
    """The later would hide the earlier, and what was meant for one would go to the other."""
    found = [get_command(app)]
    while found:
        command = found.pop()
        found += getattr(command, "commands", {}).values()
        flags = [flag for option in command.params for flag in (*option.opts, *option.secondary_opts) if flag[0] == "-"]
        assert len(flags) == len(set(flags)), command.name
