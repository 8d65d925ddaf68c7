"""Prefill that shares a token budget: the tokens waiting at one replica, as a chain over its iterations.

Every iteration takes at most `budget` prompt tokens, first come first served, and lasts `base` seconds plus
`per_token` for each token taken. With V tokens waiting when an iteration starts,

    V' = (V - B)^+ + compound Poisson of lambda s(V) prompts,     s(V) = base + per_token min(V, B).

On a lattice of B / cells tokens this is a chain of M/G/1 type with batch service; its generating function has a closed
form once the roots of z^B = A(z) in the unit disk are known.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["PrefillLaw", "PrefillState"]

FloatArray = NDArray[np.float64]
ComplexArray = NDArray[np.complex128]

_DAMP = 1e-6  # what lies beyond the transform's range comes back this much smaller


@dataclass(frozen=True, slots=True, eq=False)
class PrefillState:
    """Stationary prefill of a replica at some base durations (the first axis of every array).

    Attributes
    ----------
    load : ndarray, shape (nodes,)
        Prompt tokens arriving per full iteration over the budget [-].
    busy : ndarray, shape (nodes,)
        Share of the time spent in iterations that take a full budget [-].
    duration : ndarray, shape (nodes, 3)
        Mean duration of the iteration an arrival meets: without prefill, with less than the budget, full [s].
    iterations : ndarray, shape (nodes, 3, 2, groups)
        P(the arrival's last token goes in a later iteration of this group: cells of the first two iterations, then
        groups of iterations) for the three kinds of iteration met and the two halves of it (first, second); sums to 1
        per node [-].
    before : ndarray, shape (nodes, 3, 2, groups)
        Mean number of full iterations between the one met and that later one [iterations].
    last_tokens : ndarray, shape (nodes, 3, 2, groups)
        Mean tokens in that later iteration up to the arrival's last one [tokens].
    share : ndarray, shape (nodes, cells + 1)
        P(an iteration takes j cells of the budget), j = 0..cells [-].
    tokens : ndarray, shape (nodes,)
        Mean prompt tokens per iteration [tokens].
    tokens_variance : ndarray, shape (nodes,)
        Their variance over the iterations [tokens^2].
    """

    load: FloatArray
    busy: FloatArray
    duration: FloatArray
    iterations: FloatArray
    before: FloatArray
    last_tokens: FloatArray
    share: FloatArray
    tokens: FloatArray
    tokens_variance: FloatArray


class PrefillLaw:
    """Prompt lengths on the lattice of a token budget; build once, solve for many rates.

    Parameters
    ----------
    prompt_tokens : array_like
        Prompt lengths > 0 [tokens].
    weight : array_like
        Their probabilities, normalized here [-].
    budget : float
        B, prompt tokens an iteration can take [tokens].

    Examples
    --------
    Prompts of exactly one budget, 1.6 tokens per millisecond of an iteration of 20 ms:

    >>> law = PrefillLaw([512.0], [1.0], 512.0)
    >>> state = law.solve(2.0, [0.02], 2e-5)
    >>> round(float(state.tokens[0]), 1), round(float(state.iterations[state.before == 0].sum()), 2)
    (20.9, 0.98)
    """

    def __init__(self, prompt_tokens: ArrayLike, weight: ArrayLike, budget: float) -> None:
        tokens = np.asarray(prompt_tokens, dtype=float)
        weights = np.asarray(weight, dtype=float)
        if tokens.ndim != 1 or len(tokens) == 0 or np.any(~(tokens > 0)) or not np.all(np.isfinite(tokens)):
            raise ValueError("prompt_tokens must be > 0 and finite")
        if weights.shape != tokens.shape or np.any(~(weights >= 0)) or weights.sum() <= 0:
            raise ValueError("weight must be >= 0, not all 0, one per prompt length")
        if not (np.isfinite(budget) and budget > 0):
            raise ValueError(f"budget must be > 0 and finite, not {budget!r}")
        weights = weights / weights.sum()
        self.budget = float(budget)
        self.mean = float(weights @ tokens)
        self.second = float(weights @ tokens**2)
        longest = float(tokens.max()) / budget
        # finer cells where prompts are short: about 600 cells for the longest prompt at most
        self.cells = 16 if longest <= 2 else 8 if longest <= 12 else 4 if longest <= 160 else 2 if longest <= 400 else 1
        self.cell = self.budget / self.cells
        reach = (2.0 * longest + 25.0 * self.second / (2.0 * self.mean) / budget + 8.0) * self.cells
        self.size = int(2 ** np.ceil(np.log2(min(max(reach, 256.0), 8192.0))))
        # mean-preserving split between the two nearest lattice points
        place = tokens / self.cell
        low = np.floor(place)
        part = place - low
        law = np.bincount(low.astype(int), weights * (1.0 - part), minlength=int(place.max()) + 2).astype(float)
        law[1:] += np.bincount(low.astype(int), weights * part, minlength=int(place.max()) + 2)[:-1]
        self._support = np.flatnonzero(law).astype(float)
        self._mass = law[law > 0]
        self._radius = _DAMP ** (1.0 / self.size)
        index = np.arange(len(law))
        folded = np.bincount(index % self.size, law * self._radius**index, minlength=self.size)
        self._circle: ComplexArray = np.fft.rfft(folded)  # phi on the circle
        turn = np.exp(-2j * np.pi * np.arange(self.size // 2 + 1) / self.size)
        self._z: ComplexArray = self._radius * turn
        far = np.unique(np.round(np.geomspace(10.0, max(self.size / self.cells, 11.0), 16)).astype(int))
        self._starts = np.concatenate((np.arange(10), far))
        self._undamp = self._radius ** -np.arange(self.size, dtype=float)

    def _roots(self, intensity: FloatArray) -> ComplexArray:
        """Roots z_k (k = 1..cells-1) in the disk of z^cells = exp(intensity (phi(z) - 1)), one row per intensity."""
        b = self.cells
        omega: ComplexArray = np.exp(2j * np.pi * np.arange(1, b) / b)
        rate = (intensity / b)[:, None]
        z: ComplexArray = np.asarray(0.5 * np.repeat(omega[None, :], len(intensity), axis=0), dtype=np.complex128)
        for _ in range(60):
            power = self._mass * np.exp(self._support * np.log(z)[:, :, None])
            phi = power.sum(axis=-1)
            slope = (power * self._support).sum(axis=-1) / z
            image = omega * np.exp(rate * (phi - 1.0))
            step = (image - z) / (1.0 - image * rate * slope)
            # Newton where it stays in the disk, the plain map (a contraction there) where it does not
            trial = z + step
            z_new: ComplexArray = np.asarray(np.where(np.abs(trial) < 1.0, trial, image), dtype=np.complex128)
            change = float(np.max(np.abs(z_new - z)))
            z = z_new
            if change < 1e-12:
                break
        return z

    def solve(self, arrival_rate: float, base: ArrayLike, per_token: float) -> PrefillState:
        """Stationary prefill at several base durations of the iteration.

        Parameters
        ----------
        arrival_rate : float
            lambda of the replica [1/s].
        base : array_like, shape (nodes,)
            Duration of an iteration without prefill tokens [s].
        per_token : float
            Time a prefill token adds [s/token].

        Returns
        -------
        PrefillState
            Loads at or above 0.985 are solved at 0.985: whether a node is stable is for the caller to see.
        """
        b, size = self.cells, self.size
        base = np.atleast_1d(np.asarray(base, dtype=float))
        nodes = len(base)
        full = base + per_token * self.budget
        load = arrival_rate * self.mean * full / self.budget
        rate = arrival_rate * np.minimum(1.0, 0.985 / np.maximum(load, 1e-300))
        step = per_token * self.cell
        taken = np.arange(b + 1)
        durations = base[:, None] + step * taken[None, :]  # s_j of an iteration that takes j cells
        means = rate[:, None] * durations  # prompts per iteration
        mean_cells = self.mean / self.cell

        # --- pi_j, j < b: the numerator vanishes at the roots; the derivative at 1 normalizes
        matrix = np.empty((nodes, b, b), dtype=complex)
        right = np.zeros((nodes, b, 1), dtype=complex)
        if b > 1:
            z = self._roots(means[:, b])
            phi = (self._mass * np.exp(self._support * np.log(z)[:, :, None])).sum(axis=-1)
            grows = np.exp(means[:, None, :b] * (phi - 1.0)[:, :, None])
            matrix[:, : b - 1, :] = grows - z[:, :, None] ** taken[:b]
        arrives = means * mean_cells
        matrix[:, b - 1, :] = (b - taken[None, :b]) + arrives[:, :b] - arrives[:, b : b + 1]
        right[:, b - 1, 0] = b - arrives[:, b]
        low = np.maximum(np.linalg.solve(matrix, right)[:, :, 0].real, 0.0)
        low_mass = np.minimum(low.sum(axis=1), 1.0)
        high_mass = 1.0 - low_mass
        tokens = self.cell * (low @ taken[:b]) + self.budget * high_mass
        second = self.cell**2 * (low @ taken[:b] ** 2) + self.budget**2 * high_mass

        # --- what an arrival finds ahead and brings, on the circle
        phi_c = self._circle
        grow0 = np.exp(np.outer(rate * base, phi_c - 1.0))
        grow1 = np.exp(np.outer(rate * step, phi_c - 1.0))
        z_c = self._z
        powers = np.empty((b + 1, nodes, len(z_c)), dtype=complex)
        powers[0] = grow0
        for j in range(1, b + 1):
            powers[j] = powers[j - 1] * grow1
        lattice = z_c[None, :] ** taken[:, None]
        top = powers[b]
        numerator = np.zeros_like(top)
        for j in range(b):
            numerator += low[:, j, None] * (lattice[b] * powers[j] - lattice[j] * top)
        whole = numerator / (lattice[b] - top)
        low_z = low.astype(complex) @ lattice[:b]
        waiting = (whole - low_z) / lattice[b]  # (V - B)^+ over the full iterations
        # an arrival meets an iteration in proportion to its time, and of those with some prefill a long one
        time_low = low * durations[:, :b]
        kinds = np.stack((time_low[:, 0], time_low[:, 1:].sum(axis=1), high_mass * durations[:, b]), axis=1)
        time = kinds.sum(axis=1)
        squares = (time_low[:, 1:] * durations[:, 1:b]).sum(axis=1)
        partial = np.where(kinds[:, 1] > 0, squares / np.maximum(kinds[:, 1], 1e-300), durations[:, 0])
        duration = np.stack((durations[:, 0], partial, durations[:, b]), axis=1)

        exponent = phi_c - 1.0
        found = np.empty((nodes, 3, 2, len(z_c)), dtype=complex)
        for kind in range(3):
            s = duration[:, kind]
            half = np.outer(rate * s * 0.5, exponent)
            small = np.abs(half) < 1e-8
            mean_half = np.where(small, 1.0, np.expm1(half) / np.where(small, 1.0, half))
            start = (kinds[:, kind] / time)[:, None]
            if kind == 2:  # the tokens beyond this iteration's budget are ahead
                start = waiting * (durations[:, b] / time)[:, None]
            found[:, kind, 0] = 0.5 * start * mean_half * phi_c
            found[:, kind, 1] = found[:, kind, 0] * np.exp(half)
        law = np.fft.irfft(found, size, axis=-1) * self._undamp
        law = np.maximum(law, 0.0)
        law /= law.sum(axis=(1, 2, 3), keepdims=True)

        # --- k-th iteration: tokens ((k-1) B, k B]; the far ones in groups
        count = size // b
        blocks = law[..., 1 : (count - 1) * b + 1].reshape(nodes, 3, 2, count - 1, b)
        iterations = blocks.sum(axis=-1)
        last = blocks @ (np.arange(1, b + 1) * self.cell)
        iterations[..., 0] += law[..., 0]
        last[..., 0] += law[..., 0] * self.cell
        # the first two iterations keep how many tokens the last one takes, the others their mean
        near = min(2, count - 1)
        shape = (nodes, 3, 2, near * b)
        cells = np.broadcast_to(np.tile(np.arange(1, b + 1) * self.cell, near), shape)
        close = blocks[..., :near, :].reshape(shape).copy()
        close[..., 0] += law[..., 0]
        starts = self._starts[(self._starts >= near) & (self._starts < count - 1)]
        later = np.concatenate(
            (
                close * np.repeat(np.arange(near), b),
                np.add.reduceat(iterations * np.arange(count - 1.0), starts, axis=-1),
            ),
            axis=-1,
        )
        last = np.concatenate((close * cells, np.add.reduceat(last, starts, axis=-1)), axis=-1)
        iterations = np.concatenate((close, np.add.reduceat(iterations, starts, axis=-1)), axis=-1)
        first_steps = np.concatenate((np.repeat(np.arange(near), b), starts)).astype(float)
        some = np.maximum(iterations, 1e-300)
        return PrefillState(
            load=load,
            busy=kinds[:, 2] / time,
            duration=duration,
            iterations=iterations,
            before=np.where(iterations > 0, later / some, first_steps),
            last_tokens=last / some,
            share=np.concatenate((low, high_mass[:, None]), axis=1),
            tokens=tokens,
            tokens_variance=np.maximum(second - tokens**2, 0.0),
        )
