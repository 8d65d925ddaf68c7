"""A workload as the text of the project's CSV; reading it again gives the same distribution."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from planner.workload.sessions import MOST_CALLS

if TYPE_CHECKING:
    from planner.workload.arrivals import Arrivals
    from planner.workload.workload import Workload


def _number(value: float, digits: int = 3) -> str:
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _arrival_lines(arrivals: Arrivals) -> list[str]:
    """How requests came, as far as it is known."""
    lines = []
    if arrivals.rate_per_s is not None:
        lines.append(f"arrival_rate_per_s: {arrivals.rate_per_s:.10g}")
    if arrivals.scv is not None:
        lines.append(f"arrival_scv: {arrivals.scv:.6g}")
    if arrivals.scv is not None and arrivals.scv_window_s is not None:
        lines.append(f"arrival_scv_window_s: {arrivals.scv_window_s:.10g}")
    if arrivals.dispersion:
        lines.append("dispersion: " + " ".join(f"{w:g}={v:.6g}" for w, v in arrivals.dispersion))
    if arrivals.peak_over_mean is not None:
        lines.append(f"peak_over_mean: {arrivals.peak_over_mean:.6g}")
    if arrivals.hourly_profile:
        lines.append("hourly_profile: " + " ".join(f"{x:g}" for x in arrivals.hourly_profile))
    if arrivals.assumed is not None:
        lines.append(f"arrivals: {arrivals.assumed}")
    return lines


def metadata_lines(workload: Workload) -> list[str]:
    """The ``# key: value`` lines, in one form whatever alias they were read from."""
    from_source = workload.provenance
    lines = ["fleetopt-workload: 1", f"name: {workload.name}"]
    if from_source.source:
        lines.append(f"source: {from_source.source}")
    if from_source.licence:
        lines.append(f"licence: {from_source.licence}")
    if from_source.requests is not None:
        lines.append(f"requests: {from_source.requests}")
    if not from_source.exact:
        lines.append("cdf: P(total <= tokens); rows with equal tokens are one bin, linear inside it")
        lines.append("weight: of a row, cdf minus cdf of the row above; its point is (input_tokens, output_tokens)")
    if from_source.length_split:
        lines.append(f"length_split: {from_source.length_split}")
    lines += _arrival_lines(workload.arrivals)
    known = {n: p for n, p in zip(workload.categories, workload.compressible, strict=True) if p is not None and n}
    if known:
        lines.append("compressible: " + " ".join(f"{name}={p:g}" for name, p in known.items()))
    for of in ("input", "output", "total"):
        if stated := workload.stated_quantiles(of):
            lines.append(f"{of}_quantiles: " + " ".join(f"{q:g}={_number(v)}" for q, v in stated.items()))
    path = workload.path_of_traffic()
    if path is not None:
        shares = " ".join(f"{share:.4g}" for share in path.together)
        lines += [f"path_seconds: {path.seconds}", f"path_together: {shares}"]
        lines += [f"path: {part}" for part in path.to_lines()]
    if workload.sessions is not None:
        kept = workload.sessions.fewer(MOST_CALLS)
        lines.append(f"session_calls: {kept.calls}")
        lines += [f"sessions: {part}" for part in kept.to_lines()]
    lines += [f"note: {note}" for note in from_source.notes]
    return ["# " + " ".join(line.split()) for line in lines]


def csv_text(workload: Workload, extra: Mapping[str, str] | None = None) -> str:
    """Text of the project's CSV.

    Parameters
    ----------
    workload
        What to write.
    extra
        Further metadata by key.

    Returns
    -------
    str
        Metadata, header and rows; five columns when there are categories. Bins that overlap are cut at each other's ends,
        and a bin that starts above the one before gets a row without weight at its start, so that F stays as it is.
    """
    exact = workload.provenance.exact
    named = workload.categories != ("",)
    index, lower, upper, weight = _disjoint(workload)
    out = io.StringIO()
    for line in metadata_lines(workload):
        out.write(line + "\n")
    for key, value in (extra or {}).items():
        out.write(f"# {key}: {value}\n")
    out.write("tokens,cdf,input_tokens,output_tokens" + (",category" if named else "") + "\n")
    inputs, outputs, category = workload.input_tokens[index], workload.output_tokens[index], workload.category[index]
    cdf = np.cumsum(weight)
    cdf /= cdf[-1]
    before, reached = 0.0, 0.0
    for k in range(index.size):
        name = f",{workload.categories[category[k]]}" if named else ""
        if not exact and upper[k] > before:
            start = lower[k] if lower[k] < upper[k] else upper[k] - 1.0
            if start > before:
                out.write(f"{_number(start)},{reached:.10f},{_number(start)},0{name}\n")
            before = upper[k]
        reached = float(cdf[k])
        out.write(f"{_number(upper[k])},{reached:.10f},{_number(inputs[k])},{_number(outputs[k])}{name}\n")
    return out.getvalue()


def _disjoint(workload: Workload) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows cut so that no two bins overlap without being the same: (row, lower, upper, weight)."""
    lower, upper = workload.lower_tokens, workload.total_tokens
    order = np.lexsort((lower, upper))
    same = np.all(np.diff(upper[order]) >= 0.0)
    previous = np.maximum.accumulate(np.concatenate([[-1.0], upper[order][:-1]]))
    clean = (lower[order] >= previous) | ((upper[order] == previous) & (lower[order] == np.roll(lower[order], 1)))
    if workload.provenance.exact or (same and clean[1:].all()):
        return order, lower[order], upper[order], workload.weight[order]
    from planner.workload.compact import pieces

    atoms = upper[lower == upper]
    edges = np.unique(np.concatenate([lower[lower < upper], upper, atoms - 1.0]))
    row, place, weight = pieces(workload, edges[edges >= 0.0])
    kept = edges[edges >= 0.0]
    order = np.lexsort((row, place))
    row, place, weight = row[order], place[order], weight[order]
    return row, kept[place], kept[place + 1], weight
