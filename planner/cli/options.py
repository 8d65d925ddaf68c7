"""Options that several commands share, defined once: name, help and unit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

WORKLOAD = "Workload"
HARDWARE = "Hardware and model"
PROMISES = "Promises"
SEARCH = "Search"
OUTPUT = "Output"

Cdf = Annotated[
    str | None,
    typer.Option(
        "--cdf", "--workload", "-w", help="Workload: a file, or a shipped name (`fleetopt workload list`). Default: azure.",
        rich_help_panel=WORKLOAD,
    ),
]  # fmt: skip
Rate = Annotated[
    float | None,
    typer.Option("--rate", help="Arrival rate of the fleet, requests/s. Default: the workload's own.", rich_help_panel=WORKLOAD),
]  # fmt: skip
CachedShare = Annotated[
    str | None,
    typer.Option(
        help="Share of prompts served from the prefix cache: 60%, or by category: conv=0.6,code=0.2.",
        rich_help_panel=WORKLOAD,
    ),
]
Gpu = Annotated[
    list[str] | None,
    typer.Option(
        "--gpu", "-g", help="GPU type; repeat to let the search mix types. Default: h100.", rich_help_panel=HARDWARE
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="Model name, or a Hugging Face config.json. Default: llama-3.1-8b.",
        rich_help_panel=HARDWARE,
    ),
]
Tp = Annotated[
    int | None,
    typer.Option("--tp", help="GPUs per replica. Default: the smallest that fits.", rich_help_panel=HARDWARE),
]
TpChoice = Annotated[
    str | None,
    typer.Option(
        "--tp",
        help="GPUs per replica: 2; or 1,2,4 or all to let every pool choose. Default: the smallest that fits.",
        rich_help_panel=HARDWARE,
    ),
]
ProfileName = Annotated[
    str | None,
    typer.Option("--profile", help="Iteration-time profile: name or file. Default: yours, a shipped one, or an estimate.",
                 rich_help_panel=HARDWARE),
]  # fmt: skip
OutputFormat = Annotated[
    str,
    typer.Option("--format", "-f", help="table, json, yaml, csv, markdown (plan: also vllm).", rich_help_panel=OUTPUT),
]
OutputFile = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        help="Write to this file instead of stdout, after success, atomically.",
        rich_help_panel=OUTPUT,
    ),
]
