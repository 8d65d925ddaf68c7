"""Code lines of ``planner/`` by room or by capability: ``python benchmarks/code_lines.py [--capability] [REVISION ...]``.

Lines that hold code: docstrings, comments and blank lines do not count, every line of a statement over several lines does. A column
per revision, the working tree without any. By capability, every file counts for the first pattern that names it.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
SILENT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip

SINCE = {
    "routing by load in closed form": "queueing/mixed/two_choices.py queueing/mixed/in_turn.py queueing/common_*.py routing.py",
    "bursts along the traffic's own path": "queueing/path.py queueing/held_back.py */stretches.py workload/path.py",
    "goodput: several limits at once": "methods/joint.py",
    "sessions and prefix caches": "queueing/reuse.py methods/sessions.py fleet/caches.py workload/*session* workload/calls.py "
    "workload/carried.py simulate/answered.py",
    "overload, patience, retries": "queueing/overload.py queueing/abandonment.py methods/overload.py fleet/overload.py "
    "simulate/clients.py simulate/surge.py",
    "speculative decoding": "*/speculation.py",
    "how a model is spread over GPUs": "shard.py replica/parallel.py",
    "inventories, changes of a standing fleet, chances": "fleet/inventory.py fleet/stock.py fleet/moves.py fleet/chance.py",
    "other schedulers in a plan": "advice/scheduler.py simulate/scheduled.py",
    "what other choices cost": "advice/choices.py advice/within.py choices.py report/text/choices.py",
    "prices, costs, growth, energy": "catalog/*price* catalog/power.py studies/costs.py studies/growth.py cli/cost.py "
    "cli/prices.py report/text/costs.py report/text/growth.py report/text/offer_list.py growth.py",
    "scalers": "autoscale/* cli/autoscale.py",
    "files that start a plan": "deploy/* cli/deploy.py",
    "a running fleet against its plan": "monitor/* cli/check.py",
    "prompt compressor": "compress/* studies/compression.py question/compressible.py cli/compress.py report/text/compression*",
    "pages and pictures": "report/page.py report/pictures.py report/svg.py report/charts.py report/raster.py studies/overview.py "
    "cli/report.py workload/plot.py",
    "big traces, object stores, SQL": "workload/bulk.py workload/remote.py workload/query.py workload/formats/sql_result.py "
    "workload/formats/totals.py workload/formats/metadata.py workload/frames.py",
    "servers that are started and measured": "calibrate/launch.py calibrate/closed_loop.py calibrate/window.py "
    "calibrate/load_generators.py calibrate/client_process.py calibrate/loads.py calibrate/gpu_state.py",
    "time of the engine's host and layers": "calibrate/layers.py calibrate/allreduce.py engines/*",
    "simulated pairs of pools, replays": "simulate/pair.py simulate/replay.py",
    "first steps, notebooks, sweeps that resume": "doctor.py notebook.py cli/init.py cli/doctor.py question/starter.py "
    "studies/journal.py extras.py cores.py kept.py",
}
"""Capability that came after the aim of 24,000 lines was set -> its files."""

COUNTED = {
    "cheapest fleet: pools, boundary, search, reasons": "fleet/* plans.py remarks.py record.py types.py sizing/fleet*.py "
    "sizing/build.py sizing/search.py sizing/pool.py sizing/explain.py sizing/moments.py sizing/surrogate.py sizing/tiers.py "
    "sizing/disaggregated.py studies/classes.py",
    "latency methods and their queueing": "queueing/* methods/* sizing/method_* sizing/predict.py sizing/burst.py",
    "engine of a replica: slots, memory, price": "replica/* sizing/engine.py sizing/floor.py sizing/cost.py",
    "question: options, files, promises": "question/* promise.py sizing/inputs.py sizing/planfile.py",
    "what-if, evaluate, hours": "studies/* sizing/*",
    "schedulers' theory and advice": "fluid/* advice/*",
    "the four papers reproduced": "reproduce/*",
    "simulator": "simulate/*",
    "traces and workloads": "workload/*",
    "iteration times, GPUs, models": "iteration/* catalog/* hardware.py",
    "calibration": "calibrate/*",
    "command line": "cli/*",
    "words and formats of results": "report/*",
    "Python interface, errors, units, files": "*",
}
"""Capability that the aim counted -> its files, those of then and of now."""


def code_lines(source: str) -> int:
    """Lines of a module that hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in SILENT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def sources(revision: str | None) -> Iterator[tuple[str, str]]:
    """Path and text of every module, of a revision or of the working tree."""
    if revision is None:
        for path in sorted((ROOT / "planner").rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        return
    listed = _git("ls-tree", "-r", "--name-only", revision, "planner").splitlines()
    yield from ((path, _git("show", f"{revision}:{path}")) for path in listed if path.endswith(".py"))


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def room_of(path: str) -> str:
    """The folder below ``planner/``; files beside the folders are one room."""
    parts = PurePosixPath(path).parts
    return f"{parts[1]}/" if len(parts) > 2 else "files beside the rooms"


def capability_of(path: str) -> str:
    """The first capability that names the file."""
    inside = path.removeprefix("planner/")
    return next(name for name, files in (SINCE | COUNTED).items() if any(fnmatch(inside, one) for one in files.split()))


def counted(revision: str | None, kind_of: Callable[[str], str]) -> Counter[str]:
    """Code lines by what the path says."""
    found: Counter[str] = Counter()
    for path, source in sources(revision):
        found[kind_of(path)] += code_lines(source)
    return found


def table(head: str, kinds: list[str], columns: dict[str, Counter[str]], total: str) -> None:
    """Print rows of these kinds, and their sum, as markdown."""
    print(f"| {head} | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}")
    for kind in kinds:
        print(
            f"| {kind} | "
            + " | ".join(f"{column[kind]:,}" if column[kind] else "-" for column in columns.values())
            + " |"
        )
    sums = (sum(column[kind] for kind in kinds) for column in columns.values())
    print(f"| **{total}** | " + " | ".join(f"**{number:,}**" for number in sums) + " |\n")


def main(words: list[str]) -> None:
    """Print markdown tables."""
    revisions = [word for word in words if not word.startswith("--")]
    kind_of = capability_of if "--capability" in words else room_of
    columns = {name or "today": counted(name, kind_of) for name in [*revisions, None][: len(revisions) or 1]}
    if "--capability" not in words:
        table("room", sorted(set().union(*columns.values())), columns, "all")
        return
    table("counted by the aim", [*COUNTED], columns, "together")
    table("since", [*SINCE], columns, "together")


if __name__ == "__main__":
    main(sys.argv[1:])
