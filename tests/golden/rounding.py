"""Numbers as approved files have them."""

from __future__ import annotations

import math
from typing import Any


def rounded(value: Any) -> Any:
    """The same with six digits, whatever holds the numbers; what JSON has no number for as its name."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {str(k): rounded(v) for k, v in value.items()}
    return [rounded(v) for v in value] if isinstance(value, (list, tuple)) else value
