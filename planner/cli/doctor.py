"""``fleetopt doctor``: is this installation well?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from planner.cli import options as opt
from planner.errors import CheckFailedError


@opt.verb()
def doctor() -> Iterator[Any]:
    """Versions, extras, GPU, your profiles, the age of the prices, and a plan from end to end. Exit code 6 when one is bad."""
    from planner.cli.checkup import checkup

    yield (found := checkup())
    if bad := next((f for f in found.findings if f.state == "bad"), None):
        raise CheckFailedError(f"{bad.what}: {bad.told}")
