"""Judge every comparison with measured systems over a folder, through the planner as it is.

    python -m benchmarks.accuracy FOLDER --json OUT    # a JSON list of rows {family, metric, n, median, mean, p90, worst,
    signed, covered}
    python -m benchmarks.accuracy                      # $FLEETOPT_SHARED_DATA, and writes docs/accuracy/public.md and figures.json

The folder has the layout of the project's shared data; any part of it may be missing. Errors are shares. About two minutes of CPU,
of which fits to servers take most.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from benchmarks.accuracy import FAMILIES, judged
from benchmarks.accuracy.page import written
from benchmarks.accuracy.rows import rows_of

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("FLEETOPT_SHARED_DATA", ROOT.parent / "shared" / "data"))
PAGE = ROOT / "docs" / "accuracy" / "public.md"
FIGURES = ROOT / "docs" / "accuracy" / "figures.json"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "folder", type=Path, nargs="?", help="the measurements; none = the shared data, and the page is written"
    )
    parser.add_argument("--json", type=Path, dest="target", help="file for the rows")
    parser.add_argument("--families", help=f"only these, of {', '.join(FAMILIES)}")
    given = parser.parse_args()
    folder = given.folder or SHARED
    if not folder.is_dir():
        parser.error(f"{folder}: no such folder")
    wanted = tuple(given.families.split(",")) if given.families else FAMILIES
    if unknown := [name for name in wanted if name not in FAMILIES]:
        parser.error(f"--families {','.join(unknown)}: known are {', '.join(FAMILIES)}")
    pairs = judged(folder, wanted)
    rows = rows_of(pairs)
    text = json.dumps([row.to_dict() for row in rows], indent=1)
    if given.target:
        given.target.write_text(text + "\n", encoding="utf-8")
    elif given.folder or given.families:
        print(text)
    if not given.folder and not given.families:
        PAGE.write_text(written(pairs, rows), encoding="utf-8")
        known = json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.is_file() else {}
        figures = {"rows": json.loads(text), "why": known.get("why", {})}
        FIGURES.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {PAGE} and {FIGURES}", file=sys.stderr)


if __name__ == "__main__":
    main()
