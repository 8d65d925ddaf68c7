"""A configuration file to begin with: what was said, and what else can be, each with its default and what it does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

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
