"""RAD: what a node can sustain under any scheduler, from tile counts (RAD/SLAI paper, section 3, Theorems 1, 2). SLAI: eq. 8.

Time of a batch is a count of matrix tiles: GeMM for the linear layers and the prefill attention, GeMV for the decode
attention. Names are those of the paper: d dimensions, t tiles, s SMs, mu tile pairs per second and SM. Everything here
is rational arithmetic and exact (see :mod:`planner.fluid.numeric`).

References
----------
Bari et al., "Optimal scheduling algorithms for LLM inference: theory and practice". Errata are named in the
docstrings; the two that change numbers: eq. 5 lacks 1/s, and Theorem 1 is no lower bound when t_col < lcm of the tile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from decimal import Decimal
from fractions import Fraction
from typing import Any

from planner.fluid.exclusive import check_costs
from planner.fluid.numeric import Scalar, ceil_div, formula, out, over_arrays, sign_checked, whole
from planner.shared.mathematics import need

Lengths = Sequence[Sequence[Any]]
"""Joint length law: rows (prompt tokens, decode iterations, probability)."""


def inv_mu_lin(
    N: Scalar, d: Scalar, dx: Scalar, dff: Scalar, dout: Scalar, trow: Scalar, tred: Scalar, s: Scalar, mu: Scalar
) -> float:
    r"""Time of all linear layers for one column tile of tokens, eq. 4.

    .. math:: 1/\mu_{Lin} = (3 N d_x d + N d\, d_{ff} + N d_{ff} d_x + d_x d_{out}) / (s \mu t_{row} t_{red})

    As in the paper, the attention's output projection is not counted, so real models are somewhat slower.

    Parameters
    ----------
    N
        Layers [1].
    d, dx, dff, dout
        Attention, embedding, feed-forward and vocabulary dimensions [elements].
    trow, tred
        Tile [elements].
    s
        Streaming multiprocessors [1].
    mu
        GeMM rate [tile pairs/s per SM].

    Returns
    -------
    float
        Time per column tile [s].

    Examples
    --------
    >>> inv_mu_lin(N=1, d=64, dx=64, dff=256, dout=64, trow=64, tred=32, s=1, mu="1")
    24.0
    """
    n = whole(N, "N")
    d_, x, f, o = (whole(v, k) for v, k in ((d, "d"), (dx, "dx"), (dff, "dff"), (dout, "dout")))
    work = 3 * n * x * d_ + n * d_ * f + n * f * x + x * o
    tile = whole(trow, "trow", 1) * whole(tred, "tred", 1)
    return out(Fraction(work) / (sign_checked(s, "s", True) * sign_checked(mu, "mu", True) * tile))


def T_D_SA(i: Any, d: Scalar, trow: Scalar, tcol: Scalar, s: Scalar, mu: Scalar) -> Any:
    r"""Decode self-attention of one layer at context i, eq. 5 with the missing 1/s restored.

    .. math:: T^{D,SA}(i) = \frac{1}{s\mu}\Big(\frac{d}{t_{col}}\lceil i/t_{row}\rceil
              + \lceil i/t_{col}\rceil\frac{d}{t_{row}}\Big)

    The printed equation lacks the 1/s of eq. 3, from which it is derived.

    Parameters
    ----------
    i
        Context [tokens], scalar or array of whole numbers.
    d
        Attention dimension [elements].
    trow, tcol
        GeMV tile [elements].
    s
        Streaming multiprocessors [1].
    mu
        GeMV rate [tile pairs/s per SM].

    Returns
    -------
    float or ndarray
        Time [s], shape of `i`.

    Examples
    --------
    >>> T_D_SA(65, d=128, trow=64, tcol=64, s=2, mu=1)
    4.0
    >>> T_D_SA([1, 64, 65], d=128, trow=64, tcol=64, s=2, mu=1)
    array([2., 2., 4.])
    """
    dim, tr, tc = whole(d, "d"), whole(trow, "trow", 1), whole(tcol, "tcol", 1)
    rate = sign_checked(s, "s", True) * sign_checked(mu, "mu", True)
    return over_arrays(lambda i: out(_decode_attention(whole(i, "i"), dim, tr, tc) / rate), {"i": i})


def _decode_attention(i: int, d: int, tr: int, tc: int) -> Fraction:
    # tile pairs of one decode at context i, one layer
    return Fraction(Fraction(d, tc) * ceil_div(i, tr) + ceil_div(i, tc) * Fraction(d, tr))


@dataclass(frozen=True, slots=True)
class RadParameters:
    """The machine of the RAD paper.

    Parameters
    ----------
    inv_mu_lin
        Linear layers, time per column tile [s].
    inv_mu_nlin
        Non-linear layers, time per token [s].
    N
        Layers [1].
    d
        Attention dimension [elements].
    vrow, vcol
        GeMV tile [elements].
    s
        Streaming multiprocessors [1].
    mu_gemv
        GeMV rate [tile pairs/s per SM].
    trow, tcol, tred
        GeMM tile [elements].
    mu
        GeMM rate [tile pairs/s per SM].

    Examples
    --------
    >>> RadParameters("0.002", "1e-6", 32, 4096, 64, 64, 108, "2e7", 256, 128, 32, "3e6").lcm
    256
    """

    inv_mu_lin: Any
    inv_mu_nlin: Any
    N: Any
    d: Any
    vrow: Any
    vcol: Any
    s: Any
    mu_gemv: Any
    trow: Any
    tcol: Any
    tred: Any
    mu: Any

    def __post_init__(self) -> None:
        for name in ("inv_mu_lin", "inv_mu_nlin"):
            object.__setattr__(self, name, sign_checked(getattr(self, name), name))
        for name in ("s", "mu_gemv", "mu"):
            object.__setattr__(self, name, sign_checked(getattr(self, name), name, True))
        for name, least in (("N", 0), ("d", 0), ("vrow", 1), ("vcol", 1), ("trow", 1), ("tcol", 1), ("tred", 1)):
            object.__setattr__(self, name, whole(getattr(self, name), name, least))

    @classmethod
    def of(cls, params: RadParameters | Mapping[str, Any]) -> RadParameters:
        """Take a record or a mapping with the field names as keys.

        Parameters
        ----------
        params
            Parameters; units as in the class.

        Returns
        -------
        RadParameters
            The record.

        Raises
        ------
        ValueError
            A key is missing or unknown.

        Examples
        --------
        >>> RadParameters.of(dict(inv_mu_lin=1, inv_mu_nlin=0, N=1, d=64, vrow=64, vcol=64, s=1, mu_gemv=1,
        ...                       trow=64, tcol=64, tred=32, mu=1)).tcol
        64
        """
        if isinstance(params, RadParameters):
            return params
        names = {f.name for f in fields(cls)}
        wrong = names ^ set(params)
        need(not wrong, f"params: missing or unknown {', '.join(sorted(wrong))}")
        return cls(**params)

    @property
    def lcm(self) -> int:
        """Least common multiple of the GeMM tile: the paper's chunk [tokens]."""
        return math.lcm(self.trow, self.tcol, self.tred)

    def decode_attention_sum(self, first: int, last: int) -> Fraction:
        """Decode attention of all layers summed over contexts `first`..`last` [tokens], exact [s]."""
        if last < first:
            return Fraction(0)
        rows = _ceil_sum(last, self.vrow) - _ceil_sum(first - 1, self.vrow)
        cols = _ceil_sum(last, self.vcol) - _ceil_sum(first - 1, self.vcol)
        pairs = Fraction(self.d, self.vcol) * rows + cols * Fraction(self.d, self.vrow)
        return Fraction(self.N * pairs / (self.s * self.mu_gemv))

    def prefill_attention(self, i: int, c: int) -> Fraction:
        """Prefill attention of all layers for `c` tokens from token `i` (from 1) [tokens], exact [s]."""
        if c == 0:
            return Fraction(0)
        e = i + c - 1
        columns = ceil_div(c, self.tcol)
        pairs = columns * (
            ceil_div(e, self.trow) * Fraction(self.d, self.tred) + Fraction(self.d, self.trow) * ceil_div(e, self.tred)
        )
        return Fraction(self.N * pairs / (self.s * self.mu))


