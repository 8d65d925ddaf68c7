"""The table people read in a terminal."""

from __future__ import annotations

import io
import os
import shutil
import sys
from typing import TYPE_CHECKING, Any

from planner.plans import Plan
from planner.report import plan_text as text
from planner.units import format_usd

if TYPE_CHECKING:
    from planner.reproduce.result import Reproduction
    from planner.studies.schedule import Schedule

__all__ = ["render", "rows_to_table"]


def rows_to_table(columns: list[str], rows: list[list[str]], right: set[str] | None = None) -> str:
    """Any table as text; cells are never cut, whatever the width of the terminal."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if right is None or column in right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    plain = bool(os.environ.get("NO_COLOR")) or not sys.stdout.isatty()
    width = max(
        shutil.get_terminal_size((160, 24)).columns,
        sum(max(map(len, c)) + 3 for c in zip(columns, *rows, strict=True)) + 4,
    )
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=not plain, no_color=plain, highlight=False)
    console.print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().strip("\n").splitlines())


def render(result: Any) -> str:
    """A plan or a schedule in full, classes of requests group by group; any other result by its rows."""
    if isinstance(result, Plan):
        return _plan(result)
    # the commonest result is recognised before the modules of the others are loaded
    from planner.report.advice_text import advice_text
    from planner.reproduce.result import Reproduction
    from planner.studies.classes import TieredPlan
    from planner.studies.schedule import Schedule

    if isinstance(result, TieredPlan):
        total = f"{result.gpus:,} GPUs, {format_usd(result.cost_usd_per_hour)}/hour in all"
        groups = [f"== {' + '.join(g)}\n{_plan(p)}" for g, p in zip(result.groups, result.plans, strict=True)]
        return "\n\n".join([total, *groups])
    if isinstance(result, Schedule):
        return _schedule(result)
    if (advice := advice_text(result, markdown=False)) is not None:
        return advice
    if isinstance(result, Reproduction):
        return _reproduction(result)
    return _rows(result)


def _reproduction(result: Reproduction) -> str:
    from planner.report import reproduction_text

    rows, notes = reproduction_text.noted_rows(result)
    columns = [*reproduction_text.COLUMNS]
    return "\n".join([rows_to_table(columns, rows, right={"printed", "ours"}), "", *notes])


def _schedule(schedule: Schedule) -> str:
    from planner.report import schedule_text

    columns, rows = schedule_text.by_hour(schedule)
    costs = [*schedule_text.COLUMNS]
    return "\n".join(
        [
            *schedule_text.headline(schedule),
            "",
            rows_to_table(costs, schedule_text.summary(schedule), right=set(costs) - {""}),
            "",
            rows_to_table(columns, rows, right=set(columns) - {"time"}),
        ]
    )


def _plan(plan: Plan) -> str:
    """Headline, pools, settings, reasons."""
    columns, rows = text.pool_table(plan)
    lines = [*text.headline(plan), "", rows_to_table(columns, rows, right=set(columns) - {"pool", "total tokens"}), ""]
    lines.append(text.savings(plan))
    lines.extend(plan.explanation)
    lines.append("")
    for pool in plan.pools:
        s = pool.settings
        lines.append(
            f"{pool.name}: --max-model-len {s.max_model_len} --max-num-seqs {s.max_num_seqs} "
            f"--max-num-batched-tokens {s.max_num_batched_tokens} --tensor-parallel-size {s.tensor_parallel_size} "
            f"--gpu-memory-utilization {s.gpu_memory_utilization:g}"
        )
    lines.extend(f"note: {note}" for note in plan.notes)
    return "\n".join(lines)


def _rows(result: Any) -> str:
    """Any result with ``to_rows()`` as a table."""
    rows = result.to_rows()
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return rows_to_table(columns, [[text.cell(row.get(c)) for c in columns] for row in rows])
