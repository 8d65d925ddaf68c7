"""The index of docs/accuracy/*.md: cases, typical and worst optimistic errors, and which of them say what is not covered.

The numbers of the table are read from the files. A file that no longer has the line a reader looks for stops this with its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.accuracy.rows import ROOT

FOLDER = ROOT / "docs" / "accuracy"

HEAD = """# Accuracy

How far the planner has been from the truth it could be held against, and where it could not. Written by
`python -m benchmarks.accuracy index` from the files of `docs/accuracy/`, each of which the same command writes with its name in
place of `index`. Errors are predicted/true - 1; *optimistic* means that the truth is slower, or needs more, than predicted. Medians
are of absolute errors.

A number in a plan carries the error of the iteration times (measured, fitted or estimated: the profile says which), of the method,
and of the traffic's sample. The first usually dominates: an estimate is good to about 30%, a calibrated profile to a few per cent.

| part | against | cases | typical error | worst optimistic | worst where |
|:--|:--|--:|:--|:--|:--|
"""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the index."""

    part: str
    against: str
    cases: str
    typical: str
    worst: str
    where: str


def rows_of(text: str) -> list[list[str]]:
    """The cells of every table line of a Markdown text, rules left out."""
    lines = [line for line in text.splitlines() if line.startswith("|") and not re.match(r"^\|[\s:|-]+\|$", line)]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def line(text: str, *start: str) -> list[str]:
    """The first table line whose first cells are `start`."""
    for cells in rows_of(text):
        if tuple(cells[: len(start)]) == start:
            return cells
    raise LookupError(f"no table line | {' | '.join(start)} |")


def found(pattern: str, text: str) -> re.Match[str]:
    """The first match."""
    match = re.search(pattern, text)
    if match is None:
        raise LookupError(f"nothing like {pattern!r}")
    return match


def percent(cell: str) -> float:
    """``"-4.2%"`` -> -4.2."""
    return float(cell.replace("%", "").replace("+", ""))


def public(text: str) -> list[Row]:
    """Comparisons with measured systems: the first metric of each family."""
    out: dict[str, Row] = {}
    told = dict(re.findall(r"^- `(\w+)`: (.*)$", text, flags=re.MULTILINE))
    for cells in rows_of(text):
        family = cells[0]
        if family in told and family not in out and cells[2].isdigit():
            typical = f"{cells[1]}: median {cells[3]}, p90 {cells[5]}"
            out[family] = Row(told[family], "measured systems", cells[2], typical, f"{cells[6]} (either side)", "-")
    return list(out.values())


def occupancy(text: str) -> list[Row]:
    out = []
    for label in ("Our own iteration-level server", "A second, independent iteration-level server"):
        part = text.split(f"## {label}", 1)[1].split("\n## ", 1)[0]
        cases = found(r"(\d+) cases\.", part).group(1)
        own = [c for c in rows_of(part) if len(c) == 9 and c[1].isdigit()]
        n = sum(int(c[1]) for c in own)
        middle = sum(int(c[1]) * float(c[5].split(" / ")[0]) for c in own) / n
        worst = min(own, key=lambda c: float(c[5].split(" / ")[1]))
        out.append(
            Row("`occupancy`", label[0].lower() + label[1:], cases,
                f"TTFT p99 {middle:.1f}% (mean of the regions' medians)", f"TTFT p99 {worst[5].split(' / ')[1]}%", worst[0])
        )  # fmt: skip
    return out


def memory(text: str) -> list[Row]:
    servers = found(r"(\d+) servers: median ([\d.]+%), largest ([\d.]+%)", text)
    sizes = [c for c in rows_of(text) if len(c) == 6 and c[2].startswith("vLLM")]
    over = max(sizes, key=lambda c: percent(c[5]))
    table = [c for c in rows_of(text) if len(c) == 5 and "(" in c[4] and c[1].isdigit()]
    measured = [c for c in table if not c[0].startswith("input ")]
    cases = sum(int(c[1]) for c in measured)
    least = min(measured, key=lambda c: float(found(r"\(([\d.]+),", c[3]).group(1)))
    middle = [float(c[3].split(" ")[0]) for c in measured]
    kept = found(r"promise of 1% in (\d+) of (\d+)", text)
    return [
        Row("KV capacity of a replica", "what vLLM servers reported", servers.group(1), f"median {servers.group(2)}",
            f"{over[5]}", f"{over[0]}; largest either side {servers.group(3)}"),
        Row("memory overflow of full slots", "paged simulation", str(cases),
            f"medians x{min(middle):.2f} to x{max(middle):.2f}",
            f"x{found(r'[(]([0-9.]+),', least[3]).group(1)}",
            f"{least[0]}; the promise of 1% was kept in {kept.group(1)} of {kept.group(2)}"),
    ]  # fmt: skip


