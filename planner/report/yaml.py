"""YAML: the same content as JSON, in the form `evaluate`, `simulate`, `what-if` and `schedule` read back."""

from __future__ import annotations

from typing import Any

from planner.report.text import documented


def render(result: Any) -> str:
    """``to_dict()`` as YAML, keys in their order."""
    import yaml

    return yaml.safe_dump(documented(result), sort_keys=False, allow_unicode=True, width=120).rstrip("\n")
