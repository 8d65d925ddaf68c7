"""What each result says: a file per kind of result, named as its class, with ``blocks(result)``; any other by its rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from planner.report.blocks import Block, rows_table

__all__ = ["blocks_of"]


def blocks_of(result: Any) -> Sequence[Block]:
    """The blocks of any result."""
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(result).__name__).lower()
    if not Path(__file__).with_name(f"{name}.py").is_file():
        return [rows_table(result.to_rows())]
    blocks: Sequence[Block] = import_module(f"planner.report.text.{name}").blocks(result)
    return blocks
