"""Files that every command takes as they are, and a command line for each way in; the fuzzer damages both."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from calibrate.test_points_and_files import (
    AIPERF,
    GENAI_PERF,
    GUIDELLM,
    INFERENCE_PERF,
    LLM_OPTIMIZER,
    MLPERF,
    SGLANG,
    VLLM,
)

WORKLOAD = """# fleetopt-workload: 1
# name: mine
# requests: 1000
# arrival_rate_per_s: 12
# dispersion: 1=2 10=5 60=9
# compressible: conv=1 code=0
tokens,cdf,input_tokens,output_tokens,category
120,0.3,100,20,conv
900,0.7,800,100,code
2400,0.95,2000,400,conv
9000,1,8000,1000,code
"""
TRACE = "timestamp,input_tokens,output_tokens,category\n" + "".join(
    f"{1715300000 + 0.7 * k:.3f},{100 + 37 * (k % 50)},{5 + 11 * (k % 30)},{'chat' if k % 3 else 'code'}\n"
    for k in range(200)
)
JSONL = "".join(
    json.dumps({"timestamp": 1000 * k, "input_length": 50 + 7 * (k % 40), "output_length": 3 + k % 90}) + "\n"
    for k in range(120)
)
CONFIG = """method: mgc
cdf: mine.csv
slo: 20
rate: 40
gpu: [h100, a100]
pools: 2
gammas: [1.0, 1.5]
price: {h100: 2.5}
"""
HOURS = "hour,rate_per_s\n" + "".join(f"{h},{20 + 15 * (h % 7)}\n" for h in range(24))
MODEL = json.dumps(
    {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
        "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
    },
    indent=1,
)  # fmt: skip
SCRAPE = """# TYPE vllm:request_prompt_tokens histogram
vllm:request_prompt_tokens_bucket{le="100"} 10
vllm:request_prompt_tokens_bucket{le="1000"} 90
vllm:request_prompt_tokens_bucket{le="+Inf"} 100
vllm:request_prompt_tokens_sum 40000
vllm:request_prompt_tokens_count 100
vllm:request_generation_tokens_bucket{le="50"} 40
vllm:request_generation_tokens_bucket{le="+Inf"} 100
vllm:request_generation_tokens_sum 9000
vllm:request_generation_tokens_count 100
"""
API = """id: acme
models:
  - id: llama-3.1-8b
    prices: {input_mtok: {base: 0.2, tiers: [{start: 1000, price: 0.4}]}, output_mtok: 0.4, cache_read_mtok: 0.1}
  - id: llama-3.1-8b-dated
    prices:
      - prices: {input_mtok: 1, output_mtok: 2, requests_kcount: 1}
      - {constraint: {start_date: 2026-01-01}, prices: {input_mtok: 2, output_mtok: 3}}
"""
BATCHES = [
    (n, c, p, t)
    for n, c in ((1, 300), (4, 900), (16, 500), (48, 1200), (64, 250))
    for p, t in ((0, 0), (1, 512), (2, 900))
]
POINTS = (
    "gpu,model,tp,n_decode,decode_ctx,prefill_seqs,prefill_new_tokens_per_seq,prefill_past_tokens,measured_ms\n"
    + "".join(
        f"a100,llama-3.1-8b,1,{n},{c},{p},{t},0,{9 + 0.02 * n + 1e-4 * n * c + 0.055 * p * t:.3f}\n"
        for n, c, p, t in BATCHES
    )
)
PRICES = """InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice
gpu_1x,H100,1.0,26.0,225.0,3.29,us-west-1,"{""Gpus"": [{""MemoryInfo"": {""SizeInMiB"": 81920}}]}",
a2-1g,A100,1.0,12.0,85.0,3.67,us-central1,"{'Gpus': [{'Name': 'A100', 'Count': 1, 'MemoryInfo': {'SizeInMiB': 40960}}]}",1.1
"""
HASHES = "".join(
    json.dumps(
        {
            "timestamp": 900 * k,
            "input_length": 1024 + 512 * (k % 3),
            "output_length": 9 + k,
            "hash_ids": [1, 50 + k // 3, 90 + k],
        }
    )
    + "\n"
    for k in range(30)
)
SCALER = """apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: fleet-pool}
spec:
  minReplicas: 1
  maxReplicas: 9
  behavior:
    scaleUp: {stabilizationWindowSeconds: 0, policies: [{type: Pods, value: 2, periodSeconds: 60}]}
    scaleDown: {stabilizationWindowSeconds: 300, policies: [{type: Percent, value: 50, periodSeconds: 120}]}
  metrics:
    - type: Pods
      pods: {metric: {name: "vllm:num_requests_running"}, target: {type: AverageValue, averageValue: "12"}}
