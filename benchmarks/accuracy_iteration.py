"""How far iteration times are off: by configuration, by number of points, on servers, and whether the intervals cover.

Run by hand: ``python benchmarks/accuracy_iteration.py [shared data folder]``; writes docs/accuracy/iteration.md.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from planner.calibrate.closed_loop import Loads, ServerPoint, loop_times
from planner.calibrate.design import designed_batches, measuring_order
from planner.calibrate.fit import fit_points
from planner.calibrate.points import Points, read_iterations_csv
from planner.calibrate.servers import ENOUGH_SHAPES, fit_server
from planner.calibrate.tables import read_servers_csv
from planner.catalog import gpu as find_gpu
from planner.catalog import model as find_model
from planner.iteration.derived import exclusive_parameters, fleetopt_parameters
from planner.iteration.model import IterationModel
from planner.iteration.roofline import prior_band, roofline

ROOT = Path(__file__).resolve().parents[1]
DEFAULT = Path(os.environ.get("FLEETOPT_SHARED_DATA", ROOT.parent / "shared" / "data"))

QUANTITIES: dict[str, Callable[[IterationModel], float]] = {
    "W": lambda m: fleetopt_parameters(m, 1024.0)["W"],
    "H(1024)": lambda m: m.c + m.h + m.g * 1024.0,
    "beta_p": lambda m: exclusive_parameters(m, 1024.0)["beta_p"],
}


def errors(model: IterationModel, points: Points) -> np.ndarray:
    """Relative errors without chunks (their times are differences of other measurements)."""
    kept = points.select(i for i, kind in enumerate(points.kinds) if kind != "chunk")
    time_s = (model.additive if points.composed else model).time(
        kept.column("decodes"), kept.context_sum, kept.prefill_tokens, kept.column("pairs"), kept.context_max
    )
    return np.abs(time_s / kept.time_s - 1.0)


def kernels(data: Path) -> list[str]:
    path = data / "calibration" / "kernels.csv"
    fit_groups, test_groups = (read_iterations_csv(path, where={"role": role}) for role in ("fit", "test"))
    lines = [
        "| GPU | model | TP | none: mean | band | 6 points: mean | 24 points: mean | median | p95 | max "
        "| its own left-out error | band covers | all points: mean |",
        "|:--|:--|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    table = []
    everything = []
    for key, points in fit_groups.items():
        gpu_name, model_name, tp = key
        spec = find_model(model_name)
        prior = roofline(find_gpu(gpu_name), spec, tp)
        band = prior_band(find_gpu(gpu_name), spec)
        none = errors(prior, test_groups[key])
        six = errors(fit_points(points.select(range(6)), prior, resamples=20).iteration, test_groups[key])
        full = fit_points(points, prior)
        e = errors(full.iteration, test_groups[key])
        apart = test_groups[key].select(i for i, kind in enumerate(test_groups[key].kinds) if kind != "chunk")
        best = errors(fit_points(apart, prior, prior_width=3.0, resamples=2).iteration, apart)
        everything.append(e)
        table.append([none.mean(), six.mean(), e.mean(), np.median(e), np.quantile(e, 0.95), best.mean()])
        lines.append(
            f"| {gpu_name} | {model_name} | {tp} | {none.mean():.1%} | {band:.0%} | {six.mean():.1%} | "
            f"{e.mean():.1%} | {np.median(e):.1%} | {np.quantile(e, 0.95):.1%} | {e.max():.0%} | {full.leave_one_out_error:.1%} | "
            f"{np.mean(e <= full.error_band):.0%} of points in ±{full.error_band:.0%} | {best.mean():.1%} |"
        )
    means = np.mean(table, axis=0)
    pooled = np.concatenate(everything)
    lines.append(
        f"| **all** | | | {means[0]:.1%} | | {means[1]:.1%} | {means[2]:.1%} | {np.median(pooled):.1%} | "
        f"{np.quantile(pooled, 0.95):.1%} | {pooled.max():.0%} | | | {means[5]:.1%} |"
    )
    lines.append(
        f"| **median / worst of means** | | | | | | {np.median(table, axis=0)[2]:.1%} / {np.max(table, axis=0)[2]:.1%} |"
        + " |" * 6
    )
    return lines


def servers(data: Path) -> list[str]:
    lines = [
        "| model | system | engine | precision | TP | points | shapes | TPOT left out: mean | worst shape |",
        "|:--|:--|:--|:--|--:|--:|--:|--:|--:|",
    ]
    found: list[float] = []
    worst: list[float] = []
    for key, points in read_servers_csv(data / "calibration" / "servers.csv").items():
        if len({p.shape for p in points}) < ENOUGH_SHAPES:
            continue
        model_name, system, engine, version, precision, tp = key
        spec = find_model(model_name, weight_dtype=precision) if precision else find_model(model_name)
        by_shape = left_out(points, roofline(find_gpu(system), spec, int(float(tp)), engine=engine))
        found.append(np.mean(np.concatenate(by_shape)))
        worst.append(max(e.mean() for e in by_shape))
        lines.append(
            f"| {model_name} | {system} | {engine} {version} | {precision or 'bf16'} | {float(tp):.0f} | {len(points)} | "
            f"{len(by_shape)} | {found[-1]:.1%} | {worst[-1]:.1%} |"
        )
    lines.append(
        f"| **median / worst** | | | | | | | {np.median(found):.1%} / {max(found):.1%} | "
        f"{np.median(worst):.1%} / {max(worst):.1%} |"
    )
    return lines


def left_out(points: Sequence[ServerPoint], prior: IterationModel) -> list[np.ndarray]:
    """Errors of every shape, predicted from the others: how prompts are run is chosen by the others alone too."""
    found = []
    for shape in sorted({p.shape for p in points}):
        fit = fit_server([p for p in points if p.shape != shape], prior, resamples=2)
        own = [p for p in points if p.shape == shape]
        loads = Loads(own).with_experts(prior)
        found.append(np.abs(loop_times(fit.theta[None], loads, fit.rules)[0][0] / loads.tpot - 1.0))
    return found


def coverage(trials: int = 200) -> list[str]:
    """Share of 90% intervals that hold the truth; truths scatter around the prior as real GPUs do."""
    spec = find_model("llama-3.1-8b")
    prior = roofline(find_gpu("h100"), spec)
    batches = designed_batches(spec, kv_bytes=60e9)
    scatter = {"t0": 0.5, "w": 0.2, "b": 0.25, "c": 0.6, "g": 0.25, "h": 0.8, "a": 0.2}
    rows = []
    for label, drift in (("no drift", 0.0), ("drift +3% over the run", 0.03)):
        rng = np.random.default_rng(7)
        inside = dict.fromkeys(QUANTITIES, 0)
        width = dict.fromkeys(QUANTITIES, 0.0)
        for trial in range(trials):
            values = prior.to_dict()
            for name, sd in scatter.items():
                values[name] *= float(np.exp(sd * rng.standard_normal()))
            values["e"] = values["g"]
            truth = IterationModel.from_dict(values)
            plan = tuple(run.batch for run in measuring_order(batches, seed=trial))
            clean = Points(plan, np.ones(len(plan)))
            time_s = truth.time(
                clean.column("decodes"),
                clean.context_sum,
                clean.prefill_tokens,
                clean.column("pairs"),
                clean.context_max,
            )
            place = np.arange(len(plan)) / (len(plan) - 1)
            time_s = time_s * (1.0 + drift * place) * np.exp(0.01 * rng.standard_normal(len(plan)))
            hit = rng.random(len(plan)) < 0.03
            time_s[hit] *= rng.uniform(1.2, 2.0, hit.sum())
            fit = fit_points(Points(plan, time_s, place), prior, seed=trial)
            for name, quantity in QUANTITIES.items():
                low, high = fit.interval(quantity)
                true = quantity(truth)
                inside[name] += low <= true <= high
                width[name] += 0.5 * (high - low) / true / trials
        rows.append((label, inside, width))
    lines = ["| 1% noise, 3% outliers | " + " | ".join(QUANTITIES) + " |", "|:--|" + "--:|" * len(QUANTITIES)]
    for label, inside, width in rows:
        cells = [f"{inside[n] / trials:.1%} (±{width[n]:.1%})" for n in QUANTITIES]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return lines


def main(data: Path) -> None:
    text = [
        "# Accuracy of iteration times",
        "",
        "Written by `python benchmarks/accuracy_iteration.py`. Errors are |predicted/measured - 1|.",
        "",
        "## Composed from measured kernels",
        "",
        "Parameters fitted to the designed points (`role=fit`, in design order), errors on all other points (`role=test`, chunks",
        "apart). *none* is the roofline prior alone; the band is what a plan prints around an estimate; *all points* is what the",
        "canonical form misses when it is fitted to the very points it is held against: about what any choice of 24 can reach.",
        "",
        *kernels(data),
        "",
        "Where it misses most, and why. *Llama-2-70B at TP 8 on H100*: a third of its time is all-reduce, which jumps by 27 us",
        "a call between 128 and 256 tokens and doubles from 4 to 8; and its decode kernel (one KV head a GPU) reads up to 16",
        "sequences at under a third of the bandwidth (43 ns a KV token, 13 ns from 64 on). The form fitted to all its test",
        "points still misses by 5.2%. *L40S*: AIConfigurator times one layer over and over, so that keys and",
        "values up to the L2 cache's 96 MB are read from it (45 ns a token, 228 ns beyond). No engine has that, as other",
        "layers' weights pass between; g comes out right (227.7 ns), and without those batches the error is 3.2%.",
        "",
        "Forms tried against it, all on the same 24 points (median of the means, worst): a floor under the all-reduce 3.2%,",
        "6.7%; a step between 128 and 256 tokens 3.2%, 5.9%; a knee rounded off (sums of fourth powers) 3.0%, 6.3%; half",
        "staircases 3.2%, 6.2%; keys in the L2 3.1%, 5.9% (L40S 3.1%); few sequences slower 3.1%, 5.0%; the last two together",
        "3.0%, 5.0%; and with a free correction at nine numbers of tokens, held to 5%, besides 2.8%, 3.7%. Only this one is",
        "below the 3.0% and 4.2% aimed at, with eleven parameters more, chosen with these eleven machines in view, one of which",
        "describes how they were measured: it is not taken, and the errors stay at 3.2% and 6.3%. What would hold for engines,",
        "too, was tried once more: few sequences slower with the step of the all-reduce 3.1%, 4.8%, with the rounded knee",
        "besides 3.0%, 4.7%; the correction of the linear layers alone 3.0%, 5.0%, with few sequences slower 3.0%, 4.6%. Then",
        "the worst is L40S, whose error is that of its measuring. H100 at TP 8 falls to 3.7%: 16 sequences or fewer are read at",
        "43 ns a token there, 32 at 22, 64 at 14, at TP 4 at 46, 33 and 30, but A100 at TP 4 and H200 show no such steps. Two",
        "to ten parameters more in every formula that is made of this one, for a third of a point in the median of a form that",
        "is 2.8% off when fitted to everything: not taken.",
        "",
        "Points chosen D-optimally for the estimate (24 of all others, held against the rest) are worse: 4.0% median, 7.7% worst",
        "(designed points on the same rest: 3.2%, 6.1%); they sit where the form is extreme, and there it is wrong.",
        "The prior's width was doubled for this table (mean 3.4% before); a looser or tighter loss and the mean of resampled fits",
        "were tried too and change it by less than 0.1 points, or for the worse.",
        "",
        "## Real servers",
        "",
        f"Groups with at least {ENOUGH_SHAPES} (input, output) shapes; TPOT of a shape predicted from the other shapes, which also",
        "choose how prompts are run (budget, stalling decodes or beside them, requests that move together).",
        "",
        *servers(data),
        "",
        "The worst, Llama-3.1-8B at TP 4 and 8, are limited by something else: with 128 in flight 1,024 in by 128 out, twice the",
        "prompt and twice the output are all answered 35 to 36 times a second, at both sizes, where TP 2 reaches 39. This is",
        "recognised (no load at the limit says anything of the GPU); below it they contradict themselves: at TP 8 with 64 in",
        "flight 2,048 in by 256 out took 2.3 s a request and half the prompt 2.7 s, so that any time which grows with the prompt",
        "misses one of both by 8%. A cost per iteration with a prompt, not per request, and prompts counted from the measured",
        "TTFT for every server, were tried before: neither mends them. So the worst shape of the worst server stays at 11%.",
        "",
        "## Do the 90% intervals hold the truth?",
        "",
        "200 synthetic GPUs per line, 24 designed points and 4 sentinels each; in brackets the mean half-width.",
        "",
        *coverage(),
        "",
    ]
    target = ROOT / "docs" / "accuracy" / "iteration.md"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join(text), encoding="utf-8")
    print(target.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT)
