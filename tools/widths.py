"""Pages that scroll sideways: ``python tools/widths.py PAGE.html ...``. Needs ``chromium`` on the path; names each, and exits 1.

Every page is opened in frames as wide as telephones, tablets and screens; a page is as wide as what it holds.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from html import unescape
from pathlib import Path

WIDTHS = (400, 900, 1400, 1600)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--allow-file-access-from-files", "--virtual-time-budget=20000", "--dump-dom",
)  # fmt: skip
SCRIPT = """<script>onload = () => { document.title = JSON.stringify([...document.querySelectorAll("iframe")].map(
  f => [f.getAttribute("src"), f.width, f.contentDocument.documentElement.scrollWidth])) }</script>"""


def measured(pages: list[Path]) -> list[tuple[str, int, int]]:
    """Page, width of its frame and width of what it holds [px]."""
    frames = [f'<iframe src="{p.resolve().as_uri()}" width="{w}" height="900"></iframe>' for p in pages for w in WIDTHS]
    with tempfile.TemporaryDirectory() as work:
        wall = Path(work, "wall.html")
        wall.write_text(f"<title></title>{SCRIPT}{''.join(frames)}", encoding="utf-8")
        command = ["chromium", *FLAGS, f"--user-data-dir={work}/user", wall.as_uri()]
        dumped = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    found = re.search(r"<title>(.*?)</title>", dumped, re.DOTALL)
    rows = json.loads(unescape(found[1])) if found is not None and found[1] else []
    if len(rows) != len(frames):
        raise SystemExit(f"chromium measured {len(rows)} of {len(frames)} frames")
    return [(place, int(width), held) for place, width, held in rows]


if __name__ == "__main__":
    found = measured([Path(name) for name in sys.argv[1:]])
    wide = [f"{place}: {held} px in {width}" for place, width, held in found if held > width]
    print("\n".join([*wide, f"{len(found)} frames, {len(wide)} scroll sideways"]))
    sys.exit(bool(wide))
