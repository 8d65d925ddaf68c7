"""Reading measurements: what is accepted, and that bad files are told whole."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from planner.calibrate.files import FORMATS, Assumed, read_measurements
from planner.calibrate.points import Batch, Points, RawPoints, write_points
from planner.calibrate.run import calibrate
from planner.errors import CalibrationError, InputError

HEADER = "gpu,model,tp,n_decode,decode_ctx,prefill_seqs,prefill_new_tokens_per_seq,prefill_past_tokens,measured_ms"


def csv(tmp_path: Path, *rows: str, header: str = HEADER) -> Path:
    path = tmp_path / "iterations.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_composition() -> None:
    batch = Batch(8, 1024, 2, 512, 100)
    assert batch.tokens == 8 + 1024
    # two chunks of 512 after 100: each token sees the past and itself and those before it
    assert batch.pairs == 2 * sum(100 + i for i in range(1, 513))
    assert [b.kind for b in (Batch(1, 5), Batch(0, 0, 1, 5), Batch(0, 0, 1, 5, 5), batch)] == [
        "decode", "prefill", "chunk", "mixed",
    ]  # fmt: skip


def test_iterations(tmp_path: Path) -> None:
    path = csv(tmp_path, "h100,llama-3.1-8b,1,4,1024,0,0,0,7.5", "h100,llama-3.1-8b,1,0,0,1,512,64,16.0")
    found = read_measurements([path])
    points = found.iterations[("h100", "llama-3.1-8b", 1)]
    assert points.batches == (Batch(4, 1024), Batch(0, 0, 1, 512, 64))
    assert points.time_s == pytest.approx([7.5e-3, 16e-3])
    assert points.order is None


def test_order_and_selection(tmp_path: Path) -> None:
    path = csv(
        tmp_path, "1,64,0,0,0,5,2,fit", "2,64,0,0,0,6,1,fit", "9,64,0,0,0,9,3,test",
        header="n_decode,decode_ctx,prefill_seqs,prefill_new_tokens_per_seq,prefill_past_tokens,measured_ms,order,role",
    )  # fmt: skip
    points = read_measurements([path], where={"role": "fit"}).iterations[("", "", 1)]
    assert points.order is not None and points.order.tolist() == [2.0, 1.0]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("n_decode,decode_ctx\n1,2\n", "column 'measured_ms' is missing"),
        (HEADER.replace("measured_ms", "measured") + "\n", "did you mean 'measured'"),
        (HEADER + "\n", "no iterations in it"),
        (HEADER + "\nh100,m,1,4,64,0,0,0,-3\n", "iterations.csv:2: measured_ms must be positive"),
        (HEADER + "\nh100,m,1,four,64,0,0,0,3\n", "iterations.csv:2: not numbers"),
        (HEADER + "\nh100,m,1,0,0,0,0,0,3\n", "the batch is empty"),
        (HEADER + "\nh100,m,1,3,0,0,0,0,3\n", "need a context"),
        (HEADER + "\nh100,m,1,0,0,1000000000000,1000000,0,3\n", "tokens of all its sequences"),
        ("isl,osl,concurrency,tpot_ms\n1000,100,0,7\n", "concurrency must be positive"),
        ("isl,osl,tpot_ms\n1000,100,7\n", "column 'concurrency' is missing"),
        ("isl,osl,concurrency,tpot_ms\n1000,100,x,7\n", "not numbers"),
        ("isl,osl,concurrency,tpot_ms\n", "no server points"),
        ("", "is empty"),
        ('{"hello": 1}', "no result format recognised"),
        ('{"completed": 0, "total_input_tokens": 0}', "no request was completed"),
        ('{"completed": 3, "total_input_tokens": 30, "total_output_tokens": 30}', "no TPOT"),
        ("{broken", "not JSON"),
    ],
)
def test_bad_files_are_clear_errors(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "iterations.csv"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_measurements([path])
    assert told in str(caught.value)


def test_all_problems_at_once(tmp_path: Path) -> None:
    path = csv(tmp_path, *["h100,m,1,4,64,0,0,0,-3"] * 30)
    with pytest.raises(InputError, match="30 problems") as caught:
        read_measurements([path])
    assert len(caught.value.problems) == 30 and "... and 5 more" in str(caught.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_measurements([tmp_path / "nothing.csv"])
    with pytest.raises(InputError, match="is a folder"):
        read_measurements([tmp_path])


def test_points_check_themselves() -> None:
    with pytest.raises(InputError, match="must be positive"):
        Points((Batch(1, 64),), np.array([np.nan]))
    with pytest.raises(InputError, match="time must lie in"):
        Points((Batch(1, 64),), np.array([5e-324]))
    with pytest.raises(InputError, match="order"):
        Points((Batch(1, 64),), np.array([1.0]), np.array([1e300]))
    with pytest.raises(InputError, match="whole number"):
        Points((Batch(-1, 64),), np.array([1.0]))
    with pytest.raises(InputError, match="order"):
        Points((Batch(1, 64),), np.array([1.0]), np.array([1.0, 2.0]))


VLLM = {
    "backend": "vllm", "model_id": "m", "max_concurrency": 16, "request_throughput": 4.0, "completed": 100,
    "total_input_tokens": 102400, "total_output_tokens": 12800, "mean_ttft_ms": 250.0, "mean_tpot_ms": 20.0,
}  # fmt: skip
GUIDELLM = {
    "benchmarks": [
        {
            "config": {"strategy": {"type_": "concurrent", "streams": 8}},
            "metrics": {
                "prompt_token_count": {"successful": {"mean": 512.0}},
                "output_token_count": {"successful": {"mean": 64.0}},
                "inter_token_latency_ms": {"successful": {"mean": 11.0}},
                "time_to_first_token_ms": {"successful": {"mean": 90.0}},
                "request_concurrency": {"successful": {"mean": 7.8}},
            },
        },
        {
            "args": {"strategy": {"type_": "synchronous"}},
            "metrics": {
                "prompt_token_count": {"successful": {"mean": 512.0}},
                "output_token_count": {"successful": {"mean": 64.0}},
                "inter_token_latency_ms": {"successful": {"mean": 8.0}},
                "time_to_first_token_ms": {"successful": {"mean": 30.0}},
            },
        },
    ]
}
AIPERF = {
    "input_config": {"loadgen": {"concurrency": 4}},
    "time_to_first_token": {"unit": "ms", "avg": 40.0},
    "inter_token_latency": {"unit": "ms", "avg": 9.0},
    "input_sequence_length": {"unit": "tokens", "avg": 550.0},
    "output_sequence_length": {"unit": "tokens", "avg": 256.0},
    "request_throughput": {"unit": "requests/sec", "avg": 1.7},
}
INFERENCE_PERF = {
    "load_summary": {"count": 300, "achieved_rate": 5.0},
    "successes": {
        "count": 300,
        # its TPOT counts two events per token: half the truth
        "latency": {
            "request_latency": {"mean": 1.1},
            "time_to_first_token": {"mean": 0.1},
            "time_per_output_token": {"mean": 0.005},
        },
        "throughput": {"requests_per_sec": 5.0},
        "prompt_len": {"mean": 300.0},
        "output_len": {"mean": 101.0},
    },
}


GENAI_PERF = {**AIPERF, "input_config": {"perf_analyzer": {"stimulus": {"concurrency": 4}}}}
SGLANG = {**VLLM, "backend": "sglang"}
LLM_OPTIMIZER = {
    "results": [
        {"config": {"client_args": {"max_concurrency": 8}}, "results": {**VLLM, "max_concurrency": None}},
        {"config": {"client_args": {"max_concurrency": 32}}, "results": {**VLLM, "max_concurrency": None}},
    ]
}


@pytest.mark.parametrize(
    ("document", "name", "expected"),
    [
        (VLLM, "vLLM bench serve", [(1024, 128, 16, 0.020, 0.25)]),
        ({**VLLM, "max_concurrency": None}, "vLLM bench serve", [(1024, 128, 4 * (0.25 + 0.02 * 127), 0.020, 0.25)]),
        (GUIDELLM, "GuideLLM", [(512, 64, 8, 0.011, 0.09), (512, 64, 1, 0.008, 0.03)]),
        (AIPERF, "aiperf", [(550, 256, 4, 0.009, 0.04)]),
        (GENAI_PERF, "genai-perf", [(550, 256, 4, 0.009, 0.04)]),
        (SGLANG, "SGLang bench_serving", [(1024, 128, 16, 0.020, 0.25)]),
        (LLM_OPTIMIZER, "llm-optimizer", [(1024, 128, 8, 0.020, 0.25), (1024, 128, 32, 0.020, 0.25)]),
        # Little: 5/s x (0.1 s + 100 x 10 ms); TPOT (1.1 - 0.1)/100
        (INFERENCE_PERF, "inference-perf", [(300, 101, 5.5, 0.010, 0.1)]),
    ],
)
def test_results_of_load_generators(
    tmp_path: Path, document: dict[str, object], name: str, expected: list[tuple[float, ...]]
) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(document))
    found = read_measurements([path])
    assert next(known for known, (recognise, _) in FORMATS.items() if recognise(document)) == name
    (points,) = found.servers.values()
    got = [(p.input_tokens, p.output_tokens, p.concurrency, p.tpot_s, p.ttft_s) for p in points]
    assert got == [pytest.approx(e) for e in expected]


def test_results_of_one_server_are_joined(tmp_path: Path) -> None:
    paths = []
    for i, isl in enumerate((256, 1024)):
        paths.append(tmp_path / f"{i}.json")
        paths[-1].write_text(json.dumps({**VLLM, "total_input_tokens": 100 * isl}))
    (points,) = read_measurements(paths).servers.values()
    assert [p.input_tokens for p in points] == [256, 1024]
    lines = tmp_path / "appended.jsonl"
    lines.write_text("\n".join(json.dumps(VLLM) for _ in range(3)))
    assert len(next(iter(read_measurements([lines]).servers.values()))) == 3


MLPERF = """================================================
MLPerf Results Summary
================================================
SUT name : PySUT
Scenario : Offline
Mode     : PerformanceOnly
Samples per second: 25
Tokens per second: 7500
Result is : VALID
"""


def test_an_offline_throughput_is_a_point(tmp_path: Path) -> None:
    """7,500 tokens/s with 256 at once: a request stays 256 x 300/7500 = 10.24 s, in 299 decode iterations and one chunk."""
    path = tmp_path / "mlperf_log_summary.txt"
    path.write_text(MLPERF)
    with pytest.raises(InputError, match="no input length, concurrency"):
        read_measurements([path])
    found = read_measurements([path], assumed=Assumed(294.0, None, 256.0))
    ((point,),) = found.servers.values()
    assert (point.input_tokens, point.output_tokens, point.concurrency) == (294, 300, 256)
    assert point.tpot_s == pytest.approx(10.24 / 300)
    path.write_text(MLPERF.replace("Tokens per second:", "Tokens per second (inferred):"))
    assert read_measurements([path], assumed=Assumed(294.0, None, 256.0)).servers == found.servers
    path.write_text(MLPERF.replace("Offline", "Server"))
    with pytest.raises(InputError, match="its rate was set by the run"):
        read_measurements([path], assumed=Assumed(294.0, None, 256.0))
    path.write_text(MLPERF.replace(": VALID", ": INVALID"))
    with pytest.raises(InputError, match="INVALID"):
        read_measurements([path], assumed=Assumed(294.0, None, 256.0))
    table = tmp_path / "t.csv"
    table.write_text("isl,osl,concurrency,output_tokens_per_s\n294,300,256,7500\n")
    ((same,),) = read_measurements([table]).servers.values()
    assert same == point


def test_inference_perf_without_streaming_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    good = {**INFERENCE_PERF["successes"], "latency": {"time_per_output_token": {"mean": 0.005}}}  # type: ignore[dict-item]
    path.write_text(json.dumps({"successes": good}))
    with pytest.raises(InputError, match="to derive TPOT"):
        read_measurements([path])


def test_deep_results_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_text('{"a":' * 100_000)
    with pytest.raises(InputError):
        read_measurements([path])


def test_points_of_a_gpu_nobody_named_are_those_of_the_gpu_that_is_named_now(tmp_path: Path) -> None:
    row = {"input_tokens": 512.0, "output_tokens": 128.0, "concurrency": 8.0, "tpot_s": 0.012}
    raw = RawPoints("server", {"gpu": "unknown-gpu", "model": "llama-3.1-8b", "engine": "vllm", "tp": 1}, [row])
    path = write_points(raw, tmp_path / "x.points.jsonl")
    assert calibrate(files=[path], gpu="h100").only.profile.gpu == "h100-80gb"
    with pytest.raises(CalibrationError, match="no prior to rescale"):
        calibrate(files=[path])
    nameless = write_points(replace(raw, header={"engine": "vllm"}), tmp_path / "y.points.jsonl")
    with pytest.raises(InputError, match="do not say what was measured"):
        calibrate(files=[nameless])


@pytest.mark.parametrize(("engine", "kept"), [("vllm", "mixed"), ("sglang", None)])
def test_points_say_how_prompts_are_run_only_where_it_is_known(tmp_path: Path, engine: str, kept: str | None) -> None:
    """What a fit chose is not kept as if somebody had said it: the next fit may choose otherwise."""
    row = {"input_tokens": 512.0, "output_tokens": 128.0, "concurrency": 8.0, "tpot_s": 0.012}
    raw = RawPoints("server", {"gpu": "h100", "model": "llama-3.1-8b", "engine": engine, "tp": 1}, [row])
    made = calibrate(files=[write_points(raw, tmp_path / "x.points.jsonl")]).only.raw
    assert made is not None and made.header.get("scheduling") == kept and "token_budget" not in made.header


def test_shared_servers(shared_data: Path) -> None:
    found = read_measurements([shared_data / "calibration" / "servers.csv"])
    assert sum(len(p) for p in found.servers.values()) == 711


def test_records_of_a_sweep_are_of_one_engine_with_its_parallelism(tmp_path: Path) -> None:
    """llm-optimizer's JSON lines as its users publish them: Qwen3-4B on four L4s, three levels of one of its settings."""
    lines = []
    for level, tp, ttft, tpot in ((32, 4, 134.249, 28.140), (64, 4, 251.347, 48.656), (128, 2, 663.070, 91.838)):
        client = {"max_concurrency": level, "num_prompts": 1000, "dataset_name": "sharegpt"}
        server = {"tensor_parallel_size": tp, "max_num_batched_tokens": 8192}
        results = {
            "backend": "vllm", "max_concurrency": level, "completed": 1000, "total_input_tokens": 302118,
            "total_output_tokens": 195775, "mean_ttft_ms": ttft, "mean_tpot_ms": tpot, "accept_length": None,
        }  # fmt: skip
        lines.append(json.dumps({"config": {"client_args": client, "server_args": server}, "results": results}))
    file = tmp_path / "results.jsonl"
    file.write_text("\n".join(lines[:2]))
    ((key, found),) = read_measurements([file]).servers.items()
    assert key[-1] == "4" and [p.concurrency for p in found] == [32.0, 64.0]
    assert found[0].input_tokens == pytest.approx(302.118) and found[1].tpot_s == pytest.approx(0.048656)
    file.write_text("\n".join(lines))
    with pytest.raises(InputError, match="records are of 2 engines"):
        read_measurements([file])


