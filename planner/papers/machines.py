"""Iteration times as the scheduling papers write them, for their claims and for the reference cases of the policies; and whether
a queue grows.

Linear in the KV memory touched, or tiles of the matrix unit. All parameters are in seconds, tokens and requests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.papers.printed import DIFFERS, SAME
from planner.papers.statistics import mean_of_batches
from planner.predict.engine import Request

Prefills = Sequence[tuple[Request, float]]


@dataclass(frozen=True, slots=True)
class KvLinear:
    r"""Linear in the KV memory an iteration touches: :math:`T = d_0 + d_1 (\sum l_i + \sum (p_j + c_j))`.

    Parameters
    ----------
    d0
        Constant [s].
    d1
        Per token of KV memory [s/token].
    """

    d0: float
    d1: float

    def duration(self, decodes: Sequence[Request], prefills: Prefills) -> float:
        """Duration of an iteration [s]."""
        touched = sum([r.held for r in decodes])
        for request, chunk in prefills:
            touched += request.prefilled + chunk
        return self.d0 + self.d1 * touched


@dataclass(frozen=True, slots=True)
class Staircase:
    """Tiles of the matrix unit (RAD eq. 7, corrected): linear layers, decode attention (GEMV), prefill attention (GEMM).

    Parameters
    ----------
    inv_mu_lin, inv_mu_nlin
        Time per tile column of the linear layers [s] and per token of the rest [s/token].
    layers, d
        Layers and head dimension times heads.
    inv_s_mu, inv_s_mu_gemv
        Time per tile of prefill and of decode attention [s].
    t_row, t_col, t_red, gemv_t_row, gemv_t_col
        Tile sizes.
    """

    inv_mu_lin: float
    inv_mu_nlin: float
    layers: float
    d: float
    inv_s_mu: float
    inv_s_mu_gemv: float
    t_row: float
    t_col: float
    t_red: float
    gemv_t_row: float
    gemv_t_col: float

    def duration(self, decodes: Sequence[Request], prefills: Prefills) -> float:
        """Duration of an iteration [s]."""
        tokens = len(decodes) + sum([chunk for _, chunk in prefills])
        total = self.inv_mu_lin * math.ceil(tokens / self.t_col) + self.inv_mu_nlin * tokens
        if decodes:
            per_column, row, column = self.d / self.gemv_t_col, self.gemv_t_row, self.gemv_t_col
            per_row = self.d / row
            tiles = 0.0
            for request in decodes:
                context = request.held
                tiles += per_column * math.ceil(context / row) + math.ceil(context / column) * per_row
            total += self.layers * self.inv_s_mu_gemv * tiles
        if prefills:
            tiles = 0.0
            for request, chunk in prefills:
                end = request.prefilled + chunk
                columns = math.ceil(chunk / self.t_col)
                tiles += math.ceil(end / self.t_row) * columns * self.d / self.t_red
                tiles += self.d / self.t_row * columns * math.ceil(end / self.t_red)
            total += self.layers * self.inv_s_mu * tiles
        return total


def late_over_early(runs: Sequence[tuple[float, NDArray[np.float64]]], expected: float) -> tuple[str, str]:
    """How much longer the second half of the requests waits, per second between the halves, and whether that is as expected.

    Parameters
    ----------
    runs
        How long requests came [s], and how long each waited in order of arrival [s], by run.
    expected
        [s/s].
    """
    halves = [(span / 2.0, np.array_split(waits, [waits.size // 2])) for span, waits in runs]
    e = mean_of_batches(np.array([float(late.mean() - early.mean()) / apart for apart, (early, late) in halves]))
    verdict = SAME if abs(e.value - expected) <= e.half_width else DIFFERS
    return f"{e.value:.4f} +- {e.half_width:.4f} s/s", verdict
