"""The split of a stock of GPUs between services: of each the fleets it may take, and which of them cost least together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Need:
    """What one fleet of a service takes of the stock.

    Parameters
    ----------
    gpus
        GPU -> GPUs that serve or start in every hour.
    spares
        GPU -> GPUs of the largest set of spares of a pool, which others may share.
    own_spares
        GPU -> GPUs of all its pools' spares.
    """

    gpus: Mapping[str, Sequence[int]]
    spares: Mapping[str, int]
    own_spares: Mapping[str, int]

    def alone(self, gpu: str) -> int:
        """GPUs of a type where nothing is shared."""
        return max(self.gpus.get(gpu, (0,))) + self.own_spares.get(gpu, 0)


def bought(needs: Sequence[Need]) -> dict[str, tuple[tuple[int, ...], int]]:
    """GPU -> GPUs of all needs together in every hour, and the spares that they share.

    >>> bought([Need({"h100": (4, 1)}, {"h100": 1}, {}), Need({"h100": (1, 4)}, {"h100": 2}, {})])
    {'h100': ((5, 5), 2)}
    """
    found = {}
    for gpu in dict.fromkeys(gpu for need in needs for gpu in need.gpus):
        hours = np.sum([need.gpus[gpu] for need in needs if gpu in need.gpus], axis=0)
        found[gpu] = tuple(hours.tolist()), max(need.spares.get(gpu, 0) for need in needs)
    return found


def counted(needs: Sequence[Need]) -> dict[str, int]:
    """GPU -> GPUs that are bought for needs that share: the fullest hour, and the spares."""
    return {gpu: max(hours) + spares for gpu, (hours, spares) in bought(needs).items()}


def split(
    choices: Sequence[Sequence[Need]],
    priorities: Sequence[int],
    price: Mapping[str, float],
    stock: Mapping[str, int],
    budget: float | None = None,
) -> list[int | None]:
    """Which fleet each service takes: the most services of the first priority, then of the next, and at the least cost of all.

    A mixed-integer programme: of each service one fleet or none; of each GPU type as many as every hour takes and the largest
    spares, within stock and budget.

    Parameters
    ----------
    choices
        Of each service the fleets it may take; all over the same hours.
    priorities
        Of each service; the lowest comes first.
    price
        GPU -> price [USD/hour], > 0.
    stock
        GPU -> how many there are.
    budget
        The most that all may cost [USD/hour].

    Returns
    -------
    list of int or None
        Index among its choices; ``None`` = not served.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    owner = [k for k, own in enumerate(choices) for _ in own]
    flat = [need for own in choices for need in own]
    types, n = [*price], len(flat)
    peak, spare = {g: n + k for k, g in enumerate(types)}, {g: n + len(types) + k for k, g in enumerate(types)}
    width, none = n + 2 * len(types), (0,) * max((len(h) for need in flat for h in need.gpus.values()), default=1)
    rows: list[np.ndarray] = []
    most: list[float] = []

    def add(values: Mapping[int, float], limit: float) -> None:
        row = np.zeros(width)
        row[[*values]] = [*values.values()]
        rows.append(row)
        most.append(limit)

    for gpu in types:
        hours = np.array([need.gpus.get(gpu, none) for need in flat])
        for hour in np.unique(hours, axis=1).T if n else ():
            add({**dict(enumerate(hour.tolist())), peak[gpu]: -1.0}, 0.0)
        for k, need in enumerate(flat):
            if need.spares.get(gpu, 0):
                add({k: need.spares[gpu], spare[gpu]: -1.0}, 0.0)
        if gpu in stock:
            add({peak[gpu]: 1.0, spare[gpu]: 1.0}, stock[gpu])
    for service in range(len(choices)):
        add({k: 1.0 for k in range(n) if owner[k] == service}, 1.0)
    cost = np.zeros(width)
    for gpu in types:
        cost[[peak[gpu], spare[gpu]]] = price[gpu]
    if budget is not None:
        add(dict(enumerate(cost.tolist())), budget * (1.0 + 1e-9))

    def best(objective: np.ndarray) -> np.ndarray:
        """The optimum within the rows so far; a purchase of nothing is within all of them but those that it met itself."""
        answer = milp(
            objective,
            constraints=LinearConstraint(np.array(rows), -np.inf, np.array(most)),
            integrality=(np.arange(width) < n).astype(np.int64),
            bounds=Bounds(0.0, np.where(np.arange(width) < n, 1.0, np.inf)),
            options={"mip_rel_gap": 0.0},
        )
        if answer.x is None:
            raise ArithmeticError(f"the split has no answer: {answer.message}")
        taken: np.ndarray = answer.x[:n] > 0.5
        return taken

    if n == 0:
        return [None] * len(choices)
    for level in sorted({*priorities}):
        count = np.array([-1.0 if k < n and priorities[owner[k]] == level else 0.0 for k in range(width)])
        served = int(np.sum(best(count) * -count[:n]))
        add({k: count[k] for k in range(n)}, -served)
    taken = best(cost)
    first = np.searchsorted(owner, np.arange(len(choices)))
    return [
        next((k - int(first[s]) for k in range(n) if owner[k] == s and taken[k]), None) for s in range(len(choices))
    ]