"""


def answers() -> str:
    """What Prometheus keeps of two replicas."""
    result = []

    def say(name: str, pod: int, per_s: float, gauge: bool = False, **labels: str) -> None:
        metric = {"__name__": f"vllm:{name}", "pod": f"fleet-pool-{pod}", "instance": f"10.0.0.{pod}:8000", **labels}
        values = [[1.7e9 + 60 * k, str(per_s if gauge else round(60 * k * per_s, 3))] for k in range(31)]
        result.append({"metric": metric, "values": values})

    for pod in (1, 2):
        say("request_success_total", pod, 6.0)
        say("num_requests_running", pod, 9.0, True)
        for name, ends in (("request_prompt_tokens", (200, 2000)), ("time_to_first_token_seconds", (0.1, 1))):
            for end, share in zip((*ends, "+Inf"), (0.4, 0.9, 1.0), strict=True):
                say(f"{name}_bucket", pod, 6.0 * share, le=str(end))
            say(f"{name}_sum", pod, 6.0 * ends[1] / 2)
            say(f"{name}_count", pod, 6.0)
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}, indent=0)


SCALED_OBJECT = """apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: fleet-pool}
spec:
  scaleTargetRef: {name: fleet-pool}
  pollingInterval: 15
  cooldownPeriod: 300
  minReplicaCount: 1
  maxReplicaCount: 9
  triggers:
    - type: prometheus
      metricType: AverageValue
      metadata: {serverAddress: "http://prometheus:9090", query: "sum(vllm:num_requests_running)", threshold: "12"}
"""
SCENARIOS = """method: mgc
cdf: mine.csv
slo: 20
scenarios:
  base: {rate: 40}
  burst: {rate: 60, redundancy: 1}
  other: {gpu: [h100], quantile: 0.9}
"""
SERVERS = "isl,osl,concurrency,tpot_ms,ttft_ms\n" + "".join(
    f"{i},{o},{n},{7 + 0.03 * n + 1e-5 * n * i:.3f},{20 + 0.06 * i + 4 * n:.2f}\n"
    for i, o in ((128, 64), (1024, 128), (2048, 256))
    for n in (1, 8, 32)
)
RESULTS = (
    *(json.dumps(r, indent=1) for r in (VLLM, GUIDELLM, AIPERF, GENAI_PERF, SGLANG, LLM_OPTIMIZER, INFERENCE_PERF)),
    "".join(json.dumps({**VLLM, "total_input_tokens": 25_600 * k, "mean_tpot_ms": 10 + k}) + "\n" for k in (1, 2, 4)),
    MLPERF, SERVERS,
)  # fmt: skip
"""Results of load generators."""
GPUHUNT = """instance_name,location,price,cpu,memory,gpu_count,gpu_name,gpu_memory,spot
p5.48xlarge,us-east-1,55.04,192,2048.0,8,H100,80.0,False
p5.48xlarge,us-east-1,30.0,192,2048.0,8,H100,80.0,True
g6.xlarge,us-east-1,0.8048,4,16.0,1,L4,24.0,False
m5.large,us-east-1,0.096,2,8.0,0,,,False
"""
OWN_PRICES = """gpu,vendor,region,term,usd_per_gpu_hour,date,source
h100-80gb,acme,eu,on-demand,2.1,2026-10-01,a contract
a100-80gb,acme,,spot,0.9,2026-10-01,"a page, seen"
"""
PROMPTS = "".join(
    json.dumps(line) + "\n"
    for k in range(6)
    for text in ["".join(f"Remark {j} of {k} says that the queue of the pool was changed. " for j in range(12))]
    for line in (
        {"prompt": text, "category": "chat", "output_tokens": 20},
        {
            "messages": [
                {"role": "user", "content": text},
                {"role": "user", "content": [{"type": "text", "text": "So?"}]},
            ]
        },
        {"conversations": [{"from": "human", "value": text}, {"from": "gpt", "value": "Yes."}], "max_tokens": 9},
    )
)
TOKENIZER = json.dumps(
    {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": {"the": 0, "cache": 1, "is": 2, "[UNK]": 3}, "unk_token": "[UNK]"},
    },
    indent=1,
)  # fmt: skip
RESULT_OF_SQL = (
    "part,second_utc,category,requests,input_sum,output_sum,longest_input,longest_total\n"
    + "".join(
        f"law,,chat,{n},{n * i},{n * o},{i},{i + o}\n" for i, o, n in ((100, 20, 40), (800, 90, 50), (2400, 300, 30))
    )
    + "".join(f"second,{1715300000 + k},,{1 + k % 3},0,0,0,0\n" for k in range(60))
)
METRICS = (
    SCRAPE
    + """vllm:num_requests_running 3
