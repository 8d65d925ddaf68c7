"""README's installation and first command where nothing is: ``python tests/fresh.py PYTHON...`` (`.ci/long`).

For every Python given (default: this one), with the newest dependencies and with the oldest that ``pyproject.toml`` allows: no
environment variables but those of pip and of certificates, an empty home folder, a path without a C compiler. The page must be the
same bytes each time, by a compiled kernel, and nothing may be left behind. Ends with 1 where one differs or fails.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ("env", "uname", "ldd")
"""What Python and pip call beside themselves."""


def oldest() -> str:
    """Lines of constraints: every dependency at its lower bound, under the condition that it has."""
    with open(ROOT / "pyproject.toml", "rb") as file:
        project = tomllib.load(file)["project"]
    newer = {re.split(r"[><=]", line)[0] for line in project["dependencies"] if ";" in line}
    lines = []
    for line in project["dependencies"]:
        name, bound, condition = re.fullmatch(r"([\w-]+)>=([\d.]+)(?:; (.*))?", line).groups()  # type: ignore[union-attr]
        if name in newer and condition is None:
            condition = "python_version < '3.13'"
        elif condition and condition.endswith("'3.13'"):
            condition = "python_version == '3.13'"
        lines.append(f"{name}=={bound}" + (f"; {condition}" if condition else ""))
    return "\n".join(lines) + "\n"


def page_of(python: str, constraints: str | None) -> bytes:
    """Install the project into a fresh environment of `python` and give what its first command prints, its versions before it."""
    kept = {k: v for k, v in os.environ.items() if k.startswith("PIP_") or "CERT" in k or "CA_BUNDLE" in k}
    with tempfile.TemporaryDirectory() as place:
        home, tools, empty = (Path(place, name) for name in ("home", "tools", "empty"))
        for folder in (home, tools, empty):
            folder.mkdir()
        for name in TOOLS:
            for found in (Path("/usr/bin", name), Path("/bin", name)):
                if found.exists() and not (tools / name).exists():
                    (tools / name).symlink_to(found)
        clean = {**kept, "HOME": str(home), "PATH": str(tools)}

        def run(*words: str | Path) -> bytes:
            return subprocess.run([*map(str, words)], cwd=empty, env=clean, check=True, stdout=subprocess.PIPE).stdout

        own = Path(place, "own")
        run(python, "-m", "venv", own)
        given = []
        if constraints is not None:
            (home / "constraints.txt").write_text(constraints, encoding="utf-8")
            given = ["-c", home / "constraints.txt"]
        run(own / "bin/pip", "install", "-q", *given, ROOT)
        versions = run(own / "bin/pip", "freeze").decode().split()
        told = run(own / "bin/fleetopt", "--version").decode()
        print(f"  {', '.join(v for v in versions if '@' not in v and '==' in v)}\n  {' '.join(told.split())}")
        assert "kernel: compiled" in told
        page = run(own / "bin/fleetopt", "plan", "--cdf", "azure.csv", "--slo", "0.5")
        assert not list(empty.iterdir()), "files were left behind"
        return page


def main(pythons: list[str]) -> None:
    pages = []
    for python in pythons:
        for what, constraints in (("newest", None), ("oldest", oldest())):
            print(f"{python}, {what} dependencies", flush=True)
            pages.append(page_of(python, constraints))
    print(pages[0].decode())
    if len({*pages}) > 1:
        sys.exit(f"{len({*pages})} pages that differ")
    print(f"{len(pages)} installations, one page")


if __name__ == "__main__":
    main(sys.argv[1:] or [sys.executable])
