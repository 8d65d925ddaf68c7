r"""Slow fluctuations of a replica with mixed batching: how far the decodes, and the iteration time with them, stray.

Seen per iteration, requests arrive at rate :math:`m = \lambda t` and each is a pulse of work: prefill first, then one
decode a step with a growing context. With ``a_r(j) = 1`` and ``b_r(j) = L_r + j`` for steps ``j <= D_r`` the number of
decodes and the iteration time are shot noise,

.. math:: n = \sum_r a_r, \qquad t = t_0' + \sum_r q_r, \quad q_r = h'a_r + g\,b_r + c_pL_r + aA_r ,

and a longer iteration lets more requests in: :math:`\delta m = m\,\delta t/t`. To first order, at angular frequency
:math:`\omega` per iteration,

.. math:: \hat n = \sum_r \hat a_r + \frac{m}{t}\,\frac{F\,E[\hat a]}{1-G}\sum_r \hat q_r, \qquad
          G = F\,\frac{m}{t} E[\hat q], \qquad F = \frac1{1+\theta(1-e^{-i\omega})}

(F: the delay of prompts that outgrow the budget, mean :math:`\theta` iterations). Variances are integrals of the spectra
(Campbell). With the iteration time a function of ``n`` alone this is the variance of the product form; what that misses
is that contexts differ, and that a long prompt delays everybody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.predict.batch import Moments

Array = NDArray[np.float64]

FREQUENCIES = 72
"""Angular frequencies, log-spaced up to pi."""

WINDOWS = 16
"""Lives for which covariances are tabulated, log-spaced up to the longest."""


@dataclass(frozen=True, slots=True, eq=False)
class Swing:
    """Second moments of the slow state.

    Attributes
    ----------
    decodes, effective
        Variance of the number of decodes, and of the iteration time they make in decodes of mean context.
    relaxation
        Integral time scale of ``effective`` [iterations].
    covariance
        Twice the covariance of the iteration times that decodes and that prompts make, over so many iterations on end [s^2],
        shape (WINDOWS,).
    """

    decodes: float
    effective: float
    relaxation: float
    covariance: Array


class LifeSpectra:
    """Second moments of the transforms of a request's life; they depend on the workload only.

    Parameters
    ----------
    moments, rows
        The requests', and equally weighted rows that stand for them.
    """

    def __init__(self, moments: Moments, rows: NDArray[np.int64]) -> None:
        steps, prompt = np.maximum(np.rint(moments.steps[rows]), 0.0), moments.prompt[rows]
        longest = max(float(steps.max()), 2.0)
        low = 2e-2 / longest
        self.omega = np.exp(np.linspace(np.log(low), np.log(np.pi), FREQUENCIES))
        z = np.exp(-1j * self.omega)[:, None]
        power = np.exp(-1j * self.omega[:, None] * steps[None, :])
        decode = z * (1.0 - power) / (1.0 - z)
        held = prompt * decode + z * (1.0 - (steps + 1.0) * power + steps * power * z) / (1.0 - z) ** 2
        ones = np.ones_like(decode)
        parts = np.stack((decode, held, ones * moments.tokens[rows], ones * moments.pairs[rows]))
        self.mean = parts.mean(axis=2)
        flat = np.moveaxis(parts, 1, 0)
        self.second = flat.conj() @ np.swapaxes(flat, 1, 2) / rows.size
        # trapezoid in log frequency, below the lowest one flat, over [0, pi] and divided by pi
        weight = np.gradient(np.log(self.omega)) * self.omega / np.pi
        weight[[0, -1]] *= 0.5
        weight[0] += low / np.pi
        self.weight = weight
        # what a mean over so many iterations keeps of each frequency; where the mesh is coarser than its lobes, their mean
        self.windows = np.exp(np.linspace(0.0, np.log(longest), WINDOWS))
        phase = 0.5 * self.windows[:, None] * self.omega
        lobes = np.where(phase * np.log(self.omega[1] / self.omega[0]) > 1.0, 0.5, np.sin(phase) ** 2)
        self.kept = lobes / (self.windows[:, None] * np.sin(0.5 * self.omega)) ** 2

    def over(self, covariance: Array, steps: Array) -> Array:
        """A covariance of means over ``windows`` at lives of so many ``steps``."""
        found: Array = np.interp(np.log(np.maximum(steps, 1.0)), np.log(self.windows), covariance)
        return found

    def at(
        self, count: float, time: float, costs: Sequence[float], delay: float, context: float, slope: float
    ) -> Swing:
        """Fluctuations about an operating point.

        Parameters
        ----------
        count, time
            Requests per iteration and its mean [s].
        costs
            What a decode adds without its context [s], and a token of that [s/token]; what a prefill token adds without attention
            [s/token], and a query-key pair [s/pair].
        delay
            Iterations that prompts wait for budget.
        context
            Mean context of a decode [tokens].
        slope
            Decodes that a prefill token brings at once: they count with the prompts.
        """
        z = np.exp(1j * self.omega)
        pulse, (per_decode, per_context, per_prefill, per_pair) = np.array(costs)[:, None], costs
        gain = count / time / (1.0 + delay * (1.0 - z.conj()))
        back = gain / (1.0 - gain * (pulse[:, 0] @ self.mean))

        def power(v: Array) -> Array:
            own: Array = np.einsum("iw,wij,jw->w", v.conj(), self.second, v).real
            return np.maximum(count * own, 0.0)

        def spectrum(signal: Array) -> Array:
            return power(signal + pulse * (back * (signal[:, 0] @ self.mean))[None, :])

        q = max(per_decode + per_context * context, 1e-150)
        decodes = spectrum(np.array([[1.0], [0.0], [0.0], [0.0]]))
        effective = spectrum(np.array([[per_decode], [per_context], [0.0], [0.0]])) / q**2
        variance = float(effective @ self.weight)
        # what prompts that come by chance make of the iterations at a fixed number of decodes, and what the decodes make of them
        prompts = np.array([[0.0], [0.0], [per_prefill + slope * q], [per_pair]])
        answer = np.abs(1.0 - gain * (prompts[:, 0] @ self.mean)) ** 2
        apart = (power(prompts + 0.0 * z) + spectrum(pulse - prompts)) / answer
        return Swing(
            float(decodes @ self.weight),
            variance,
            float(effective[0] / (2.0 * variance)) if variance > 0.0 else 1.0,
            self.kept @ (self.weight * (spectrum(pulse) - apart)),
        )
