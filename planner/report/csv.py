"""CSV: one row per pool or per point of a sweep."""

from __future__ import annotations

import csv
import io
from typing import Any


def rows_to_csv(rows: list[dict[str, Any]]) -> str:
    """Rows as CSV; the columns are the union of all keys in order of appearance.

    >>> rows_to_csv([{"a": 1, "b": None}, {"a": 2, "c": 3}]).splitlines()
    ['a,b,c', '1,,', '2,,3']
    """
    columns = list(dict.fromkeys(key for row in rows for key in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: "" if v is None else v for k, v in row.items()} for row in rows)
    return out.getvalue().rstrip("\n")


def render(result: Any) -> str:
    """``to_rows()`` as CSV."""
    return rows_to_csv(result.to_rows())
