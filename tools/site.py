"""Build the site into build/site: ``python tools/site.py [--without-commands]``. Needs what the extra ``docs`` installs.

Documents are laid out as mkdocs.yml names them, and their links follow. Commands of the pages of start/ and tasks/ are run in the
order of the page, in a folder with a plan and some traffic, and what they print is folded away below them; one that fails ends the
build. Those that want a server, a GPU or a file of yours are left alone; scripts of examples/ run as notebooks. That takes ten
minutes of a processor; ``--without-commands`` some seconds.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "build" / "pages"

SOURCES = {
    "index.md": "README.md",
    "start/reading-the-page.md": "docs/page.md",
    "start/your-traffic.md": "docs/workloads.md",
    "start/your-gpu.md": "docs/calibration.md",
    "start/examples.md": "examples/README.md",
    **{
        f"tasks/{name}.md": f"docs/{name}.md"
        for name in (
            "promises", "sessions", "services", "costs", "deploy", "check", "report", "compression",
        )
    },
    "tasks/scaling.md": "docs/autoscale.md",
    "tasks/compare-schedulers.md": "docs/simulator.md",
    **{f"how/{name}.md": f"docs/{name}.md" for name in ("model", "kernel", "search", "confidence")},
    "trust/accuracy.md": "docs/accuracy.md",
    "trust/accuracy/public.md": "docs/accuracy/public.md",
    "trust/papers.md": "docs/papers.md",
    "reference/cli.md": "docs/cli.md",
    "reference/fields.md": "docs/glossary.md",
    "reference/catalog.md": "docs/catalog.md",
    "reference/workloads.md": "workloads/README.md",
    "reference/extending.md": "CONTRIBUTING.md",
    "reference/house.md": "docs/README.md",
    "reference/security.md": "SECURITY.md",
    "reference/changes.md": "CHANGELOG.md",
}  # fmt: skip
"""Page of the site -> document of the repository."""

MOST_LINES = 80
"""Of what a command prints."""

NOT_HERE = (
    "profile refit",
    "profile share",
    "http:",
    "https:",
    "calibrate",
    "URL",
    "pip install",
    "COMMIT",
    "podman",
    "mymodule",
    "compress serve",
    ".venv",
)
"""Words of commands that want a server, a GPU or what is yours."""


def moved(text: str, page: str, source: str) -> str:
    """A document with its links as they are from its page; a link to code becomes its words."""
    places = {(ROOT / document).resolve(): place for place, document in SOURCES.items()}
    here = (ROOT / source).parent

    def link(found: re.Match[str]) -> str:
        mark, words, target, anchor = found[1], found[2], found[3], found[4] or ""
        if re.match(r"[a-z]+:", target) or not target:
            return found[0]
        file = (here / target).resolve()
        if file in places:
            relative = os.path.relpath(places[file], Path(page).parent)
        elif file.is_file() and file.suffix in (".png", ".svg", ".csv"):
            asset = Path("assets", file.name)
            (PAGES / asset).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, PAGES / asset)
            relative = os.path.relpath(asset, Path(page).parent)
        elif file.exists():
            return words
        else:
            raise SystemExit(f"{source}: a link to {target}, which is not there")
        return f"{mark}[{words}]({relative}{anchor})"

    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    linked = [
        re.sub(r"(!?)\[([^\]]*)\]\(([^)\s#]*)(#[^)\s]*)?\)", link, part) if n % 2 == 0 else part
        for n, part in enumerate(parts)
    ]
    # a list begins after a blank line, as this reader of Markdown wants it
    return "".join(
        part
        if n % 2
        else re.sub(r"^((?!\s*[-*|] |\s*\d+\. |    )\S.*)\n(- |1\. )", r"\1\n\n\2", part, flags=re.MULTILINE)
        for n, part in enumerate(linked)
    )


BLOCK = re.compile(
    r"^(?P<indent> *)```bash\n(?:[^\n]*\n)*?(?P=indent)```\n|(?<=\n\n) {4}\S[^\n]*\n(?: {4}[^\n]*\n)*", re.MULTILINE
)
"""Lines of a shell as a document shows them, fenced (in a list too) or indented."""


def lines_of(block: str) -> list[str]:
    """The commands of a block, those over several lines joined."""
    lines = (line.strip() for line in block.replace("\\\n", " ").splitlines())
    return [re.sub(r"\s+", " ", line) for line in lines if line and not line.startswith("```")]


def runs_here(line: str, folder: Path) -> bool:
    """Whether a line is a command that can be run with what is in the folder."""
    read = re.sub(r"(-o|--output|>>?) \S+", "", line)
    files = re.findall(r"[\w./~-]+\.(?:csv|jsonl|json|ya?ml|txt|gz)\b", read)
    shipped = {path.name for path in (ROOT / "workloads").glob("*.csv")}
    known = line.startswith(("fleetopt ", "echo ")) and not any(word in line for word in NOT_HERE)
    return known and all(name in shipped or (folder / name).is_file() for name in files)


def told(line: str, folder: Path, page: str) -> str:
    """What a command prints, as a part that unfolds; empty where it is not run or prints nothing."""
    if not runs_here(line, folder):
        print(f"     -     {page}: {line[:120]}", flush=True)
        return ""
    begun = time.perf_counter()
    done = subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, text=True)
    print(f"{time.perf_counter() - begun:6.1f} s   {page}: {line[:120]}", flush=True)
    if done.returncode:
        raise SystemExit(f"{page}: {line}\nexit {done.returncode}\n{done.stderr}")
    if not done.stdout.strip():
        return ""
    body = "\n".join(f"    {row}".rstrip() for row in done.stdout.rstrip().splitlines()[:MOST_LINES])
    title = line.partition(" #")[0].replace('"', "'")
    return f'\n??? example "{title}"\n    ```text\n{body}\n    ```\n'


def with_outputs(text: str, page: str, seed: Path) -> str:
    """A page with what its commands print."""
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work, "folder")
        shutil.copytree(seed, folder)

        def shown(found: re.Match[str]) -> str:
            printed = "".join(
                told(line, folder, page) for line in lines_of(found[0]) if re.match(r"fleetopt |echo ", line)
            )
            return found[0] + textwrap.indent(printed, found["indent"] or "")

        return BLOCK.sub(shown, text)


def seeded(folder: Path) -> None:
    """What pages take for granted: a plan, its question, a trace, prompts."""
    question = "cdf: azure\nslo: 0.5\nrate: 100\n"
    (folder / "fleet.yaml").write_text(question, encoding="utf-8")
    subprocess.run(
        ["fleetopt", "plan", "--config", "fleet.yaml", "-o", "plan.yaml"], cwd=folder, check=True, capture_output=True
    )
    for name, of in (("trace.csv", "azure-conv"), ("conv.csv", "azure-conv"), ("code.csv", "azure-code")):
        shutil.copyfile(ROOT / "workloads" / f"{of}.csv", folder / name)
    sentences = " ".join(f"Sentence {n} of a document says that rack {n} has {n % 7} servers." for n in range(3000))
    (folder / "prompt.txt").write_text(sentences, encoding="utf-8")
    shutil.copytree(ROOT / "examples", folder / "examples")
    own = folder / "profiles" / "mine.yaml"
    own.parent.mkdir()
    profile = (ROOT / "planner" / "catalog" / "profiles" / "llama-3-8b-a100-80gb-tp1.yaml").read_text(encoding="utf-8")
    own.write_text(profile.replace("name: llama-3-8b-a100-80gb-tp1", "name: mine"), encoding="utf-8")
    os.environ["FLEETOPT_PROFILES"] = str(own.parent)


def main() -> None:
    """Lay out, run, build."""
    import notebooks

    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--without-commands", action="store_true", help="do not run them")
    run = not options.parse_args().without_commands
    shutil.rmtree(PAGES, ignore_errors=True)
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ["COLUMNS"] = "100"
    with tempfile.TemporaryDirectory() as seed:
        if run:
            seeded(Path(seed))
        for page, source in SOURCES.items():
            text = moved((ROOT / source).read_text(encoding="utf-8"), page, source)
            if run and (page == "index.md" or page.startswith(("start/", "tasks/"))) and source != "docs/page.md":
                text = with_outputs(text, page, Path(seed))
            (PAGES / page).parent.mkdir(parents=True, exist_ok=True)
            (PAGES / page).write_text(text, encoding="utf-8")
    shown = notebooks.write(PAGES / "start" / "notebooks", run)
    (PAGES / "start" / "notebooks.md").write_text(shown, encoding="utf-8")
    shutil.copyfile(Path(__file__).with_suffix(".css"), PAGES / "site.css")
    # what mkdocs' theme says of its successor
    os.environ["NO_MKDOCS_2_WARNING"] = "1"
    sys.exit(subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"], cwd=ROOT).returncode)


if __name__ == "__main__":
    main()
