"""Code lines of ``planner/`` by room or by capability: ``python benchmarks/code_lines.py [--capability] [REVISION ...]``.

Lines that hold code, of Python, C and templates: docstrings, comments and blank lines do not count, every line of a statement over
several lines does. A column per revision, the working tree without any. By capability, every file counts for the first pattern that
names it. Lines of data in YAML, without comments and blank lines, are counted apart, by room.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Callable, Container, Iterator
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
SILENT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip

C_LIKE = re.compile(r"""("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|//[^\n]*|/\*.*?\*/""", re.DOTALL)
"""Strings, which stay, and comments."""

COMMENTS = {
    **dict.fromkeys((".c", ".h", ".js"), C_LIKE),
    ".css": re.compile(r"()/\*.*?\*/", re.DOTALL),
    **dict.fromkeys((".html", ".jinja", ".j2"), re.compile(r"()(?:<!--.*?-->|\{#.*?#\})", re.DOTALL)),
}
"""Ending of a file that holds code but is not Python -> its comments, and in a group what looks like one and stays."""

DATA = (".yaml", ".yml")

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
    "pages and pictures": "report/page.* report/pictures.py report/svg.py report/charts.py report/raster.py studies/overview.py "
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
    "latency methods and their queueing": "predict/* queueing/* methods/* sizing/method_* sizing/predict.py sizing/burst.py",
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


def lines_of(path: str, source: str) -> int:
    """Lines of a file that are neither blank nor comment."""
    ending = PurePosixPath(path).suffix
    if ending == ".py":
        return code_lines(source)
    if ending in DATA:
        return sum(bool(line.strip()) and line.strip()[0] != "#" for line in source.splitlines())
    bare = COMMENTS[ending].sub(lambda found: found[1] or "\n" * found[0].count("\n"), source)
    return sum(bool(line.strip()) for line in bare.splitlines())


def sources(revision: str | None, endings: Container[str]) -> Iterator[tuple[str, str]]:
    """Path and text of every file with one of these endings, of a revision or of the working tree."""
    if revision is None:
        for path in sorted((ROOT / "planner").rglob("*")):
            if path.suffix in endings:
                yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        return
    listed = _git("ls-tree", "-r", "--name-only", revision, "planner").splitlines()
    yield from ((path, _git("show", f"{revision}:{path}")) for path in listed if PurePosixPath(path).suffix in endings)


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


def counted(revision: str | None, kind_of: Callable[[str], str], endings: Container[str]) -> Counter[str]:
    """Lines by what the path says."""
    found: Counter[str] = Counter()
    for path, source in sources(revision, endings):
        found[kind_of(path)] += lines_of(path, source)
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
    names = [*revisions, None][: len(revisions) or 1]
    columns = {name or "today": counted(name, kind_of, {".py", *COMMENTS}) for name in names}
    if "--capability" not in words:
        table("room", sorted(set().union(*columns.values())), columns, "all")
        data = {name or "today": counted(name, room_of, DATA) for name in names}
        table("data in YAML", sorted(set().union(*data.values())), data, "all")
        return
    table("counted by the aim", [*COUNTED], columns, "together")
    table("since", [*SINCE], columns, "together")


if __name__ == "__main__":
    main(sys.argv[1:])