def _ceil_sum(n: int, t: int) -> int:
    # sum_{i=1}^{n} ceil(i/t)
    q, r = divmod(max(n, 0), t)
    return t * q * (q + 1) // 2 + r * (q + 1)


def _rows(dist: Lengths) -> list[tuple[int, int, Fraction]]:
    """Checked rows of (prompt, decode iterations, probability), exactly."""
    rows = []
    for row in dist:
        need(len(row) == 3, "dist: every row is (prompt tokens, decode iterations, probability)")
        rows.append(
            (whole(row[0], "dist: prompt"), whole(row[1], "dist: decodes"), sign_checked(row[2], "dist: probability"))
        )
    total = sum((w for *_, w in rows), Fraction(0))
    sums = rows and abs(total - 1) <= Fraction(1, 10**9)
    need(sums, f"dist: probabilities must sum to 1, got {float(total)!r}")
    return rows


def _linear(p: RadParameters, prompt: int, decodes: int, chunk: int) -> Fraction:
    # column tiles of the prompt's chunks (a shorter last one still fills its tiles) and shares of full decode batches
    full, rest = divmod(prompt, chunk)
    tiles = full * ceil_div(chunk, p.tcol) + ceil_div(rest, p.tcol) + Fraction(decodes, p.tcol)
    return Fraction(tiles * p.inv_mu_lin + (prompt + decodes) * p.inv_mu_nlin)


