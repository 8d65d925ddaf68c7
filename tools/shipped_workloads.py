"""Write the files of workloads/ from their sources, with the project's own importer.

    python tools/shipped_workloads.py FOLDER_WITH_THE_RAW_DATA

The folder holds raw/ (traces), cdf/ (distribution functions) and arrivals/ (rates per ten minutes).
"""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from planner.workload.formats.base import ReadOptions
from planner.workload.importing import import_files
from planner.workload.workload import Workload
from planner.workload.writer import csv_text

TARGET = Path(__file__).resolve().parents[1] / "workloads"
AZURE = "Azure/AzurePublicDataset AzureLLMInferenceTrace_{}.csv (Patel et al., Splitwise, ISCA 2024)"


def ship(raw: Workload, name: str, source: str, licence: str, notes: tuple[str, ...] = ()) -> None:
    """Write all requests of one trace."""
    if raw.sessions is not None:
        raw = replace(raw, sessions=None, provenance=replace(raw.provenance, notes=()))
    named = raw.renamed(name, source, licence)
    text = csv_text(replace(named, provenance=replace(named.provenance, notes=notes or named.provenance.notes)))
    (TARGET / f"{name}.csv").write_text(text, encoding="utf-8")
    print(f"{name}: {raw.provenance.requests} requests, {len(text) / 1e3:.0f} kB")


def traces(folder: Path) -> None:
    """Azure, ShareGPT and Mooncake."""
    conv, code = folder / "raw/azure_conv_2023.csv", folder / "raw/azure_code_2023.csv"
    both, _ = import_files([("conv", conv), ("code", code)], ReadOptions())
    ship(both.with_compressible({"conv": 1.0, "code": 0.0}), "azure", AZURE.format("{conv,code}"), "CC-BY-4.0")
    for kind, path, probability in (("conv", conv, 1.0), ("code", code, 0.0)):
        one, _ = import_files([(kind, path)], ReadOptions())
        ship(one.with_compressible({kind: probability}), f"azure-{kind}", AZURE.format(kind), "CC-BY-4.0")
    sharegpt, _ = import_files([(None, folder / "raw/sharegpt4_8k_lengths.csv")], ReadOptions())
    ship(
        sharegpt,
        "sharegpt4",
        "agrimUT/SLAI data/processed_traces/sharegpt_8k_filtered_stats_llama2_tokenizer.csv",
        "Apache-2.0",
        ("ShareGPT4 conversations of at most 8K tokens; no times: give a rate",),
    )
    mooncake, _ = import_files([(None, folder / "raw/mooncake_synthetic.jsonl")], ReadOptions())
    ship(
        mooncake,
        "long-context",
        "kvcache-ai/Mooncake FAST25-release/traces/synthetic_trace.jsonl",
        "Apache-2.0",
        ("contexts up to 191K tokens; Poisson by construction; which prompts share blocks is left out",),
    )


def totals(folder: Path) -> None:
    """Plain CDFs of totals with a stated split."""
    plain = {
        "lmsys": (
            "lmsys",
            "LMSYS-Chat-1M, multi-turn (accumulated context), as vllm-project/semantic-router fleet-sim tabulates it",
            # Zheng et al., arXiv:2309.11998, Table 1: 214.5 tokens per response
            {"mean_output": "214.5", "split": "mean response of LMSYS-Chat-1M, arXiv:2309.11998 Table 1"},
        ),
        "agent_heavy": (
            "agent-heavy",
            "synthetic mixture of SWE-bench 40%, RAG 35%, BFCL 25% by vllm-project/semantic-router fleet-sim",
            {"output_share": "0.2", "split": "not in the source; 80/20 is what fleet-sim uses"},
        ),
    }
    for stem, (name, source, split) in plain.items():
        rows = (folder / f"cdf/{stem}.csv").read_text().split()[1:]
        lines = ["# fleetopt-workload: 1", f"# name: {name}", f"# source: {source}", "# licence: Apache-2.0"]
        lines += [f"# {key}: {value}" for key, value in split.items()]
        lines += ["# note: a distribution function of totals alone; no arrival rate in the source", "tokens,cdf"]
        lines += [f"{float(t):g},{float(f):.10g}" for t, f in (row.split(",") for row in rows)]
        (TARGET / f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def profiles(folder: Path) -> None:
    """Rates by hour of day of real services."""
    (TARGET / "profiles").mkdir(exist_ok=True)
    for stem, name in (
        ("language_m-large", "m-large"),
        ("language_m-mid", "m-mid"),
        ("language_m-small", "m-small"),
        ("reason_deepseek-r1", "deepseek-r1"),
    ):
        with (folder / f"arrivals/servegen_{stem}_rate10min.csv").open() as file:
            rows = [(float(r["t_seconds"]), float(r["requests_per_second"])) for r in csv.DictReader(file)]
        times, rates = np.array(rows).T
        hour = (times // 3600).astype(int) % 24
        by_hour = np.bincount(hour, rates, minlength=24) / np.bincount(hour, minlength=24)
        relative = by_hour / by_hour.mean()
        counts = rates * 600.0
        dispersion = f"600={counts.var() / counts.mean():.6g}"
        if counts.size >= 48:
            hourly = counts[: counts.size // 6 * 6].reshape(-1, 6).sum(axis=1)
            dispersion += f" 3600={hourly.var() / hourly.mean():.6g}"
        lines = [
            f"# name: servegen-{name}",
            f"# source: alibaba/ServeGen, {stem.replace('_', '/')}, requests per 10 minutes over {times[-1] / 86400:.3g} days",
            "# licence: Apache-2.0",
            f"# arrival_rate_per_s: {rates.mean():.6g}",
            f"# peak_over_mean: {rates.max() / rates.mean():.4g}",
            f"# dispersion: {dispersion}",
            "# note: hour 0 is the first hour of the source; the peak is of ten minutes; counts vary mostly with the hour",
            "hour,relative_rate",
            *(f"{h},{x:.4f}" for h, x in enumerate(relative)),
        ]
        (TARGET / f"profiles/servegen-{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    source = Path(sys.argv[1])
    traces(source)
    totals(source)
    profiles(source)