def test_the_file_at_the_end_of_a_sweep_is_read_and_is_of_one_engine(tmp_path: Path) -> None:
    """llm-optimizer writes {metadata, best_configurations, test_results}; the best ones are settings without results."""

    def record(level: int, tp: int) -> dict[str, object]:
        client = {"max_concurrency": level, "random_input_len": 1024, "random_output_len": 128}
        config = {"client_args": client, "server_args": {"tensor_parallel_size": tp}, "server_cmd_args": [f"-tp={tp}"]}
        results = {**VLLM, "max_concurrency": level, "request_rate": None}
        return {"config": config, "results": results, "cmd": "vllm serve m", "constraints": [], "metadata": {}}

    best = {"best_output_throughput": {"throughput": 512.0, "config": record(32, 2)["config"], "cmd": "vllm serve m"}}
    whole = {"metadata": {"gpu_type": "H100", "total_tests": 2}, "best_configurations": best}
    file = tmp_path / "results.json"
    file.write_text(json.dumps({**whole, "test_results": [record(8, 2), record(32, 2)]}, indent=2))
    found = read_measurements([file])
    ((key, points),) = found.servers.items()
    assert key[-1] == "2" and [p.concurrency for p in points] == [8.0, 32.0]
    file.write_text(json.dumps({**whole, "test_results": [record(8, 2), record(32, 4)]}))
    with pytest.raises(InputError, match="records are of 2 engines"):
        read_measurements([file])


