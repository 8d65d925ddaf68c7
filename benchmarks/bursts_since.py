"""Tables of docs/accuracy/bursts.md moved by what predictions have changed since a version whose replays are no longer at hand.

``python benchmarks/bursts_since.py RAW_FOLDER COMMIT [TITLE ...]``: of tables whose titles begin so (all, if none is given), each
row's errors, as that commit's page has them, times this version's prediction over that one's, both with today's iteration times. A
row is then as exact as it was printed, to half a per cent, and rows whose load was another by more than 2% (older iteration times)
stay as they are. `benchmarks/bursts.py` replaces all of it where the requests are replayed anew.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

PAGE = Path("docs/accuracy/bursts.md")
ROW = re.compile(r"\| (\S+) \| (\S+) \| (\d+) \| (random|p2c|jsq) \| (\d+) \| (\d+) \| ([\d.]+) \| (.+) \|")
SAME_LOAD = 0.02
PREDICTED = """
import json, sys
sys.path.insert(0, "benchmarks")
from pathlib import Path
from bursts import DAY_RATE, FRESH_SEED, LEVELS, Law, days, traces
raw, rows = Path(sys.argv[1]), json.loads(sys.stdin.read())
laws = {name: Law(w) for name, w in traces(raw).items()}
laws |= {name: Law(w) for name, w in days(raw, DAY_RATE).items()}
laws |= {name + "-fresh": Law(w) for name, w in days(raw, DAY_RATE, FRESH_SEED).items()}
found = []
for name, gpu, budget, routing, replicas, copies in rows:
    law = laws[name]
    at = law.pool(gpu, int(budget), routing).predict(int(copies) * law.recorded.rate_per_s, int(replicas), LEVELS)
    found.append([at.load, *at.ttft_s, at.tpot_s[2]])
print(json.dumps(found))
"""


def tables(page: str) -> Iterator[tuple[str, list[re.Match[str]]]]:
    """Title and rows of each table of replays."""
    for part in page.partition("<!-- by hand -->")[0].split("\n## ")[1:]:
        yield part.partition("\n")[0], list(ROW.finditer(part))


def predicted(place: Path, raw: Path, rows: list[re.Match[str]]) -> Any:
    """Load, TTFT at three quantiles and P99 TPOT [s] of each row, by the version in a folder."""
    done = subprocess.run(
        [sys.executable, "-c", PREDICTED, str(raw.resolve())], input=json.dumps([row.groups()[:6] for row in rows]), cwd=place,
        env=os.environ | {"PYTHONPATH": str(place)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return np.array(json.loads(done.stdout))


def moved(row: re.Match[str], before: Any, now: Any) -> tuple[str, float, float]:
    """A row with its errors moved, and those of P99 TTFT and TPOT."""
    cells = [cell.strip() for cell in row[8].split("|")]
    at = (0, 1, 2, 5)
    errors = np.array([float(cells[k].rstrip("%")) / 100.0 for k in at])
    if abs(before[0] - float(row[7])) <= SAME_LOAD:
        errors = (1.0 + errors) * now[1:] / before[1:] - 1.0
    for k, error in zip(at, errors, strict=True):
        cells[k] = f"{error:+.0%}"
    return f"| {' | '.join((*row.groups()[:7], *cells))} |", float(errors[2]), float(errors[3])


def told(ttft: Any, tpot: Any, day: str) -> str:
    """The errors of a table in a sentence."""
    sizes, low = (np.abs(ttft), np.abs(tpot)), np.quantile(ttft, 0.05)
    return (
        f"{len(ttft)} cases: TTFT P99 median {np.median(sizes[0]):.1%}, nine in ten within {np.quantile(sizes[0], 0.9):.0%}, worst "
        f"{sizes[0].max():.0%} (one in twenty is more optimistic than {low:+.0%}); TPOT P99 median {np.median(sizes[1]):.1%}, nine "
        f"in ten within {np.quantile(sizes[1], 0.9):.0%}, worst {sizes[1].max():.0%}. Replays and their spread are of {day}; "
        "the errors are that version's, times today's prediction over its own (`benchmarks/bursts_since.py`)."
    )


def main() -> None:
    """Move what is asked for and write the page."""
    raw, commit, titles = Path(sys.argv[1]), sys.argv[2], tuple(sys.argv[3:])
    here = Path(__file__).resolve().parents[1]
    then = subprocess.run(
        ["git", "show", f"{commit}:{PAGE}"], cwd=here, capture_output=True, text=True, check=True
    ).stdout
    chosen = [(title, rows) for title, rows in tables(then) if rows and (not titles or title.startswith(titles))]
    rows = [row for _, some in chosen for row in some]
    with tempfile.TemporaryDirectory() as folder:
        old = Path(folder) / "old"
        subprocess.run(["git", "worktree", "add", "-q", "--detach", str(old), commit], cwd=here, check=True)
        try:
            before = predicted(old, raw, rows)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(old)], cwd=here, check=True)
    now = predicted(here, raw, rows)
    page, begun = PAGE.read_text(encoding="utf-8"), 0
    for title, some in chosen:
        end = begun + len(some)
        lines = [moved(row, b, n) for row, b, n in zip(some, before[begun:end], now[begun:end], strict=True)]
        sentence = told(np.array([line[1] for line in lines]), np.array([line[2] for line in lines]), commit)
        print(title, sentence, sep=": ")
        own = re.compile(rf"(## {re.escape(title)}\n\n)[^\n]*(\n\n\|[^\n]*\n\|[^\n]*\n)(?:\|[^\n]*\n)+")
        body = "".join(f"{line[0]}\n" for line in lines)
        page = own.sub(lambda m, told=sentence, body=body: m[1] + told + m[2] + body, page)  # type: ignore[misc]
        begun = end
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