def fleetopt(text: str) -> list[Row]:
    cases = found(r"(\d+) cases\.", text).group(1)
    table = [c for c in rows_of(text) if len(c) == 8 and c[1].isdigit()]
    medians = [float(c[5].split(" / ")[0]) for c in table]
    worst = min(table, key=lambda c: float(c[5].split(" / ")[1]))
    return [
        Row("`mgc`, FleetOpt's queue", "iteration-level servers, free prefill", cases,
            f"TTFT p99 {min(medians):.0f}% to {max(medians):.0f}% by region, pessimistic",
            f"TTFT p99 {worst[5].split(' / ')[1]}%", worst[0])
    ]  # fmt: skip


def schedulers(text: str) -> list[Row]:
    kept = found(r"kept it in (\d+) of (\d+) settings", text)
    table = [c for c in rows_of(text) if len(c) == 7 and re.fullmatch(r"[+-][\d.]+%", c[5])]
    sizes = sorted(abs(percent(c[5])) for c in table)
    return [
        Row("exclusive batching, throughput", "simulation of the engine", str(len(table)),
            f"median {sizes[len(sizes) // 2]:.1f}%", f"+{max(percent(c[5]) for c in table):.1f}%", "rate over-stated"),
        Row("exclusive batching, memory promise", "simulation", kept.group(2), f"kept in {kept.group(1)}", "-", "-"),
    ]  # fmt: skip


def replay(text: str) -> list[Row]:
    cases = [c for c in rows_of(text) if len(c) == 11 and c[3].isdigit()]
    out = []
    for value, column in (("TTFT", 7), ("TPOT", 10)):
        sizes = found(rf"{value}: median error ([\d.]+%), nine in ten within ([\d.]+%)", text)
        worst = max(cases, key=lambda c: abs(percent(c[column])))
        out.append(
            Row(f"replayed plans, P99 {value}", "the reference, other draws of the gateway", str(len(cases)),
                f"median {sizes.group(1)}, nine in ten {sizes.group(2)}", worst[column],
                f"{worst[0]}, {worst[1]}, {worst[3]} replicas")
        )  # fmt: skip
    return out


def poisson(text: str) -> list[Row]:
    table = [c for c in rows_of(text) if len(c) == 7 and c[2].isdigit()]
    out = []
    for told in ("to load .87", "at load .92"):
        sizes = found(rf"TTFT {told}: (\d+) cases, median error ([\d.]+%), nine in ten within ([\d.]+%)", text)
        here = [c for c in table if (float(c[3]) < 0.9) == (told == "to load .87")]
        worst = max(here, key=lambda c: abs(percent(c[4].split(" ±")[0])))
        out.append(
            Row(f"Poisson arrivals, P99 TTFT {told}", "fresh requests, every replica simulated", sizes.group(1),
                f"median {sizes.group(2)}, nine in ten {sizes.group(3)}", worst[4].split(" ±")[0],
                f"{worst[0]}, {worst[1]}, {worst[2]} replicas")
        )  # fmt: skip
    return out


def chance(text: str) -> list[Row]:
    return [
        Row(f"the chance of plans at {cells[0]}", "the other half of the trace", cells[1], f"told {cells[2]}, kept {cells[3]}",
            "-", f"never kept: {cells[5]}")
        for cells in rows_of(text)
        if cells[1].isdigit()
    ]  # fmt: skip


READERS: dict[str, Callable[[str], list[Row]]] = {
    "replay": replay,
    "chance": chance,
    "poisson": poisson,
    "public": public,
    "occupancy": occupancy,
    "memory": memory,
    "fleetopt": fleetopt,
    "schedulers": schedulers,
}


def title(text: str) -> str:
    """The heading of a file."""
    return text.splitlines()[0].removeprefix("# ").strip()


def leaves_out(text: str) -> bool:
    """Whether a file says what is not covered, in a section of that name or a paragraph that starts so."""
    return re.search(r"^(## What is not covered$|Not covered: )", text, flags=re.MULTILINE) is not None


def page() -> str:
    """The whole of docs/accuracy.md."""
    files = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.md"))}
    out = HEAD
    for name in [*(n for n in READERS if n in files), *(n for n in files if n not in READERS)]:
        text, link = files[name], f"[{title(files[name])}](accuracy/{name}.md)"
        if name not in READERS:
            out += f"| {link} | | | | | |\n"
            continue
        try:
            found_rows = READERS[name](text)
        except (LookupError, ValueError) as error:
            raise SystemExit(f"docs/accuracy/{name}.md: {error}") from error
        for row in found_rows:
            part = f"[{row.part}](accuracy/{name}.md)"
            out += f"| {part} | {row.against} | {row.cases} | {row.typical} | {row.worst} | {row.where} |\n"
    gaps = [f"[{title(text)}](accuracy/{name}.md)" for name, text in files.items() if leaves_out(text)]
    out += (
        f"\n## What is not covered\n\nEach of these says it of its own part: {', '.join(gaps)}.\n\nNo measured system has "
        "priorities, failures while serving or lengths that change with the hour; of pipeline stages, images and\nadapters one "
        "public figure at most is at hand. Where a prediction leaves the measured region its pool carries a warning.\n"
    )
    return out.rstrip()
