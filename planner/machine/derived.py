r"""Every paper's iteration-time parameters, derived from the canonical model over a stated range.

The papers each use their own linear form. None of them holds everywhere: each function here gives the form's
parameters by least squares (of relative errors) or exactly, the range they were taken over, how far the form strays
from the canonical model on that range, and which of them the measurements did not determine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from planner.errors import InputError
from planner.machine.iteration import IterationModel
from planner.shared.documents import shipped
from planner.shared.record import Record

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Derived(Record):
    """Parameters of one paper's form.

    Parameters
    ----------
    form
        The form, as the paper writes it.
    values
        Parameters by the paper's name [SI, see `units`].
    units
        Their units.
    covers
        Range each quantity was varied over.
    form_error
        Largest relative difference between the form and the canonical model on that range [1].
    intervals
        90% intervals, when resampled models were given; empty otherwise.
    not_identified
        Names whose value comes from an assumption, not from measurements.
    notes
        What to know before using them.
    """

    form: str
    values: Mapping[str, float]
    units: Mapping[str, str]
    covers: Mapping[str, tuple[float, float]]
    form_error: float
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    not_identified: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    written: ClassVar[tuple[str, ...]] = (
        *("form", "values", "units", "covers", "form_error", "intervals_90=intervals", "not_identified", "notes"),
    )

    def __getitem__(self, name: str) -> float:
        return self.values[name]


def _line(x: FloatArray, t: FloatArray) -> tuple[float, float]:
    """Intercept and slope that minimise the squared relative error."""
    weight = 1.0 / t
    design = np.stack([weight, x * weight], axis=1)
    intercept, slope = np.linalg.lstsq(design, np.ones_like(t), rcond=None)[0]
    return float(intercept), float(slope)


def _stray(form: FloatArray, truth: FloatArray) -> float:
    return float(np.max(np.abs(form / truth - 1.0)))


def _grid(low: float, high: float, count: int = 64) -> FloatArray:
    return np.unique(np.rint(np.geomspace(low, high, count)))


def _range(ends: tuple[float, float], name: str) -> tuple[float, float]:
    low, high = map(float, ends)
    if not (math.isfinite(low) and math.isfinite(high) and 1.0 <= low < high):
        raise InputError(f"{name} must be a range (low, high) with 1 <= low < high, got ({low!r}, {high!r})")
    return low, high


def _check_positive(value: float, name: str, unit: str) -> None:
    if not (math.isfinite(value) and value > 0.0):
        raise InputError(f"{name} must be positive, got {value!r} {unit}")


@cache
def _forms() -> Mapping[str, Mapping[str, Any]]:
    """Every form, the units of its parameters and what to know of them."""
    found: Mapping[str, Mapping[str, Any]] = shipped(Path(__file__).with_suffix(".yaml"))
    return found


def _derived(
    form: str, values: Sequence[float], covers: Mapping[str, tuple[float, float]], form_error: float, **told: float
) -> Derived:
    """The parameters of a form of :func:`_forms`, in its order."""
    known = _forms()[form]
    notes = tuple(note.format(**told) for note in known.get("notes", ()))
    named = dict(zip(known["units"], values, strict=True))
    return Derived(known["form"], named, known["units"], covers, form_error, notes=notes)


def fleetopt_parameters(model: IterationModel, context: float, slots: float | None = None) -> Derived:
    r"""W and H of FleetOpt, eq. 3: t(n) = W + H n.

    .. math:: W = t_0 + w, \qquad H(ctx) = c + h + g\,ctx

    exactly below the knee T* = w/b; by least squares over 1..slots where `slots` reaches beyond it.

    Parameters
    ----------
    model
        Canonical model.
    context
        Mean context of a decoding sequence; H is nearly proportional to it [tokens].
    slots
        Largest batch of interest; ``None`` = the knee [sequences].

    Returns
    -------
    Derived
        ``W`` [s], ``H`` [s/sequence].

    References
    ----------
    FleetOpt, eq. 3. Its W = 8 ms, H = 0.65 ms for Llama-3-70B on eight A100s is not what measurement gives
    (W = 17.5 ms, H = 0.10-0.29 ms at 0.5K-8K).

    Examples
    --------
    >>> m = IterationModel(t0=2e-3, w=5e-3, b=20e-6, c=5e-6, g=50e-9, h=1e-6)
    >>> d = fleetopt_parameters(m, context=1000)
    >>> round(d["W"], 6), round(d["H"], 9), d.form_error < 1e-12
    (0.007, 5.6e-05, True)
    >>> fleetopt_parameters(m, context=1000, slots=512)["W"] < 0.007      # beyond the knee at 250 tokens
    True
    """
    _check_positive(context, "context", "tokens")
    knee = model.knee_tokens
    top = slots if slots is not None else (knee if math.isfinite(knee) else 256.0)
    top = max(2.0, top)
    n = _grid(1.0, max(2.0, math.floor(top + 1e-9)))
    truth = model.time(n, n * context, context_max=context)
    if top <= knee and model.w_experts == 0.0:
        W = model.t0 + model.w
        H = model.c + model.h + model.g * context
    else:
        W, H = _line(n, truth)
    covers = {"decodes": (1.0, float(n[-1])), "context": (context, context)}
    return _derived("fleetopt", (W, H), covers, _stray(W + H * n, truth), context=context)


def exclusive_parameters(
    model: IterationModel,
    context: float,
    chunk_range: tuple[float, float] = (256.0, 4096.0),
    slots: float | None = None,
) -> Derived:
    r"""alpha_p, beta_p, alpha_d, beta_d of exclusive batching: prefill alpha_p + beta_p C, decode alpha_d + beta_d n.

    alpha_d = W and beta_d = H(context); (alpha_p, beta_p) by least squares over one prompt of C tokens in `chunk_range`.

    Parameters
    ----------
    model
        Canonical model.
    context
        Mean context of a decoding sequence [tokens].
    chunk_range
        Prompt tokens of one iteration, (low, high) [tokens].
    slots
        Largest decode batch; ``None`` = the knee [sequences].

    Returns
    -------
    Derived
        ``alpha_p`` [s], ``beta_p`` [s/token], ``alpha_d`` [s], ``beta_d`` [s/sequence].

    References
    ----------
    Threshold-based exclusive batching, section 3 (alpha and beta).

    Examples
    --------
    >>> m = IterationModel(t0=2e-3, b=20e-6, c=5e-6, g=50e-9, h=1e-6)
    >>> d = exclusive_parameters(m, context=1000)
    >>> round(d["alpha_p"], 9), round(d["beta_p"], 12)
    (0.002, 2.5e-05)
    """
    low, high = _range(chunk_range, "chunk_range")
    chunks = _grid(low, high)
    truth = model.time(0.0, 0.0, chunks, 0.5 * chunks * (chunks + 1.0))
    alpha_p, beta_p = _line(chunks, truth)
    decode = fleetopt_parameters(model, context, slots)
    covers = {"prefill_tokens": (low, high), "past": (0.0, 0.0), **decode.covers}
    error = max(_stray(alpha_p + beta_p * chunks, truth), decode.form_error)
    return _derived("exclusive", (alpha_p, beta_p, decode["W"], decode["H"]), covers, error)


def _share_time(model: IterationModel, tokens: FloatArray, share: float, context: float, prompt: float) -> FloatArray:
    """Iteration of `tokens`, a share of them decodes at `context`, the rest whole prompts of `prompt` tokens."""
    n = share * tokens
    new = tokens - n
    return model.time(n, n * context, new, new * 0.5 * (prompt + 1.0))


def mixed_parameters(
    model: IterationModel,
    decode_share: float,
    context: float,
    prompt: float = 512.0,
    token_range: tuple[float, float] = (256.0, 8192.0),
) -> Derived:
    r"""alpha_MB and beta_MB(r) of mixed batching: t = alpha_MB + beta_MB(r) T at decode share r.

    Parameters
    ----------
    model
        Canonical model.
    decode_share
        r, decodes over tokens of the iteration, mu_O/(mu_L + mu_O) in equilibrium, in [0, 1] [1].
    context
        Mean context of a decode [tokens].
    prompt
        Prompt length, for its attention [tokens].
    token_range
        T, (low, high) [tokens].

    Returns
    -------
    Derived
        ``alpha_MB`` [s], ``beta_MB`` [s/token], at this r.

    Examples
    --------
    >>> m = IterationModel(t0=2e-3, b=20e-6, c=5e-6, g=10e-9)
    >>> d = mixed_parameters(m, 0.5, context=1000)
    >>> round(d["alpha_MB"], 9), round(d["beta_MB"], 12)
    (0.002, 3e-05)
    """
    if not 0.0 <= decode_share <= 1.0:
        raise InputError(f"decode_share must lie in [0, 1], got {decode_share!r}")
    low, high = _range(token_range, "token_range")
    tokens = _grid(low, high)
    truth = _share_time(model, tokens, decode_share, context, prompt)
    alpha, beta = _line(tokens, truth)
    covers = {
        "tokens": (low, high),
        "decode_share": (decode_share, decode_share),
        "context": (context, context),
        "prompt": (prompt, prompt),
    }
    found = _derived("mixed", (alpha, beta), covers, _stray(alpha + beta * tokens, truth))
    return replace(found, not_identified=() if model.x > 0.0 else ("x",) if 0.0 < decode_share < 1.0 else ())


def interference_parameters(
    model: IterationModel, context: float, tokens: float = 4096.0, prompt: float = 512.0
) -> Derived:
    r"""K(r) = c0 + c1 r + c2 r^2 at a fixed number of tokens, and the convexity index kappa = 2 c2/(c0 + c1 + c2).

    In the canonical model everything but interference is linear in r: c2 = -x T. kappa therefore needs a mixed
    measurement; from separate kernels it is 0 by construction.

    Parameters
    ----------
    model
        Canonical model.
    context
        Mean context of a decode [tokens].
    tokens
        T, tokens per iteration [tokens].
    prompt
        Prompt length [tokens].

    Returns
    -------
    Derived
        ``c0``, ``c1``, ``c2`` [s], ``kappa`` [1].

    References
    ----------
    Exclusive batching, eq. 9-11. The paper takes the c's of K [s/iteration] for those of beta [s/token]: divide by T.

    Examples
    --------
    >>> m = IterationModel(t0=2e-3, b=20e-6, c=5e-6, g=10e-9, x=1e-6)
    >>> d = interference_parameters(m, context=1000)
    >>> round(d["c2"] / 4096, 12)
    -1e-06
    >>> round(d["kappa"], 5)
    -0.05636
    """
    _check_positive(tokens, "tokens", "tokens")
    shares = np.linspace(0.0, 1.0, 33)
    batch = np.array([tokens], dtype=np.float64)
    truth = np.array([_share_time(model, batch, float(r), context, prompt)[0] for r in shares])
    powers = np.stack([np.ones_like(shares), shares, shares**2], axis=1)
    c0, c1, c2 = (float(v) for v in np.linalg.lstsq(powers, truth, rcond=None)[0])
    if model.x == 0.0:
        c2 = 0.0  # exactly: the rest is linear in r
    covers = {"tokens": (tokens, tokens), "decode_share": (0.0, 1.0), "context": (context, context)}
    error = _stray(c0 + c1 * shares + c2 * shares**2, truth)
    found = _derived("interference", (c0, c1, c2, 2.0 * c2 / (c0 + c1 + c2)), covers, error)
    return replace(found, notes=()) if model.x > 0.0 else replace(found, not_identified=("c2", "kappa"))


def wait_parameters(
    model: IterationModel, input_tokens: float, output_tokens: float, resident_range: tuple[float, float]
) -> Derived:
    r"""d0 and d1 of WAIT, eq. 1: t = d0 + d1 M, M the KV tokens of all requests in the iteration.

    Least squares over batches with k requests in each of the l' + 1 stages: k prompts of l tokens in prefill and k
    decodes at each context l + 1 .. l + l', so M = k (l' + 1)(l + l'/2).

    Parameters
    ----------
    model
        Canonical model.
    input_tokens, output_tokens
        l, l' [tokens].
    resident_range
        M, (low, high) [tokens].

    Returns
    -------
    Derived
        ``d0`` [s], ``d1`` [s/token].

    References
    ----------
    WAIT, eq. 1.

    Examples
    --------
    >>> m = IterationModel(t0=5e-3, g=50e-9)
    >>> d = wait_parameters(m, 1, 200, (1e4, 1e5))
    >>> round(d["d0"], 4), 49e-9 < d["d1"] < 50e-9
    (0.005, True)
    """
    _check_positive(input_tokens, "input_tokens", "tokens")
    _check_positive(output_tokens, "output_tokens", "tokens")
    low, high = _range(resident_range, "resident_range")
    l, out = input_tokens, output_tokens
    per_request = (out + 1.0) * (l + 0.5 * out)
    resident = np.geomspace(low, high, 64)
    k = resident / per_request
    n = k * out
    context_sum = k * (per_request - l)
    truth = model.time(n, context_sum, k * l, k * l * 0.5 * (l + 1.0), context_max=l + out)
    d0, d1 = _line(resident, truth)
    covers = {"resident_tokens": (low, high), "input": (l, l), "output": (out, out)}
    return _derived("wait", (d0, d1), covers, _stray(d0 + d1 * resident, truth))


def rad_parameters(
    model: IterationModel, context_range: tuple[float, float] = (64.0, 8192.0), tokens: float = 512.0
) -> Derived:
    r"""mu_Lin, mu_nLin, t_col and the attention times of RAD, eq. 4-7.

    .. math:: 1/\mu_{Lin} = b\,\tau, \quad 1/\mu_{nLin} = c, \quad t_{col} = \tau, \quad N\,T^{D,SA}(i) = g\,i + h,
        \quad N\,T^{P,SA}(i, c) = a\,(i c + c(c+1)/2)

    Parameters
    ----------
    model
        Canonical model.
    context_range
        Contexts of the decodes the form is compared on, (low, high) [tokens].
    tokens
        Batch it is compared on: prompts of `tokens` [tokens].

    Returns
    -------
    Derived
        ``mu_Lin`` [column tiles/s], ``mu_nLin`` [tokens/s], ``t_col`` [tokens], ``NT_D_SA_slope`` [s/token],
        ``NT_D_SA_fixed`` [s], ``NT_P_SA`` [s/pair]. Rates are inf where the canonical parameter is 0.

    References
    ----------
    RAD, eq. 4-7 (eq. 5 lacks 1/s, eq. 7 prints mu_Lin for mu_nLin).

    Examples
    --------
    >>> m = IterationModel(t0=2e-3, w=5e-3, b=20e-6, c=5e-6, tau=128, g=50e-9, h=1e-6, a=1e-9)
    >>> d = rad_parameters(m)
    >>> round(d["mu_Lin"], 3), round(d["mu_nLin"]), d["t_col"]
    (390.625, 200000, 128.0)
    """
    low, high = _range(context_range, "context_range")
    tile = float(model.tau)
    lin = model.b * tile
    # compared where the form claims to hold: decodes of one tile at every context, and a prompt
    contexts = _grid(low, high)
    n = max(1.0, tile)
    truth = np.append(
        model.time(n, n * contexts, context_max=contexts),
        model.time(0.0, 0.0, tokens, 0.5 * tokens * (tokens + 1.0)),
    )
    form = np.append(
        lin * math.ceil(n / tile) + model.c * n + n * (model.g * contexts + model.h),
        lin * math.ceil(tokens / tile) + model.c * tokens + model.a * 0.5 * tokens * (tokens + 1.0),
    )
    rates = (1.0 / lin if lin > 0.0 else math.inf, 1.0 / model.c if model.c > 0.0 else math.inf)
    covers = {"context": (low, high), "tokens": (n, float(tokens))}
    return _derived("rad", (*rates, tile, model.g, model.h, model.a), covers, _stray(form, truth))


def every_paper(
    model: IterationModel, context: float = 1024.0, input_tokens: float = 512.0, output_tokens: float = 256.0
) -> dict[str, Derived]:
    """The parameters of every paper for one mean context and one pair of lengths.

    Parameters
    ----------
    model
        Canonical model.
    context
        Mean context of a decode [tokens].
    input_tokens, output_tokens
        Lengths, where a form depends on them [tokens].

    Returns
    -------
    dict
        By paper.

    Examples
    --------
    >>> m = IterationModel(t0=2e-3, w=5e-3, b=20e-6, c=5e-6, tau=128, g=50e-9, h=1e-6, a=0.5e-9)
    >>> list(every_paper(m))
    ['FleetOpt', 'exclusive batching', 'mixed batching', 'interference', 'WAIT', 'RAD']
    """
    share = output_tokens / (input_tokens + output_tokens)
    request = (output_tokens + 1.0) * (input_tokens + 0.5 * output_tokens)
    resident = (max(1.0, request / output_tokens), 256.0 * (input_tokens + 0.5 * output_tokens))
    return {
        "FleetOpt": fleetopt_parameters(model, context),
        "exclusive batching": exclusive_parameters(model, context),
        "mixed batching": mixed_parameters(model, share, context, input_tokens),
        "interference": interference_parameters(model, context, prompt=input_tokens),
        "WAIT": wait_parameters(model, input_tokens, output_tokens, resident),
        "RAD": rad_parameters(model),
    }