def _prefill_sum(p: RadParameters, prompt: int, chunk: int) -> Fraction:
    """Attention of a prompt's chunks, all but the last of the same size."""
    chunks = ((first + 1, min(chunk, prompt - first)) for first in range(0, prompt, chunk))
    return sum((p.prefill_attention(*part) for part in chunks), Fraction(0))


def Tbar_R(dist: Lengths, params: RadParameters | Mapping[str, Any], chunk: int | None = None) -> float:
    r"""Work RAD spends on one request, Theorem 1.

    .. math:: \bar T^R = \frac{E[L^P+L^D]}{\mu_{Lin} t_{col}} + \frac{E[L^P+L^D]}{\mu_{nLin}}
              + N E\sum_{i=1}^{L^D} T^{D,SA}(L^P+i) + \frac{N d}{s\mu t_{row}t_{col}t_{red}} E[L^P(L^P+t_{lcm})]

    That is eq. 7 summed over RAD's batches; prompts that are no multiple of the chunk (Assumption 3 excludes them) are
    summed explicitly, their last chunk filling its tiles. It is what RAD *achieves*, not a bound on every scheduler:
    with chunks of t_col < t_lcm the attention is cheaper (:func:`Tbar_R_tight`), and only t_lcm -> 1 bounds them all
    (:func:`Tbar_R_chunk_tcol_lower_bound_c1`).

    Parameters
    ----------
    dist
        Rows (prompt tokens [tokens], decode iterations [1], probability [1]); probabilities sum to 1.
    params
        The machine.
    chunk
        Chunk [tokens]; default lcm(t_row, t_col, t_red) as in the paper.

    Returns
    -------
    float
        Work [s/request].

    Examples
    --------
    >>> tiny = dict(inv_mu_lin=1, inv_mu_nlin=0, N=1, d=64, vrow=64, vcol=64, s=1, mu_gemv=1,
    ...             trow=64, tcol=64, tred=32, mu=1)
    >>> Tbar_R([(128, 0, 1)], tiny)
    14.0
    """
    return out(_work(dist, RadParameters.of(params), chunk))


