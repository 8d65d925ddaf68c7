"""Judge every comparison with measured systems over a folder, through the planner as it is.

    python -m benchmarks.accuracy FOLDER --json OUT    # a JSON list of rows {family, metric, n, median, mean, p90, worst,
    signed, covered}
    python -m benchmarks.accuracy                      # $FLEETOPT_SHARED_DATA, and writes docs/accuracy/public.md, figures.json
    and docs/data/public.csv
    python -m benchmarks.accuracy PAGE [--print]       # writes docs/accuracy/PAGE.md: fleetopt, memory, occupancy, ... (minutes)
    python -m benchmarks.accuracy index                # writes docs/accuracy.md from them

The folder has the layout of the project's shared data; any part of it may be missing. Errors are shares. About two minutes of CPU,
of which fits to servers take most.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.accuracy import FAMILIES, judged
from benchmarks.accuracy.documented import documented
from benchmarks.accuracy.page import systems, written
from benchmarks.accuracy.rows import ROOT, SHARED, rows_of

PAGE = ROOT / "docs" / "accuracy" / "public.md"
FIGURES = ROOT / "docs" / "accuracy" / "figures.json"
SYSTEMS = ROOT / "docs" / "data" / "public.csv"


PAGES = ("chance", "fleetopt", "memory", "occupancy", "poisson", "replay", "schedulers")
"""Pages that are made by the module of their name."""

GATED = tuple(family for family in FAMILIES if family != "servers_loso")
"""What the gate judges: fits to servers take longer than all the others together."""


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
    if sys.argv[1:2] and sys.argv[1] in (*PAGES, "index"):
        text = import_module(f"benchmarks.accuracy.{sys.argv[1]}").page() + "\n"
        target = ROOT / "docs" / ("accuracy.md" if sys.argv[1] == "index" else f"accuracy/{sys.argv[1]}.md")
        if "--print" in sys.argv:
            print(text, end="")
            return
        target.write_text(text, encoding="utf-8")
        print(f"wrote {target}")
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
        PAGE.write_text(written(pairs, rows), encoding="utf-8")
        SYSTEMS.write_text(systems(pairs, rows), encoding="utf-8")
        print(f"wrote {PAGE}, {SYSTEMS} and {FIGURES}", file=sys.stderr)


if __name__ == "__main__":
    main()
