"""Nothing a user can type or feed breaks it: a bounded part of the fuzzer, and every input that once did."""

from __future__ import annotations

import gzip
import json
import re
import sys
from functools import cache
from itertools import islice
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from every import cases
from fuzzer import SERVER, Case, Maker, failures, fault, found, in_folder, invoke, served
from inputs import (
    AIPERF,
    COMMANDS,
    CONFIG,
    GPUHUNT,
    HOURS,
    MLPERF,
    MODEL,
    OWN_PRICES,
    POINTS,
    QUICK,
    SCALER,
    SESSIONS,
    SOUND,
    TRACE,
    VLLM,
    WORKLOAD,
)

pytestmark = pytest.mark.usefixtures("fewer_replayed", "few_paths")

CASES = 40
SPARSE = 3998
"""One in so many of the systematic cases; tests/fuzz/every.py tries all."""


@cache
def sound() -> dict[str, str]:
    """Files that every command takes."""
    return Maker().sound


MORE = pytest.mark.long("as many cases again")


@pytest.mark.parametrize("first", [0, pytest.param(CASES, marks=MORE)])
def test_some_damaged_inputs(first: int) -> None:
    said: list[str] = []
    assert not failures(20261122, range(first, first + CASES), said.append), "\n".join(said)


@pytest.mark.parametrize("first", [77, pytest.param(77 + SPARSE // 2, marks=MORE)])
def test_some_of_every_option_and_number(first: int) -> None:
    told = {}
    for case in islice(cases(), first, None, SPARSE):
        if (why := fault(case)) is not None:
            told[" ".join(case.arguments)[-160:]] = why
    assert not told


@pytest.mark.long("every command of the fuzzer once")
def test_what_is_damaged_works_undamaged() -> None:
    """Otherwise damage would only ever meet the same first error."""
    for _, arguments, targets in COMMANDS:
        case = Case(arguments, found(sound(), targets))
        with in_folder(case.files), served(case) as told:
            code, _, errors = invoke(told, case.files["stdin"])
        # a fleet that was not watched just now is not as planned, and a handful of events is no measurement
        right = {0, 5, 6} if any(SERVER in a for a in arguments) else {0}
        if arguments[:2] != ["compress", "serve"]:
            assert code in right, (arguments, errors[-300:])


LAUGHS = "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{chr(98 + k)}: &{chr(98 + k)} [{','.join(['*' + chr(97 + k)] * 9)}]\n" for k in range(9)
)
MERGES = "z: &z {rate: 1}\n" + "".join(
    f"m{k}: &m{k} {{<<: [*z{', *m'.join(['', *map(str, range(k))])}]}}\n" for k in range(24)
)
PLAN = ["plan", "--config", "config.yaml"]
SCALE = ["autoscale", "plan.yaml", "--hours", "hours.csv", "--policy", "scaler.yaml"]
FROM = ["calibrate", "--from", "points.csv", "-o", "made.yaml"]
SESSION_POOL = ["--cdf", SESSIONS, "--method", "occupancy", "--slo", "20", "--no-options"]
SHOW = ["workload", "show", "mine.csv"]
RESULT = [
    "calibrate",
    "--from",
    "result.json",
    "--gpu",
    "h100",
    "--model",
    "llama-3.1-8b",
    "-o",
    "made.yaml",
    "--force",
]
FIRST = r"\A(.*\n.*?)"
"""Up to somewhere in the first row after a header."""

REFIT = ["profile", "refit", "served.points.jsonl", "-o", "made.yaml", "--force"]
MEASURE = ["calibrate", "--server", SERVER, "--gpu", "h100", "--start-wait", "0", "-o", "made.yaml"]
SHORTLY = [*MEASURE, "--model", "llama-3.1-8b", "--max-seconds", "1", "--max-requests", "20", "--force"]
GATEWAY = ["compress", "serve", "--short", "http://127.0.0.1:1", "--long", "http://127.0.0.1:1", "--boundary", "2000"]
OPEN = '"' + 20_000 * "1,2,3,4,5\n"

CORPUS: dict[str, tuple[list[str], dict[str, bytes | tuple[str, str]]]] = {
    "aliases blown up": (PLAN, {"config.yaml": LAUGHS.encode()}),
    "merges blown up": (PLAN, {"config.yaml": MERGES.encode()}),
    "nested lists": (PLAN, {"config.yaml": b"rate: " + b"[" * 20000}),
    "nested objects": (["model", "show", "model.json"], {"model.json": b'{"a":' * 20000}),
    "a profile named by half a character": (
        ["profile", "refit", "profile.points.jsonl", "-o", "\ud800", "--force"],
        {},
    ),
    "replicas kept for ever": (["cost", "plan.yaml", "--hours", "hours.csv", "--dwell", "1.7976931348623157e308"], {}),
    "sessions on replicas beyond number": (
        [
            "plan",
            "--cdf",
            "hashes.jsonl",
            "--method",
            "occupancy",
            "--slo",
            "20",
            "--no-options",
            "--rate",
            "1e20",
        ],
        {},
    ),
    "an overhead beyond number": (
        [
            "plan",
            "--cdf",
            "mine.csv",
            "--method",
            "occupancy",
            "--slo",
            "20",
            "--set",
            "api_overhead=1.7976931348623157e308",
        ],
        {},
    ),
    "electricity beyond price": (
        ["cost", "plan.yaml", "--hours", "hours.csv", "--kwh-price", "1.7976931348623157e308"],
        {},
    ),
    "packed zeros": (SHOW, {"mine.csv": 100 * gzip.compress(bytes(3_000_000))}),
    "a list for a rate": (PLAN, {"config.yaml": CONFIG.replace("rate: 40", "rate: [1, 2]").encode()}),
    "a date for a rate": (PLAN, {"config.yaml": CONFIG.replace("rate: 40", "rate: 2024-01-01").encode()}),
    "nothing for a rate": (PLAN, {"config.yaml": CONFIG.replace("rate: 40", "rate:").encode()}),
    "400 digits for a rate": (PLAN, {"config.yaml": CONFIG.replace("40", "9" * 400).encode()}),
    "half a character": (PLAN, {"config.yaml": CONFIG.replace("mine.csv", '"\\ud800"').encode()}),
    "a key with a newline": (PLAN, {"config.yaml": (CONFIG + '"a\\nb\\u001b[2J": 1\n').encode()}),
    "a key given twice": (
        ["model", "show", "model.json"],
        {"model.json": MODEL.replace("{", '{"hidden_size": 1,', 1).encode()},
    ),
    "no number in config.json": (
        ["model", "show", "model.json"],
        {"model.json": MODEL.replace("4096", "NaN").encode()},
    ),
    "a tag that would run code": (PLAN, {"config.yaml": b"rate: !!python/object/apply:os.system [ls]\n"}),
    "zero bytes in a trace": (
        ["workload", "import", "trace.csv"],
        {"trace.csv": TRACE.replace("137", "1\x007").encode()},
    ),
    "a histogram of +Inf alone": (
        ["workload", "import", "scrape.txt"],
        {"scrape.txt": SOUND["scrape.txt"].replace('generation_tokens_bucket{le="50"}', "x").encode()},
    ),
    "a cdf of infinities": (SHOW, {"mine.csv": WORKLOAD.replace("9000,1", "inf,1").encode()}),
    "more tokens than there are": (
        ["plan", "--cdf", "mine.csv", "--method", "occupancy", "--slo", "20", "--set", "chunk=" + "9" * 20],
        {},
    ),
    "more bins than there are": (["workload", "import", "trace.csv", "--rows", "9" * 20], {}),
    "nothing in a list": (PLAN, {"config.yaml": CONFIG.replace("[1.0, 1.5]", "[1.0, null]").encode()}),
    "a crowd in a trace": (
        ["plan", "--cdf", "trace.csv", "--method", "occupancy", "--slo", "20"],
        {"trace.csv": (TRACE + 2000 * (TRACE.splitlines()[-1] + "\n")).encode()},
    ),
    "a header alone": (SHOW, {"mine.csv": b"tokens,cdf\n"}),
    "a terminal sequence in a name": (["plan", "--cdf", "\x1b[2Jx.csv", *QUICK], {}),
    "a terminal sequence for an option": (["gpu", "show", "\x1b]0;x\x07"], {}),
    "a name of 5,000 letters": (["plan", "--cdf", "a" * 5000, *QUICK], {}),
    "the output is the input": ([*SHOW, "--format", "json", "-o", "mine.csv"], {}),
    "the output is a full disk": (["plan", "--cdf", "mine.csv", *QUICK, "-o", "/dev/full"], {}),
    "the output lies in no folder": (["plan", "--cdf", "mine.csv", *QUICK, "-o", "no/where/plan.yaml"], {}),
    "more processes than points": (["what-if", "config.yaml", "--set", "rate=10", "--jobs", "5000"], {}),
    "an address without a place": (["workload", "show", "http://"], {}),
    "a picture of no kind": ([*SHOW, "--plot", "[" * 300], {}),
    "a scaler of aliases": (SCALE, {"scaler.yaml": LAUGHS.encode() + SCALER.replace('"12"', "*i").encode()}),
    "a scaler nested deeply": (SCALE, {"scaler.yaml": b"kind: " + b"[" * 20000}),
    "replicas that are no number": (SCALE, {"scaler.yaml": SCALER.replace("9", "9,١٢").encode()}),
    "replicas in a list": (SCALE, {"scaler.yaml": SCALER.replace("9", "[9]").encode()}),
    "a scaler's behaviour in a list": (
        SCALE,
        {"scaler.yaml": SCALER.replace("scaleUp: {", "scaleUp: [{").replace("}]}", "}]}]", 1).encode()},
    ),
    "a rate at the end of all numbers for a policy": (
        [
            "simulate",
            "--policies",
            "wait,mixed",
            "--rates",
            "1.7976931348623157e308",
            "--requests",
            "100",
            "-w",
            "mine.csv",
        ],
        {},
    ),
    "more replicas than there are machines for a policy": (
        [
            "simulate",
            "--policies",
            "wait,mixed",
            "--rates",
            "2",
            "--requests",
            "100",
            "-w",
            "mine.csv",
            "--replicas",
            "9" * 30,
        ],
        {},
    ),
    "a day that is none for a policy": (
        ["simulate", "--policies", "wait", "--rates", "2", "--requests", "50", "--set", "wait.k=2024-13-45"],
        {},
    ),
    "a batch measured 2,000 times": (
        FROM,
        {"points.csv": (POINTS + 2000 * (POINTS.splitlines()[-1] + "\n")).encode()},
    ),
    "one request in an age": (["plan", *SESSION_POOL, "--rate", "4.9e-324"], {}),
    "one request in an age, of a file": (
        ["plan", "--cdf", "mine.csv", *QUICK],
        {"mine.csv": WORKLOAD.replace("per_s: 12", "per_s: 1e-300").encode()},
    ),
    "one request in an age, changed to": (["what-if", "plan.yaml", "--set", "rate=4.9e-324"], {}),
    "one request in an age, in bursts": (["simulate", "plan.yaml", "--requests", "200", "--rate", "1e-9"], {}),
    "a profile for a device": (["profile", "refit", "profile.points.jsonl", "-o", "/dev/null", "--force"], {}),
    "measurements nested deeply": (FROM, {"points.csv": b"[" * 100_000}),
    "measurements of 5,000 digits": (FROM, {"points.csv": b'{"a": ' + b"9" * 5000 + b"}"}),
    "a tab where one of two readers wants none": (
        ["profile", "show", "profile.yaml"],
        {"profile.yaml": b"batch_tokens::\t4096\nname: [1]\n"},
    ),
    "20,000 sentences": (["compress", "text", "log.txt", "--budget", "40"], {"log.txt": b"Ab cd. " * 20_000}),
    "a row of next to no weight": (
        ["plan", "--cdf", "mine.csv", *QUICK],
        {"mine.csv": WORKLOAD.replace("120,0.3", "120,4.9e-324").encode()},
    ),
    "times of 54 years": (
        ["plan", "--cdf", "trace.csv", "--method", "occupancy", "--slo", "20"],
        {"trace.csv": TRACE.replace("1715300000.700", "1e-9").encode()},
    ),
    "more copies of a trace than can be laid": (
        [
            "plan",
            "--cdf",
            "trace.csv",
            "--method",
            "occupancy",
            "--slo",
            "20",
            "--rate",
            "1e9",
            "--no-options",
        ],
        {},
    ),
    "iterations of weeks": (
        ["plan", "--cdf", "mine.csv", "--profile", "profile.yaml", *QUICK],
        {"profile.yaml": ("  g: .*", "  g: 1e6")},
    ),
    "a plan without a rate": (
        ["report", "plan.yaml", "--no-options"],
        {"plan.yaml": ("(?m)^arrival_rate_per_s: .*", "arrival_rate_per_s: null")},
    ),
    "a pool of no capacity": (
        ["report", "plan.yaml", "--no-options"],
        {"plan.yaml": ("capacity_per_s: .*", "capacity_per_s: null")},
    ),
    "half a character for a language": (
        ["compress", "text", "log.txt", "--budget", "40", "--language", "\ud800"],
        {},
    ),
    "a model of many words": (
        ["plan", "--cdf", "mine.csv", "--model", "model.json", *QUICK],
        {"model.json": MODEL.replace("128256", "1.7976931348623157e308").encode()},
    ),
    "a measured batch beyond number": (
        ["profile", "refit", "profile.points.jsonl", "-o", "made.yaml", "--force"],
        {"profile.points.jsonl": ('"past_tokens": 0', '"past_tokens": ' + "9" * 400)},
    ),
    "replicas beyond number": (["stability", "--cdf", "mine.csv", "--replicas", "9" * 400], {}),
    "a prompt of a thousand million tokens in a row of 9,000": (
        ["plan", "--cdf", "mine.csv", *QUICK],
        {"mine.csv": WORKLOAD.replace("9000,1,8000", "9000,1,1e9").encode()},
    ),
    "times of aiperf in a number": (RESULT, {"result.json": json.dumps({**AIPERF, "records": 5}).encode()}),
    "an MLPerf summary of dashes": (RESULT, {"result.json": MLPERF.replace("7500", "--").encode()}),
    "a bench of 400 digits": (RESULT, {"result.json": json.dumps({**VLLM, "completed": 10**400}).encode()}),
    "a server that counts in 400 digits": (
        [*MEASURE, "--max-seconds", "0.1"],
        {
            "models.json": b'{"data": [{"id": "m", "max_model_len": ' + b"9" * 400 + b"}]}",
            "events.txt": b'data: {"choices": [1], "usage": {"prompt_tokens": ' + b"9" * 400 + b"}}\n\n",
        },
    ),
    "a fleet that counts in 400 digits": (
        ["check", "plan.yaml", "--prometheus", SERVER],
        {"answers.json": ('"values": \\[\\[[^,]*', '"values": [[' + "9" * 400)},
    ),
    "an engine of half a tensor": (
        ["calibrate", "--from", "profile.points.jsonl", "-o", "made.yaml"],
        {"profile.points.jsonl": ('"tp": 1', '"tp": "half"')},
    ),
    "a token budget in words": (
        ["profile", "refit", "served.points.jsonl", "-o", "made.yaml"],
        {"served.points.jsonl": ('"tp": 1', '"tp": 1, "token_budget": "many"')},
    ),
    "instances without a last cell": (
        ["prices", "import", "hunt.csv"],
        {"hunt.csv": GPUHUNT.replace(",True", "").encode()},
    ),
    "a quotation that nothing closes, of measurements": (FROM, {"points.csv": (POINTS + OPEN).encode()}),
    "a quotation that nothing closes, of loads": (RESULT, {"result.json": ("isl,osl,tpot_ms\n" + OPEN).encode()}),
    "a quotation that nothing closes, of hours": (
        ["cost", "plan.yaml", "--hours", "hours.csv"],
        {"hours.csv": (HOURS + OPEN).encode()},
    ),
    "a quotation that nothing closes, of prices": (
        ["prices", "import", "vms.csv"],
        {"vms.csv": (SOUND["vms.csv"] + OPEN).encode()},
    ),
    "a quotation that nothing closes, of one's own prices": (
        ["prices", "show"],
        {"../own/acme.csv": (OWN_PRICES + OPEN).encode()},
    ),
    "a quotation that nothing closes, of a query": (
        ["workload", "import", "sql.csv"],
        {"sql.csv": (SOUND["sql.csv"] + OPEN).encode()},
    ),
    "a header that nothing closes": (["workload", "import", "sql.csv"], {"sql.csv": OPEN.replace("\n", " ").encode()}),
    "hours without end": (["cost", "plan.yaml", "--hours", "/dev/zero"], {}),
    "prices without end": (["prices", "import", "/dev/zero"], {}),
    "results without end": (["check", "plan.yaml", "--replay", "/dev/zero"], {}),
    "a prompt without end": (["compress", "text", "/dev/zero", "--budget", "40"], {}),
    "two thousand wrong hours": (
        ["cost", "plan.yaml", "--hours", "hours.csv"],
        {"hours.csv": (HOURS + 2000 * "24,many\n").encode()},
    ),
    "half a character in a prompt": (
        ["compress", "measure", "--prompts", "prompts.jsonl", "--boundary", "150", "--gamma", "2"],
        {"prompts.jsonl": ("Remark", "Remark \\\\ud800")},
    ),
    "half a character for a tokenizer": (
        [
            "compress",
            "measure",
            "--prompts",
            "prompts.jsonl",
            "--boundary",
            "150",
            "--gamma",
            "2",
            "--tokenizer",
            "tokenizer.json",
        ],
        {"prompts.jsonl": ("Remark", "Remark \\\\ud800")},
    ),
    "a port beyond ports": ([*GATEWAY, "--port", "99999999"], {}),
    "a host that is none": ([*GATEWAY, "--host", "\x1b[2J"], {}),
    "processes without number": ([*GATEWAY, "--workers", "100000000"], {}),
    "a band without end": ([*GATEWAY, "--gamma", "inf"], {}),
    "a load measured 2,000 times": (RESULT, {"result.json": 2000 * (json.dumps(VLLM) + "\n").encode()}),
    "a token of next to no bytes": (
        ["compress", "text", "log.txt", "--budget", "40", "--bytes-per-token", "4.9e-324"],
        {},
    ),
    "a vendor of blanks": (["prices", "import", "vms.csv", "--vendor", " ", "--name", "mine"], {}),
    "a vendor in two lines": (["prices", "import", "vms.csv", "--vendor", "a\u2028b", "--name", "mine"], {}),
    "a price of the thousandth part of a GPU": (
        ["prices", "import", "vms.csv", "--vendor", "acme"],
        {"vms.csv": SOUND["vms.csv"].replace("H100,1.0", "H100,1e-9").replace("3.29", "1e14").encode()},
    ),
    "a profile's name climbs": (["calibrate", "--from", "points.csv", "--name", "../../x"], {}),
    "a prompt of next to no tokens": (
        REFIT,
        {"served.points.jsonl": (FIRST + '"input_tokens": [^,]*', r'\1"input_tokens": 4.9e-324')},
    ),
    "as many tokens in flight as numbers go": (
        REFIT,
        {"served.points.jsonl": (FIRST + '"input_tokens": [^,]*', r'\1"input_tokens": 1e15')},
    ),
    "answers beyond number": (
        REFIT,
        {"served.points.jsonl": (FIRST + '"output_tokens": [^,]*', r'\1"output_tokens": 1.7976931348623157e308')},
    ),
    "more requests in flight than can be": (
        REFIT,
        {"served.points.jsonl": (FIRST + '"concurrency": [^,]*', r'\1"concurrency": 99999999999999999999')},
    ),
    "a token in no time": (REFIT, {"served.points.jsonl": (FIRST + '"tpot_s": [^,]*', r'\1"tpot_s": 4.9e-324')}),
    "a token for ever": (
        REFIT,
        {"served.points.jsonl": (FIRST + '"tpot_s": [^,]*', r'\1"tpot_s": 1.7976931348623157e308')},
    ),
    "usage of next to no tokens": (
        SHORTLY,
        {"events.txt": (r'"prompt_tokens": ?[0-9]+', '"prompt_tokens":4.9e-324')},
    ),
    "usage at the end of numbers": (
        SHORTLY,
        {"events.txt": (r'"prompt_tokens": ?[0-9]+', '"prompt_tokens":1e15')},
    ),
    "usage beyond number": (
        SHORTLY,
        {"events.txt": (r'"completion_tokens": ?[0-9]+', '"completion_tokens":1.7976931348623157e308')},
    ),
    "a clock of 400 digits": (
        ["profile", "refit", "profile.points.jsonl", "-o", "made.yaml", "--force"],
        {"profile.points.jsonl": ('"clock_resolution_s": [^,]*', '"clock_resolution_s": ' + "9" * 400)},
    ),
    "iterations of more tokens than can be": (
        FROM,
        {"points.csv": (r"(a100,.*?,1,\d+,\d+),0,0,", r"\1,1000000000000000,512,")},
    ),
    "a bucket up to no number": (
        ["check", "plan.yaml", "--prometheus", SERVER],
        {"answers.json": (r'"le": ?"0[^"]*"', '"le": "nan"')},
    ),
    "a plan's mean output that is text": (
        ["deploy", "plan.yaml", "--to", "compose"],
        {"plan.yaml": ("mean_output_tokens: .*", "mean_output_tokens: '196.0\"06'")},
    ),
    "a plan's workload that is a list": (
        ["deploy", "plan.yaml", "--to", "k8s"],
        {"plan.yaml": (r"(?m)^workload:\n(?: .*\n)+", "workload: [1]\n")},
    ),
    "a plan's cost that is text": (
        ["deploy", "plan.yaml", "--to", "compose"],
        {"plan.yaml": (r"cost_usd_per_hour: .*", "cost_usd_per_hour: much")},
    ),
    "a plan's cached share as people write it": (
        ["deploy", "plan.yaml", "--to", "compose"],
        {"plan.yaml": (r"cached_share: .*", "cached_share: 60%")},
    ),
    "a tokenizer without the token for unknown words": (
        ["compress", "text", "log.txt", "--budget", "40", "--tokenizer", "tokenizer.json"],
        {"tokenizer.json": (r'"unk_token": ?"[^"]*"', '"unk_token": "[GONE]"')},
    ),
    "a profile's range of a thousand items": (
        [
            "plan",
            "--cdf",
            "mine.csv",
            "--profile",
            "profile.yaml",
            "--method",
            "mgc",
            "--slo",
            "20",
            "--no-options",
        ],
        {"profile.yaml": (r"context_tokens:.*(?:\n\s+- .*)*", f"context_tokens: [{', '.join(['250.0:{}'] * 2000)}]")},
    ),
    "a quote for a plan": (["simulate", '"', "--requests", "200", "--seeds", "1"], {}),
    "a word too long for a file's name": (
        ["plan", "--slo", "20", "--method", "mgc", "--no-options", "9" * 300],
        {},
    ),
    "a model too long for a file's name": (["plan", "--cdf", "azure", "--slo", "20", "--model", "9" * 300], {}),
}


@pytest.mark.parametrize("name", CORPUS)
def test_what_once_broke_it(name: str) -> None:
    arguments, files = CORPUS[name]
    texts = dict(sound())
    # a pattern and what takes its place in the sound file, or a whole file
    for file, given in files.items():
        if isinstance(given, tuple):
            texts[file] = re.sub(*given, texts[file])
    encoded = found(texts, files)
    encoded |= {file: given for file, given in files.items() if isinstance(given, bytes)}
    assert fault(Case(arguments, encoded)) is None
