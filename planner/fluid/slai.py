r"""SLAI: when a decode has to run to meet its time between tokens, and how to set the scheduler's four knobs.

References
----------
Bari et al., "Optimal scheduling algorithms for LLM inference: theory and practice", section 6, eq. 8.
"""

from __future__ import annotations

from decimal import Decimal

from planner.fluid.exclusive import check_costs
from planner.fluid.numeric import formula


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
