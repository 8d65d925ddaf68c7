"""Largest rate a mixed-batching replica can sustain: token budget, sequence slots or KV memory, whichever binds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.queueing.mixed.backlog import fixed_count_backlog
from planner.queueing.mixed.lengths import BatchCost, PromptSums


@dataclass(frozen=True, slots=True)
class MaxThroughput:
    """Stability limit of one replica.

    Attributes
    ----------
    per_s : float
        Largest sustainable arrival rate X of one replica [requests/s].
    binding : str
        ``"budget"``, ``"slots"`` or ``"kv"``: what limits the requests completed per iteration; ``"prompt"`` when the
        longest prompt does not fit in the KV memory at all (X is 0).
    per_iteration : float
        Requests completed per iteration at saturation.
    decodes : float
        Mean number of decodes per iteration at saturation.
    iteration_s : float
        Mean duration of an iteration at saturation [s].
    recompute_share : float
        Prefill tokens computed again after preemption, per prefill token.
    """

    per_s: float
    binding: str
    per_iteration: float
    decodes: float
    iteration_s: float
    recompute_share: float


def max_throughput(
    sums: PromptSums, cost: BatchCost, *, a: float, budget: float, slots: float, kv_tokens: float
) -> MaxThroughput:
    r"""Maximum throughput :math:`X = m/\bar t` of one replica.

    Three limits of the requests completed per iteration:

    .. math::

        m_B = \frac{B}{E[L]+E[D]},\quad
        m_S = \frac{S-\mathrm{back}}{E[D]+1+E[L]/(2(B-n))},\quad
        m_K = \frac{M-E[L^2]/2E[L]}{E[KV]+E[L\lceil L/(B-n)\rceil]}

    ``back``: slots that stand empty because the budget is spent, from the backlog chain with Poisson(m) arrivals per
    iteration. The mean duration uses :math:`E\max(w,bT)` from the same chain unless the budget binds.

    Where memory binds, requests are admitted as memory falls free: along a line of tokens freed, one leaves every L + D and one
    is let in every L. As many as the one lets in come at once; of two renewal processes of one rate these have variance
    :math:`c_{L+D}^2+c_L^2`, and a geometric number, half of them 0, the like: clumps of mean
    :math:`1+(c_{L+D}^2+c_L^2)/2`. Prompts of a clump share no iteration's floor with the decodes of others.

    Parameters
    ----------
    sums : PromptSums
    cost : BatchCost
    a : float
        Prefill attention [s/pair].
    budget, kv_tokens : float
        Token budget B and KV memory M, a shared prefix left out [tokens].
    slots : float
        ``max_num_seqs``.
    """
    law = sums.law
    prefill, steps = law.mean_prefill, law.mean_steps
    largest = float(law.own[law.probability > 0].max())
    if largest > kv_tokens:
        return MaxThroughput(0.0, "prompt", 0.0, 0.0, np.inf, 0.0)
    by_budget = budget / (prefill + steps)
    held = law.mean_own2 / (2 * law.mean_own)
    by_kv, clump = np.inf, 1.0
    if np.isfinite(kv_tokens):
        by_kv = (kv_tokens - held) / (law.mean_kv + law.mean_own)
        for _ in range(2):
            # a prompt holds all its memory from its first iteration on
            passes = np.ceil(law.tokens / max(budget - min(by_kv, by_budget) * steps, 1.0))
            by_kv = max((kv_tokens - held) / (law.mean_kv + float(law.probability @ (law.own * passes))), 1e-9)
    by_slots = slots / (steps + 1 + prefill / budget)
    knee = cost.knee
    if by_kv <= min(by_budget, by_slots):
        freed = law.own + law.steps
        of_freed = float(law.probability @ freed**2) / float(law.probability @ freed) ** 2
        clump = 0.5 * (of_freed + law.mean_own2 / law.mean_own**2)
    m = min(by_budget, by_slots, by_kv)
    chain = None
    for _ in range(3):
        m = min(by_budget, by_slots, by_kv)
        if m >= by_budget * (1 - 1e-12):
            break
        n = m * steps
        room = max(budget - n, 1.0)
        waste = _waste(m, by_budget, steps, prefill) if by_kv <= min(by_budget, by_slots) else 0.0
        chain = fixed_count_backlog(sums, room, knee - n, m * (1 + waste), clump)
        if by_kv <= by_slots:
            break
        back = float(chain[1] @ np.maximum(chain[0] - room, 0.0)) / prefill
        updated = max(slots - back, 0.5) / (steps + 1 + prefill / (2 * room))
        settled = abs(updated - by_slots) < 1e-4 * by_slots
        by_slots = updated
        if settled:
            break
    m = min(by_budget, by_slots, by_kv)
    n = m * steps
    waste = 0.0
    if m >= by_budget * (1 - 1e-12):
        binding = "budget"
        linear = float(cost.linear(np.array(budget)) + cost.twice(n, budget - n))
        tokens = budget
        beside = 1.0
    else:
        binding = "kv" if by_kv <= by_slots else "slots"
        waste = _waste(m, by_budget, steps, prefill) if binding == "kv" else 0.0
        room = max(budget - n, 1.0)
        if chain is None:
            chain = fixed_count_backlog(sums, room, knee - n, m * (1 + waste), clump)
        tokens_law = n + np.minimum(chain[0], room)
        linear = float(chain[1] @ (cost.linear(tokens_law) + cost.twice(n, tokens_law - n)))
        tokens = n + m * prefill * (1 + waste)
        beside = float(chain[1] @ (chain[0] > 0.0))
    attention = m * a * law.mean_pairs * (1 + waste)
    decoding = cost.per_decode * n
    if cost.joined_per_decode > 0.0:
        joined = max(cost.joined_per_decode * n, cost.walk - attention, cost.read * n - attention)
        decoding += beside * (joined - decoding)
    mean = cost.t0 + linear + cost.c * tokens + decoding + attention
    if cost.x > 0:
        mean += cost.x * n * (tokens - n) / tokens
    return MaxThroughput(m / mean, binding, m, n, mean, waste)


def _waste(m: float, by_budget: float, steps: float, prefill: float) -> float:
    """Prefill of preempted requests computed again, per prefill token, as in :mod:`planner.queueing.memory`."""
    return float(steps / prefill * np.exp(-m) * max(1.0 - m / by_budget, 0.0))
