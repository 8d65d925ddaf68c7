"""``fleetopt init``: a commented configuration file from four questions or flags; ``schema``: what files and results hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

from planner.cli import options as opt
from planner.cli.output import emit, say
from planner.errors import InputError, unknown
from planner.question.options import OPTIONS, PANELS, PlanInputs, canonical, written
from planner.units import parse_rate

QUESTIONS: tuple[tuple[str, str, str], ...] = (
    ("cdf", "Traffic: a trace, a shipped workload, or mean input and output tokens as 1024/256", "azure"),
    ("model", "Model: a name of the catalog or a Hugging Face config.json", "llama-3.1-8b"),
    ("gpu", "GPUs: a type, several by comma, or any: all that have a price", "h100"),
    ("slo", "Promise: P99 time to first token, and time per output token after a comma", "500ms, 50ms"),
)
"""What is asked: the option, the question, the default."""

OFTEN = (
    "cached_share", "routing", "pools", "shape", "tp", "redundancy", "price", "inventory", "profile", "burst", "utilization_cap",
)  # fmt: skip
"""Options told of in the file, in this order."""


def answers(question: str, text: str) -> dict[str, Any]:
    """The options an answer stands for.

    >>> answers("cdf", "1024/256"), answers("slo", "500ms, 50ms"), answers("model", "qwen3-32b")
    ({'isl': '1024', 'osl': '256'}, {'slo': '500ms', 'tpot': '50ms'}, {'model': 'qwen3-32b'})
    """
    first, _, second = (part.strip() for part in text.partition(","))
    if question == "cdf":
        isl, slash, osl = text.partition("/")
        if slash and isl.strip().isdigit() and osl.strip().isdigit():
            return {"isl": isl.strip(), "osl": osl.strip()}
        return {"workload": text.strip()}
    if question == "gpu":
        return {"gpu": [name.strip() for name in text.split(",") if name.strip()]}
    names = {"model": ("model",), "slo": ("slo", "tpot")}[question]
    return {name: value for name, value in zip(names, (first, second), strict=False) if value}


def starter_file(given: Mapping[str, Any]) -> str:
    """A commented configuration file that `plan --config` reads.

    Parameters
    ----------
    given
        Options under any of their names.

    Raises
    ------
    InputError
        Something given cannot be.
    """
    PlanInputs.from_dict(dict(given), "")
    return "\n".join(_lines(given)) + "\n"


def as_command(given: Mapping[str, Any]) -> str:
    """The command that a file of these options amounts to.

    >>> as_command({"workload": "azure", "gpu": ["h100", "h200"], "slo": "500ms"})
    'fleetopt plan --workload azure --gpu h100 --gpu h200 --slo 500ms'
    """
    pairs = [(name, item) for name, value in given.items() for item in (value if isinstance(value, list) else [value])]
    return " ".join(["fleetopt plan", *(written(*pair) for pair in pairs)])


def _lines(given: Mapping[str, Any]) -> Iterator[str]:
    """What was given, and by panel what is often given, as lines to fill in."""
    yield "# A question to fleetopt. Answer it: fleetopt plan --config THIS-FILE --format yaml -o plan.yaml"
    yield "# Options of the command line override it; every option and its meaning: docs/cli.md, `fleetopt plan --help`."
    names = {canonical(name): name for name in given}
    for panel in PANELS:
        shown = [n for n in names if OPTIONS[n].panel == panel]
        more = [n for n in OFTEN if n in OPTIONS and n not in names and OPTIONS[n].panel == panel]
        if not shown and not more:
            continue
        yield ""
        yield f"# --- {panel.lower()}"
        for name in shown:
            yield f"# {OPTIONS[name].help}"
            yield _entry(names[name], given[names[name]])
        for name in more:
            option = OPTIONS[name]
            yield f"# {option.told}"
            # a default in words is told above
            yield f"# {name}:" + (f" {option.default}" if option.default and " " not in option.default else "")
    yield ""
    yield "# Variants that `fleetopt what-if --config THIS-FILE` compares:"
    yield "# scenarios:"
    yield f"#   twice: {{rate: {2.0 * parse_rate(given.get('rate') or 100):g}}}"


def _entry(name: str, value: Any) -> str:
    import yaml

    return str(yaml.safe_dump({name: value}, default_flow_style=False, width=1000)).strip()


ASKED = ("cdf", "rate", "gpu", "model", "slo", "tpot", "e2e")


@opt.asks(names=ASKED)
def init(output: Path = Path("fleetopt.yaml"), **given: Any) -> None:
    """A configuration file with comments, from flags, or from four questions where none is given and a terminal is there.

    Example: fleetopt init --cdf azure --model qwen3-32b --gpu h200 --slo 500ms -o fleet.yaml

    Output
    ------
    output, -o, --output
        File to write; one that exists is kept.
    """
    import sys

    from planner.catalog.load import gpu, model
    from planner.size.unknowns import ANY

    if output.exists():
        raise InputError(f"{output}: exists already", "Name another file: -o FILE.")
    told = {k: v[0] if isinstance(v, list) and len(v) == 1 else v for k, v in given.items() if v}
    if not told:
        asking = sys.stdin is not None and sys.stdin.isatty()
        for question, text, default in QUESTIONS:
            told |= answers(question, typer.prompt(text, default=default, err=True) if asking else default)
    if not {"slo", "tpot", "e2e"} & set(told):
        told |= answers("slo", QUESTIONS[3][2])
    text = starter_file(told)
    for name in given["gpu"] or ():
        if name != ANY:
            gpu(name)
    if given["model"]:
        model(given["model"])
    emit(text, output)
    say([f"it amounts to: {as_command(told)}", f"next: fleetopt plan --config {output}"])


FOLDER = Path(__file__).parents[1] / "schemas"


@opt.asks()
def schema(name: str | None, output: opt.OutputFile = None) -> None:
    """The JSON Schema of a kind of file or result: for editors, checks of your own, and other programs.

    Example: fleetopt schema configuration -o configuration-1.json

    Arguments
    ---------
    name
        plan, configuration, profile, ...; without it all are listed.
    """
    known = {path.stem.rpartition("-")[0]: path for path in sorted(FOLDER.glob("*.json"))}
    if name is None:
        return emit("\n".join(known), output)
    if name not in known:
        raise unknown(f"no schema {name!r}", name, known)
    emit(known[name].read_text(encoding="utf-8"), output)