@pytest.mark.parametrize(
    ("document", "in_flight"),
    [
        ({**VLLM, "request_rate": "inf"}, 16.0),
        # 4/s that stay 0.25 + 127 x 0.02 s; the cap of 16 was not met
        ({**VLLM, "request_rate": 4.0}, 4.0 * (0.25 + 127 * 0.02)),
        ({**AIPERF, "input_config": {"loadgen": {"concurrency": 64, "request_rate": 2.0}}}, 1.7 * (0.04 + 255 * 0.009)),
        ({**AIPERF, "input_config": {"phases": [{"name": "warmup", "concurrency": 1}, {"name": "x", "concurrency": 4}]}}, 4.0),
    ],
)  # fmt: skip
def test_a_cap_is_the_load_only_where_no_rate_was_set(
    tmp_path: Path, document: dict[str, object], in_flight: float
) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps(document))
    (points,) = read_measurements([path]).servers.values()
    assert points[0].concurrency == pytest.approx(in_flight)


def test_a_poisson_run_of_guidellm_is_as_loaded_as_it_says(tmp_path: Path) -> None:
    run = {
        **GUIDELLM["benchmarks"][0],
        "config": {"strategy": {"type_": "poisson", "rate": 3.0, "max_concurrency": 512}},
    }
    path = tmp_path / "r.json"
    path.write_text(json.dumps({"metadata": {"version": 2}, "config": {}, "benchmarks": [run]}))
    (points,) = read_measurements([path]).servers.values()
    assert points[0].concurrency == 7.8


