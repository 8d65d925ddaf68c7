"""JSON: the machine's contract, with its schema version."""

from __future__ import annotations

import json
from typing import Any


def render(result: Any) -> str:
    """``to_dict()`` as JSON; numbers that JSON cannot hold are ``null`` already."""
    return json.dumps(result.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)