def _work(dist: Lengths, p: RadParameters, chunk: int | None) -> Fraction:
    size = p.lcm if chunk is None else whole(chunk, "chunk", 1)
    total = Fraction(0)
    for prompt, decodes, weight in _rows(dist):
        total += weight * (
            _linear(p, prompt, decodes, size)
            + p.decode_attention_sum(prompt + 1, prompt + decodes)
            + _prefill_sum(p, prompt, size)
        )
    return total


def Tbar_R_tight(dist: Lengths, params: RadParameters | Mapping[str, Any]) -> float:
    """Work per request with chunks of t_col, RAD's best chunk (corrects Theorem 1 where t_col < t_lcm).

    Parameters
    ----------
    dist
        Rows (prompt tokens [tokens], decode iterations [1], probability [1]).
    params
        The machine.

    Returns
    -------
    float
        Work [s/request]; at most :func:`Tbar_R`, equal to it where t_lcm = t_col.

    Examples
    --------
    >>> tiny = dict(inv_mu_lin=1, inv_mu_nlin=0, N=1, d=64, vrow=64, vcol=64, s=1, mu_gemv=1,
    ...             trow=128, tcol=64, tred=32, mu=1)
    >>> Tbar_R_tight([(128, 0, 1)], tiny) < Tbar_R([(128, 0, 1)], tiny)
    True
    """
    p = RadParameters.of(params)
    return out(_work(dist, p, p.tcol))


def _work_bound(dist: Lengths, p: RadParameters) -> Fraction:
    total = Fraction(0)
    per_pair = Fraction(p.N * p.d, p.trow * p.tcol * p.tred) / (p.s * p.mu)
    for prompt, decodes, weight in _rows(dist):
        tokens = prompt + decodes
        total += weight * (
            tokens * (p.inv_mu_lin / p.tcol + p.inv_mu_nlin)
            + p.decode_attention_sum(prompt + 1, prompt + decodes)
            + per_pair * prompt * (prompt + 1)
        )
    return total


def Tbar_R_chunk_tcol_lower_bound_c1(dist: Lengths, params: RadParameters | Mapping[str, Any]) -> float:
    """Work per request that no scheduler can undercut: Theorem 1 with t_lcm replaced by 1.

    After the proof drops the ceilings, its attention cost is least for a chunk of one token, not of t_lcm; so this is
    the valid bound, and the printed one is not when t_col < t_lcm.

    Parameters
    ----------
    dist
        Rows (prompt tokens [tokens], decode iterations [1], probability [1]).
    params
        The machine.

    Returns
    -------
    float
        Work [s/request].

    Examples
    --------
    >>> tiny = dict(inv_mu_lin=1, inv_mu_nlin=0, N=1, d=64, vrow=64, vcol=64, s=1, mu_gemv=1,
    ...             trow=64, tcol=64, tred=32, mu=1)
    >>> Tbar_R_chunk_tcol_lower_bound_c1([(128, 0, 1)], tiny)
    10.0625
    """
    return out(_work_bound(dist, RadParameters.of(params)))


def rad_lambda_max(
    r: Scalar, dist: Lengths, params: RadParameters | Mapping[str, Any], chunk: int | None = None
) -> float:
    """Arrival rate below which RAD is stable on r nodes, r / Tbar_R (Theorem 2).

    Not a proven limit for all schedulers, though Theorem 1 says so.

    Parameters
    ----------
    r
        Nodes [1], >= 1.
    dist
        Rows (prompt tokens [tokens], decode iterations [1], probability [1]).
    params
        The machine.
    chunk
        Chunk [tokens]; default lcm of the tile.

    Returns
    -------
    float
        Rate [requests/s]; inf where a request costs nothing.

    Examples
    --------
    >>> tiny = dict(inv_mu_lin=1, inv_mu_nlin=0, N=1, d=64, vrow=64, vcol=64, s=1, mu_gemv=1,
    ...             trow=64, tcol=64, tred=32, mu=1)
    >>> rad_lambda_max(7, [(128, 0, 1)], tiny)
    0.5
    """
    work = _work(dist, RadParameters.of(params), chunk)
    return (out(whole(r, "r", 1) / work)) if work else math.inf