def test_inference_perf_of_later_versions(tmp_path: Path) -> None:
    """They call the prompts' lengths prompt_tokens, and count the answers' as the server does."""
    good = {k: v for k, v in INFERENCE_PERF["successes"].items() if k != "prompt_len"}  # type: ignore[attr-defined]
    good |= {
        "prompt_tokens": {"total": 9e4, "cached": 0.0, "mean": 300.0},
        "output_tokens": {"total": 3e4, "mean": 101.0},
    }
    good["output_len"] = {"mean": 99.0}
    path = tmp_path / "r.json"
    path.write_text(json.dumps({**INFERENCE_PERF, "successes": good}))
    ((point,),) = read_measurements([path]).servers.values()
    assert (point.input_tokens, point.output_tokens) == (300.0, 101.0) and point.tpot_s == pytest.approx(0.010)


def test_the_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps(VLLM) + "\n" + json.dumps(VLLM)[:40])
    with pytest.raises(InputError, match=r"r\.jsonl:2: not JSON"):
        read_measurements([path])
    path.write_text('{\n  "completed": 3,\n  broken\n}')
    with pytest.raises(InputError, match=r"r\.jsonl:3: not JSON"):
        read_measurements([path])


def test_rows_of_servers_are_selected_too(tmp_path: Path) -> None:
    path = tmp_path / "servers.csv"
    lines = ["backend,isl,osl,concurrency,tpot_ms", "vllm,100,50,1,8", "sglang,100,50,1,9", "vllm,100,50,4,10"]
    path.write_text("\n".join(lines))
    (points,) = read_measurements([path], where={"backend": "VLLM"}).servers.values()
    assert [(p.concurrency, p.tpot_s) for p in points] == [(1.0, 0.008), (4.0, 0.01)]
    for where, told in (({"backend": "x"}, "no server points in it with backend=x"), ({"gpu": "x"}, "no column 'gpu'")):
        with pytest.raises(InputError, match=told):
            read_measurements([path], where=where)
