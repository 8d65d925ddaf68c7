r"""Slow fluctuations of a mixed-batching replica: how far the decodes, and the iteration time with them, stray.

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

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.queueing.mixed.lengths import LengthLaw

Array = NDArray[np.float64]

FREQUENCIES = 72
WINDOWS = 16


@dataclass(frozen=True, slots=True)
class Fluctuations:
    """Second moments of the slow state.

    Attributes
    ----------
    decodes : float
        Variance of the number of decodes [sequences^2].
    effective : float
        Variance of the iteration time of the decodes, in decodes of mean context [sequences^2].
    context : float
        Variance of the context tokens held, in decodes that hold the mean [sequences^2].
    relaxation : float
        Integral time scale of ``effective`` [iterations].
    per_decode : float
        Iteration time that one decode of mean context adds by itself [s].
    covariance : ndarray, shape (windows,)
        Twice the covariance of the iteration times that decodes and that prompts make, over so many iterations on end [s^2].
    """

    decodes: float
    effective: float
    context: float
    relaxation: float
    per_decode: float
    covariance: Array


class LifeSpectra:
    """Second moments of the transforms of a request's life; they depend on the workload only.

    Parameters
    ----------
    law : LengthLaw
    rows : ndarray of int
        Equally weighted rows of the workload that stand for it.
    """

    def __init__(self, law: LengthLaw, rows: NDArray[np.int64]) -> None:
        steps, prompt = np.maximum(np.rint(law.steps[rows]), 0.0), law.prompt[rows]
        longest = max(float(steps.max()), 2.0)
        low = 2e-2 / longest
        self.omega = np.exp(np.linspace(np.log(low), np.log(np.pi), FREQUENCIES))
        z = np.exp(-1j * self.omega)[:, None]
        power = np.exp(-1j * self.omega[:, None] * steps[None, :])
        decode = z * (1 - power) / (1 - z)
        growing = z * (1 - (steps + 1) * power + steps * power * z) / (1 - z) ** 2
        held = prompt * decode + growing
        ones = np.ones_like(decode)
        parts = np.stack((decode, held, ones * law.tokens[rows], ones * law.pairs[rows]))
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
        self, *, count: float, time: float, per_decode: float, g: float, per_prefill: float, a: float, delay: float,
        context: float, own: float, dispersion: float = 1.0, slope: float = 0.0,
    ) -> Fluctuations:  # fmt: skip
        """Fluctuations at an operating point.

        Parameters
        ----------
        count : float
            Requests per iteration ``m``.
        time : float
            Mean iteration time [s].
        per_decode, g, per_prefill, a : float
            ``h'`` [s], [s/token], ``c_p`` without attention [s/token], [s/pair].
        delay : float
            Iterations that prompts wait for budget.
        context, own : float
            Mean context of a decode, and what of it is not kept once for all [tokens].
        dispersion : float
            Index of dispersion of the arrival counts.
        slope : float
            Decodes that a prefill token brings at once: they count with the prompts.
        """
        pulse = np.array([per_decode, g, per_prefill, a])
        z = np.exp(1j * self.omega)
        slowed = 1 / (1 + delay * (1 - z.conj()))
        gain = slowed * count / time
        loop = gain * (pulse @ self.mean)
        back = gain / (1 - loop)
        unit = np.zeros((4, 1))
        unit[0] = 1.0
        work = np.array([[per_decode], [g], [0.0], [0.0]])
        memory = np.array([[own - context], [1.0], [0.0], [0.0]])
        q = per_decode + g * context

        def power(v: Array, dispersion: float = dispersion) -> Array:
            coherent = np.abs(np.einsum("iw,iw->w", v, self.mean)) ** 2
            own = np.einsum("iw,wij,jw->w", v.conj(), self.second, v).real
            total: Array = count * (own + (dispersion - 1) * coherent)
            return np.maximum(total, 0.0)

        def spectrum(signal: Array) -> Array:
            return power(signal + pulse[:, None] * (back * (signal[:, 0] @ self.mean))[None, :])

        decodes = spectrum(unit)
        effective = spectrum(work) / q**2 if q > 1e-250 else decodes
        context_spectrum = spectrum(memory) / max(own, 1e-300) ** 2
        variance = float(effective @ self.weight)
        # what prompts that come by chance make of the iterations at a fixed number of decodes, and what the decodes make of them
        prompts = np.array([[0.0], [0.0], [per_prefill + slope * q], [a]])
        answer = np.abs(1 - gain * (prompts[:, 0] @ self.mean)) ** 2
        apart = (power(prompts + 0 * z, 1.0) + spectrum(pulse[:, None] - prompts)) / answer
        covariance = self.kept @ (self.weight * (spectrum(pulse[:, None]) - apart))
        return Fluctuations(
            float(decodes @ self.weight),
            variance,
            float(context_spectrum @ self.weight),
            float(effective[0] / (2 * variance)) if variance > 0 else 1.0,
            float(q),
            covariance,
        )
