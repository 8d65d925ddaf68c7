"""What an argument has to be."""

from __future__ import annotations


def need(holds: object, message: str) -> None:
    """Refuse an argument.

    Raises
    ------
    ValueError
        It does not hold, in the words of `message`.

    Examples
    --------
    >>> need(1 > 0, "one must be > 0")
    """
    if not holds:
        raise ValueError(message)
