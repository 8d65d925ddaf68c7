"""A workload from two means alone: lengths assumed log-normal, for those who have no trace yet."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from planner.errors import InputError
from planner.units import parse_fraction, parse_tokens
from planner.workload.workload import Provenance, Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

SPREAD = 1.0
"""Standard deviation over mean where none is given; the shipped traces have 0.9 to 2.9 (inputs) and 0.5 to 2.2 (outputs)."""

_LARGEST_SPREAD = 5.0
_HIGHEST = 0.999
"""Largest quantile of either length: beyond it nothing is known, and one endless request would size the memory."""

_LEVELS = (*np.linspace(0.0, 0.9, 19), *(1.0 - np.geomspace(0.1, 1.0 - _HIGHEST, 13)[1:]))
"""Quantile levels that part the bins of a length, finer in the tail; a bin's mean stands for it."""

_WRITTEN = re.compile(r"^(?:isl|osl|isl-spread|osl-spread)=[^,=]*(?:,(?:isl|osl|isl-spread|osl-spread)=[^,=]*)*$")


@dataclass(frozen=True, slots=True)
class SyntheticLengths:
    """Independent log-normal inputs and outputs.

    Parameters
    ----------
    isl, osl
        Mean input and output [tokens], >= 1.
    isl_spread, osl_spread
        Standard deviation over mean [1], in [0, 5]; 0 = every request alike.
    """

    isl: float
    osl: float
    isl_spread: float = SPREAD
    osl_spread: float = SPREAD

    def __post_init__(self) -> None:
        problems = [
            f"{name}: must be at least 1 token, got {value:g}"
            for name, value in (("isl", self.isl), ("osl", self.osl))
            if not value >= 1.0
        ]
        problems += [
            f"{name}: must lie in [0, {_LARGEST_SPREAD:g}] (standard deviation over mean), got {value:g}"
            for name, value in (("isl_spread", self.isl_spread), ("osl_spread", self.osl_spread))
            if not 0.0 <= value <= _LARGEST_SPREAD
        ]
        if problems:
            raise InputError.from_problems(problems)

    @classmethod
    def parse(cls, text: str) -> SyntheticLengths | None:
        """Lengths written as the name of a workload; ``None`` where the text is none such.

        >>> SyntheticLengths.parse("isl=2000,osl=300,isl-spread=50%").isl_spread
        0.5
        >>> SyntheticLengths.parse("azure") is None
        True
        """
        if _WRITTEN.match(text) is None:
            return None
        given = dict(part.split("=") for part in text.split(","))
        if missing := [name for name in ("isl", "osl") if name not in given]:
            raise InputError(f"{text}: no {missing[0]}", "Both means are needed: isl=2000,osl=300.")
        tokens = {name: parse_tokens(given[name], name) for name in ("isl", "osl")}
        spreads = {
            name.replace("-", "_"): parse_fraction(given[name], name)
            for name in ("isl-spread", "osl-spread")
            if name in given
        }
        return cls(**tokens, **spreads)

    @property
    def name(self) -> str:
        """The workload's name, from which :meth:`parse` reads it again.

        >>> SyntheticLengths(2000, 300).name
        'isl=2000,osl=300,isl-spread=1,osl-spread=1'
        """
        return (
            f"isl={self.isl:.10g},osl={self.osl:.10g},"
            f"isl-spread={self.isl_spread:.10g},osl-spread={self.osl_spread:.10g}"
        )

    def workload(self) -> Workload:
        """The requests: a grid of bins of either length, each at its mean.

        >>> w = SyntheticLengths(2000, 300).workload()
        >>> round(w.mean_input, 6), round(w.mean_output, 6)
        (2000.0, 300.0)
        """
        inputs, shares = lognormal_bins(self.isl, self.isl_spread)
        outputs, weights = lognormal_bins(self.osl, self.osl_spread)
        told = (
            f"no trace: independent log-normal lengths assumed, mean input {self.isl:,.10g} tokens with spread "
            f"{self.isl_spread:.10g}, mean output {self.osl:,.10g} with spread {self.osl_spread:.10g} "
            f"(standard deviation over mean), cut at P{100 * _HIGHEST:.10g}"
        )
        record = Provenance(name=self.name, source="assumed", length_split=told, exact=False)
        return Workload.from_arrays(
            np.repeat(inputs, outputs.size),
            np.tile(outputs, inputs.size),
            weight=np.outer(shares, weights).ravel(),
            name=self.name,
            provenance=record,
        )


def lognormal_bins(mean: float, spread: float) -> tuple[Floats, Floats]:
    r"""Bins of a log-normal law that is cut at P99.9, each by its mean and its share.

    With :math:`\sigma^2 = \ln(1 + s^2)`, the mean between the quantiles of levels p and q is
    :math:`m\,[\Phi(z_q - \sigma) - \Phi(z_p - \sigma)] / (q - p)`; what the cut takes from the mean is put back at the end.

    Parameters
    ----------
    mean
        Mean [tokens], > 0.
    spread
        Standard deviation over mean before the cut [1], >= 0.

    Returns
    -------
    tuple
        Lengths [tokens], ascending, with mean `mean`, and their shares [1], both of shape (bins,); one bin where nothing
        varies.
    """
    if spread == 0.0:
        return np.array([mean]), np.ones(1)
    from scipy.special import ndtr, ndtri

    sigma = math.sqrt(math.log1p(spread * spread))
    levels = np.array(_LEVELS)
    shares = np.diff(levels) / _HIGHEST
    values = np.diff(ndtr(ndtri(levels) - sigma)) / shares
    return mean * values / float(shares @ values), shares
