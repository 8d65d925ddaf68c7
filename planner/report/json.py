"""JSON: the machine's contract, with its schema version."""

from __future__ import annotations

import json
from typing import Any

from planner.report.text import documented


def render(result: Any) -> str:
    """``to_dict()`` as JSON; numbers that JSON cannot hold are ``null`` already."""
    return json.dumps(documented(result), indent=2, ensure_ascii=False, allow_nan=False)