vllm:num_requests_waiting 1
vllm:kv_cache_usage_perc 0.25
vllm:prefix_cache_hits_total 10
vllm:prefix_cache_queries_total 40
vllm:cache_config_info{block_size="16",num_gpu_blocks="27000",cache_dtype="auto",enable_prefix_caching="True"} 1
"""
)
EVENTS = "".join(
    f'data: {{"choices":[{{"text":"{w}"}}]}}\n\n' for w in ("a", "few", "words", "that", "come", "one", "by", "one")
) + ('data: {"choices":[],"usage":{"prompt_tokens":32,"completion_tokens":8}}\n\ndata: [DONE]\n\n')
PAGES = {
    "/metrics": "metrics.txt", "/v1/models": "models.json", "/version": "version.json", "/server_info": "server.json",
    "/v1/completions": "events.txt", "/api/v1/query_range": "answers.json",
}  # fmt: skip
"""Files that a server on loopback answers with; every other file of a case is there under its own name."""


QUICK = ["--method", "mgc", "--slo", "20"]
SESSIONS = "turns=4,first=500,growth=200,osl=100,gap=30s"
COMMANDS: tuple[tuple[str, list[str], tuple[str, ...]], ...] = (
    ("plan", ["plan", "--cdf", "mine.csv", *QUICK], ("mine.csv",)),
    ("plan", ["plan", "--config", "config.yaml"], ("config.yaml", "mine.csv")),
    ("plan", ["plan", "--cdf", "trace.csv", "--method", "occupancy", "--slo", "20"], ("trace.csv",)),
    ("plan", ["plan", "--cdf", "mine.csv", "--model", "model.json", *QUICK], ("model.json", "mine.csv")),
    ("evaluate", ["evaluate", "plan.yaml"], ("plan.yaml",)),
    ("what-if", ["what-if", "plan.yaml", "--set", "rate=10,20"], ("plan.yaml",)),
    ("schedule", ["schedule", "plan.yaml", "--hours", "hours.csv"], ("hours.csv", "plan.yaml")),
    ("cost", ["cost", "plan.yaml", "--hours", "hours.csv", "--api-prices", "api.yaml"], ("api.yaml", "hours.csv", "plan.yaml")),
    ("workload import", ["workload", "import", "trace.csv"], ("trace.csv",)),
    ("workload import", ["workload", "import", "log.jsonl"], ("log.jsonl",)),
    ("workload import", ["workload", "import", "scrape.txt"], ("scrape.txt",)),
    ("workload show", ["workload", "show", "mine.csv"], ("mine.csv",)),
    ("workload compare", ["workload", "compare", "mine.csv", "trace.csv"], ("mine.csv", "trace.csv")),
    ("workload mix", ["workload", "mix", "mine.csv=2", "trace.csv=1"], ("mine.csv", "trace.csv")),
    ("workload sql", ["workload", "sql", "--dialect", "duckdb", "--table", "logs"], ()),
    ("model show", ["model", "show", "model.json"], ("model.json",)),
    ("gpu show", ["gpu", "show", "h100"], ()),
    ("stability", ["stability", "--cdf", "mine.csv"], ("mine.csv",)),
    ("batching", ["batching", "--cdf", "mine.csv"], ("mine.csv",)),
    ("wait", ["wait", "--cdf", "trace.csv"], ("trace.csv",)),
    ("calibrate", ["calibrate", "--from", "points.csv", "-o", "made.yaml", "--force"], ("points.csv",)),
    ("profile show", ["profile", "show", "profile.yaml"], ("profile.yaml",)),
    ("profile compare", ["profile", "compare", "profile.yaml", "fleetopt-paper"], ("profile.yaml",)),
    ("profile refit", ["profile", "refit", "profile.points.jsonl", "-o", "made.yaml", "--force"], ("profile.points.jsonl",)),
    ("calibrate", ["calibrate", "--from", "profile.points.jsonl", "-o", "made.yaml", "--force"], ("profile.points.jsonl",)),
    ("profile refit", ["profile", "refit", "served.points.jsonl", "-o", "made.yaml", "--force"], ("served.points.jsonl",)),
    ("profile share", ["profile", "share", "profile.yaml"], ("profile.yaml", "profile.points.jsonl")),
    ("plan", ["plan", "--cdf", "mine.csv", "--profile", "profile.yaml", *QUICK], ("profile.yaml",)),
    ("plan", ["plan", "--cdf", "mine.csv", "--method", "occupancy", "--slo", "20", "--tpot", "100ms", "--shape", "disaggregated",
              "--no-options"], ("mine.csv",)),
    ("plan", ["plan", "--cdf", SESSIONS, "--method", "occupancy", "--slo", "20", "--rate", "2", "--no-options"], ()),
    ("plan", ["plan", "--cdf", "hashes.jsonl", "--method", "occupancy", "--slo", "20", "--no-options"],
     ("hashes.jsonl",)),
    ("init", ["init", "--cdf", "mine.csv", "--slo", "20"], ("mine.csv",)),
    ("report", ["report", "plan.yaml", "--no-options"], ("plan.yaml",)),
    ("deploy", ["deploy", "plan.yaml"], ("plan.yaml",)),
    ("deploy", ["deploy", "plan.yaml", "--to", "compose"], ("plan.yaml",)),
    ("autoscale", ["autoscale", "plan.yaml", "--hours", "hours.csv", "--policy", "scaler.yaml"],
     ("scaler.yaml", "hours.csv", "plan.yaml")),
    ("check", ["check", "plan.yaml", "--prometheus", "answers.json"], ("answers.json", "plan.yaml")),
    ("simulate", ["simulate", "plan.yaml", "--requests", "200", "--seeds", "1"], ("plan.yaml",)),
    ("simulate", ["simulate", "--policies", "wait,mixed", "--rates", "2", "--requests", "100", "-w", "mine.csv"], ("mine.csv",)),
    ("prices import", ["prices", "import", "vms.csv", "--vendor", "acme", "--date", "2026-10-01"], ("vms.csv",)),
    ("prices show", ["prices", "show"], ()),
    ("gpu list", ["gpu", "list"], ()),
    ("model list", ["model", "list"], ()),
    ("workload list", ["workload", "list"], ()),
    ("compress text", ["compress", "text", "log.txt", "--budget", "40"], ("log.txt",)),
    ("workload import", ["workload", "import", "hashes.jsonl"], ("hashes.jsonl",)),
    ("plan", ["plan", "--config", "scenarios.yaml", "--scenario", "burst", "--no-options"], ("scenarios.yaml",)),
    ("plan", ["plan", "--config", "plan.yaml", "--from", "plan.yaml", "--no-options"], ("plan.yaml",)),
    ("plan", ["plan", "--cdf", "mine.csv", "--compress", "measured.json", *QUICK, "--no-options"], ("measured.json",)),
    ("plan", ["plan", "--cdf", "mine.csv", *QUICK, "--no-options", "--gpu", "h100"], ("../own/acme.csv",)),
    ("plan", ["plan", "--cdf", "mine.csv", *QUICK, "--no-options", "--gpu", "a100"], ("../own/mine.yaml",)),
    ("plan", ["plan", "--cdf", "-", *QUICK, "--no-options"], ("stdin",)),
    ("prices show", ["prices", "show", "--gpu", "h100"], ("../own/acme.csv",)),
    ("profile list", ["profile", "list"], ("../own/mine.yaml",)),
    ("evaluate", ["evaluate", "plan.yaml", "--cdf", "trace.csv"], ("trace.csv", "plan.yaml")),
    ("what-if", ["what-if", "scenarios.yaml", "--scenario", "all"], ("scenarios.yaml",)),
    ("what-if", ["what-if", "plan.yaml", "--set", "rate=10,20", "--resume", "points.jsonl"], ("points.jsonl", "plan.yaml")),
    ("schedule", ["schedule", "plan.yaml", "--hours", "hours.csv", "--policy", "keda.yaml"], ("keda.yaml", "hours.csv")),
    ("deploy", ["deploy", "plan.yaml", "--to", "systemd"], ("plan.yaml",)),
    ("deploy", ["deploy", "plan.yaml", "--to", "kserve"], ("plan.yaml",)),
    ("deploy", ["deploy", "plan.yaml", "--to", "llm-d"], ("plan.yaml",)),
    ("deploy", ["deploy", "plan.yaml", "--to", "dynamo"], ("plan.yaml",)),
    ("check", ["check", "plan.yaml", "--emit-rules", "rules"], ("plan.yaml",)),
    ("check", ["check", "plan.yaml", "--prometheus", "SERVER"], ("answers.json", "plan.yaml")),
    ("simulate", ["simulate", "plan.yaml", "--replay", "trace.csv", "--requests", "200", "--seeds", "1"],
     ("trace.csv", "plan.yaml")),
    ("calibrate", ["calibrate", "--from", "result.json", "--gpu", "h100", "--model", "llama-3.1-8b", "--isl", "294",
                   "--concurrency", "256", "-o", "made.yaml", "--force"], ("result.json",)),
    ("calibrate", ["calibrate", "--server", "SERVER", "--gpu", "h100", "--model", "llama-3.1-8b", "--max-seconds", "0.2",
                   "--max-requests", "20", "--start-wait", "0", "-o", "made.yaml", "--force"],
     ("events.txt", "metrics.txt", "models.json", "server.json", "version.json")),
    ("calibrate", ["calibrate", "--server", "SERVER", "--gpu", "h100", "--for", "plan.yaml", "--max-seconds", "0.2",
                   "--start-wait", "0", "--dry-run"], ("plan.yaml",)),
    ("workload import", ["workload", "import", "SERVER/trace.csv"], ("trace.csv",)),
    ("workload import", ["workload", "import", "SERVER/metrics"], ("metrics.txt",)),
    ("workload import", ["workload", "import", "sql.csv"], ("sql.csv",)),
    ("workload import", ["workload", "import", "scrape.txt", "--baseline", "before.txt"], ("before.txt", "scrape.txt")),
    ("workload import", ["workload", "import", "a=trace.csv", "b=log.jsonl", "--compressible", "a=1,b=0"],
     ("log.jsonl", "trace.csv")),
    ("prices import", ["prices", "import", "hunt.csv", "--vendor", "acme", "--date", "2026-10-01"], ("hunt.csv",)),
    ("prices import", ["prices", "import", "own.csv"], ("own.csv",)),
    ("compress measure", ["compress", "measure", "--prompts", "prompts.jsonl", "--boundary", "150", "--gamma", "2"],
     ("prompts.jsonl",)),
    ("compress text", ["compress", "text", "log.txt", "--budget", "40", "--tokenizer", "tokenizer.json"],
     ("tokenizer.json", "log.txt")),
    ("compress text", ["compress", "text", "--budget", "40"], ("stdin",)),
    ("compress serve", ["compress", "serve", "--short", "http://127.0.0.1:1", "--long", "http://127.0.0.1:1", "--boundary",
                        "2000", "--host", "192.0.2.1"], ()),
    ("doctor", ["doctor"], ("../own/mine.yaml", "../own/acme.csv")),
)  # fmt: skip
"""(command whose options are tried, arguments that work, files whose damage is tried)."""

SOUND = {
    "mine.csv": WORKLOAD, "trace.csv": TRACE, "log.jsonl": JSONL, "config.yaml": CONFIG, "hours.csv": HOURS, "model.json": MODEL,
    "scrape.txt": SCRAPE, "points.csv": POINTS, "api.yaml": API, "vms.csv": PRICES, "hashes.jsonl": HASHES, "scaler.yaml": SCALER,
    "answers.json": answers(), "log.txt": "The cache is full. " * 30 + "Nothing waits.\n", "keda.yaml": SCALED_OBJECT,
    "scenarios.yaml": SCENARIOS, "result.json": RESULTS[0], "servers.csv": SERVERS, "hunt.csv": GPUHUNT, "own.csv": OWN_PRICES,
    "prompts.jsonl": PROMPTS, "tokenizer.json": TOKENIZER, "sql.csv": RESULT_OF_SQL, "metrics.txt": METRICS,
    "before.txt": re.sub(r"(?m) \d+$", " 0", SCRAPE), "events.txt": EVENTS, "version.json": json.dumps({"version": "0.11.0"}),
    "models.json": json.dumps({"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 8192}]}),
    "server.json": json.dumps({"version": "0.5", "max_total_num_tokens": 90000, "internal_states": [{}]}),
    "stdin": WORKLOAD, "../own/acme.csv": OWN_PRICES,
}  # fmt: skip
