"""Judge every comparison with measured systems over a folder, through the planner as it is.

    python -m benchmarks.accuracy FOLDER --json OUT    # a JSON list of rows {family, metric, n, median, mean, p90, worst,
    signed, covered}
    python -m benchmarks.accuracy                      # $FLEETOPT_SHARED_DATA, and writes docs/accuracy/public.md, figures.json
    and docs/data/public.csv, ladders.csv
    python -m benchmarks.accuracy PART [--print]       # brings that part of docs/accuracy.md and its lines in the index up to
    date: fleetopt, memory, occupancy, ... (minutes)
    python -m benchmarks.accuracy STUDY ...            # prints or writes what another page quotes: autoscale, closed, drifts, fit,
    sessions, vllm_cpu, with words of its own (--help)

The folder has the layout of the project's shared data; any part of it may be missing. Errors are shares. About two minutes of CPU,
of which fits to servers take most.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.accuracy.calibrated import kernels, mixed_batches, servers
from benchmarks.accuracy.engines import acceptance, documented, open_loop
from benchmarks.accuracy.fleets import disaggregated, offload, told_ladders
from benchmarks.accuracy.memory import kv_memory
from benchmarks.accuracy.mixtures import decode, spread
from benchmarks.accuracy.mlperf import offline, server, stated
from benchmarks.accuracy.rows import ROOT, SHARED, Pair, Row, missed, public, renewed, rows_of, systems, write_csv
from benchmarks.accuracy.serving import passing_over

INDEX = ROOT / "docs" / "accuracy.md"
FIGURES = ROOT / "docs" / "accuracy" / "figures.json"

PARTS: Mapping[Callable[[Path], Iterator[Pair]], tuple[str, ...]] = {
    open_loop: ("openloop",),
    offline: ("mlperf_offline",),
    server: ("mlperf_server", "mlperf_interactive"),
    stated: ("moe_rate",),
    decode: ("moe_decode",),
    spread: ("experts_spread",),
    disaggregated: ("pd_knee", "pd_e2e", "pd_ratio"),
    offload: ("offload_knee", "offload_ttft"),
    acceptance: ("speculation",),
    kernels: ("kernels_none", "kernels_fit"),
    servers: ("servers_loso",),
    mixed_batches: ("mixed_batches",),
    kv_memory: ("kv_capacity",),
}
"""What judges which families."""

FAMILIES = tuple(family for families in PARTS.values() for family in families)

GATED = tuple(family for family in FAMILIES if family != "servers_loso")
"""What the gate judges: fits to servers take longer than all the others together."""

PAGES = {
    "chance": "plans:chance",
    "replay": "plans:replays",
    "poisson": "poisson:page",
    "occupancy": "slots:occupancy",
    "fleetopt": "slots:fleetopt",
    "memory": "memory:page",
    "schedulers": "schedulers:page",
}
"""Page -> the module and function that make its numbers."""

STUDIES = {
    "autoscale": "autoscale",
    "closed": "poisson",
    "drifts": "drifts",
    "fit": "fit",
    "sessions": "fleets",
    "vllm_cpu": "vllm_cpu",
}
"""What prints or writes numbers of pages elsewhere -> its module, whose ``main`` takes the words that follow."""


def judged(folder: Path, families: Sequence[str] = FAMILIES) -> list[Pair]:
    """Every prediction beside its measurement, of the parts that the folder has.

    What cannot be judged - a model or GPU that the catalog does not have, a broken row - is named on standard error and left
    out; a file that cannot be read ends its part, and what was judged before counts.
    """
    found: list[Pair] = []
    for part, own in PARTS.items():
        if set(own) & set(families):
            with passing_over(", ".join(own)):
                # one by one: what came before an error stays
                for pair in part(folder):
                    if pair.family in families and pair.counts:
                        found.append(pair)
    return found


def slipped(rows: Sequence[Mapping[str, Any]], before: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Metrics whose median is worse than before by two points or a tenth of itself, whichever is more, and by how much.

    >>> then = [{"family": "a", "metric": "x", "median": 0.10}]
    >>> slipped([{"family": "a", "metric": "x", "median": 0.13}], then)
    {'a x': '10.0% to 13.0%'}
    >>> slipped([{"family": "a", "metric": "x", "median": 0.115}], then)
    {}
    """
    known = {f"{row['family']} {row['metric']}": row["median"] for row in before}
    found = {}
    for row in rows:
        name = f"{row['family']} {row['metric']}"
        then = known.get(name, math.inf)
        if row["median"] > then + max(0.02, 0.1 * then):
            found[name] = f"{then:.1%} to {row['median']:.1%}"
    return found


def main() -> None:
    """The command."""
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    if word in STUDIES:
        module = import_module(f"benchmarks.accuracy.{STUDIES[word]}")
        sys.exit(getattr(module, "sessions" if word == "sessions" else "main")(sys.argv[2:]))
    if word in PAGES:
        module_name, _, function = PAGES[word].partition(":")
        page = getattr(import_module(f"benchmarks.accuracy.{module_name}"), function)()
        if "--print" in sys.argv:
            print(*page.blocks.values(), sep="\n\n")
        else:
            page.write(word)
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "folder", type=Path, nargs="?", help="the measurements; none = the shared data, and the page is written"
    )
    parser.add_argument("--json", type=Path, dest="target", help="file for the rows")
    parser.add_argument("--families", help=f"only these, of {', '.join(FAMILIES)}")
    parser.add_argument(
        "--why", default="", help="why figures are worse than those committed; without it such are not written"
    )
    given = parser.parse_args()
    folder = given.folder or SHARED
    if not folder.is_dir():
        parser.error(f"{folder}: no such folder")
    wanted = tuple(given.families.split(",")) if given.families else FAMILIES
    if unknown := [name for name in wanted if name not in FAMILIES]:
        parser.error(f"--families {','.join(unknown)}: known are {', '.join(FAMILIES)}")
    pairs = judged(folder, wanted)
    whole = not given.folder and not given.families
    if whole:
        pairs += documented()
    rows = rows_of(pairs)
    figures = [row.to_dict() for row in rows]
    if given.target:
        given.target.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    elif not whole:
        print(json.dumps(figures, indent=1))
    if whole:
        known = json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.is_file() else {"rows": [], "why": {}}
        worse = slipped(figures, known["rows"])
        if worse and not given.why:
            parser.error(f"worse than committed: {worse}; say why (--why)")
        told = {name: f"{change}: {given.why}" for name, change in worse.items()}
        text = json.dumps({"rows": figures, "why": known["why"] | told}, indent=1)
        FIGURES.write_text(text + "\n", encoding="utf-8")
        # as the file has them, which a test holds the page to
        committed = [Row(**row) for row in figures]
        public(committed).write("public")
        INDEX.write_text(renewed(INDEX.read_text(encoding="utf-8"), "bars", missed(committed)), encoding="utf-8")
        write_csv("public.csv", systems(pairs, rows))
        write_csv("ladders.csv", told_ladders(folder))
        print(f"wrote docs/accuracy/public.md, docs/data/public.csv and {FIGURES}", file=sys.stderr)


if __name__ == "__main__":
    main()
