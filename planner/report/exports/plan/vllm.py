"""The start line of every pool, reasons as comments."""

from __future__ import annotations

import shlex

from planner.operate.deploy.serving import DeployOptions, serving_of
from planner.plans import Plan
from planner.question.files import question_of


def render(plan: Plan) -> str:
    """One command per pool; `replicas` copies of it serve the pool."""
    serving = serving_of(plan.to_dict(), question_of(plan).pools, DeployOptions())
    lines = []
    for pool, started in zip(plan.pools, serving.pools, strict=True):
        lines.append(
            f"# {pool.name}: {pool.replicas} replica{'s' if pool.replicas != 1 else ''} on {pool.gpu}, "
            f"requests of {pool.low_tokens:,.0f}..{pool.high_tokens:,.0f} tokens"
        )
        lines.extend(f"#   {name}: {reason}" for name, reason in pool.settings.reasons.items())
        lines.append(shlex.join(started.command))
    return "\n".join(lines)