def T_max(
    lp_max: Scalar,
    ld_max: Scalar,
    params: RadParameters | Mapping[str, Any],
    inv_mu_lin_max: Scalar | None = None,
    inv_mu_nlin_max: Scalar | None = None,
) -> float:
    r"""Longest work of one request over all tilings, eq. 14 (Theorem 2).

    .. math:: T^{max} = (l^P+l^D)/\mu_{Lin} + (l^P+l^D)/\mu_{nLin} + N\sum_{i=1}^{l^P+l^D} T^{D,SA}(i)

    Parameters
    ----------
    lp_max, ld_max
        Longest prompt [tokens] and most decode iterations [1].
    params
        The machine.
    inv_mu_lin_max, inv_mu_nlin_max
        Largest 1/mu_Lin [s] and 1/mu_nLin [s] over the tilings considered; default those of `params`.

    Returns
    -------
    float
        Work [s].

    Examples
    --------
    >>> tiny = dict(inv_mu_lin=1, inv_mu_nlin=0, N=1, d=64, vrow=64, vcol=64, s=1, mu_gemv=1,
    ...             trow=64, tcol=64, tred=32, mu=1)
    >>> T_max(3, 1, tiny)
    12.0
    """
    p = RadParameters.of(params)
    tokens = whole(lp_max, "lp_max") + whole(ld_max, "ld_max")
    lin = p.inv_mu_lin if inv_mu_lin_max is None else sign_checked(inv_mu_lin_max, "inv_mu_lin_max")
    nlin = p.inv_mu_nlin if inv_mu_nlin_max is None else sign_checked(inv_mu_nlin_max, "inv_mu_nlin_max")
    return out(Fraction(tokens * (lin + nlin) + p.decode_attention_sum(1, tokens)))


def rad_alpha(lam: Scalar, r: Scalar, Tbar_R: Scalar, T_max: Scalar) -> float:
    r"""Growth of the queue when overloaded, liminf Q(t)/t >= (lambda Tbar_R/r - 1)/T^max.

    The end of the proof of Theorem 1 drops 1/T^max, without which the units do not agree.

    Parameters
    ----------
    lam
        Arrival rate [requests/s].
    r
        Nodes [1].
    Tbar_R
        Work [s/request].
    T_max
        Longest work of one request [s], > 0.

    Returns
    -------
    float
        Growth [requests/s]; 0 where lambda Tbar_R <= r (no growth is claimed).

    Examples
    --------
    >>> rad_alpha(3, 2, 1, 4), rad_alpha(1, 2, 1, 4)
    (0.125, 0.0)
    """
    load = sign_checked(lam, "lam") * sign_checked(Tbar_R, "Tbar_R") / whole(r, "r", 1)
    return out(max(load - 1, Fraction(0)) / sign_checked(T_max, "T_max", True))


@formula(infinite=("tbt",))
def slai_last_time(e: Decimal, tbt: Decimal, delta: Decimal, tb: Decimal) -> Decimal:
    r"""Last schedulable time of a decode, eq. 8.

    .. math:: C_i = e_{i-1} + TBT - \delta\,\bar t_{batch}

    Parameters
    ----------
    e
        End of the batch that emitted the previous token [s]; scalar or array.
    tbt
        Promised time between tokens [s]; scalar or array.
    delta
        Offset, in mean batch times [1], >= 0.
    tb
        Mean batch time so far [s], >= 0.

    Returns
    -------
    float or ndarray
        Time [s] from which the decode is critical.

    Examples
    --------
    >>> slai_last_time("12.5", "0.1", 2, "0.03")
    12.54
    """
    check_costs(delta=delta, tb=tb)
    return e + tbt - delta * tb
