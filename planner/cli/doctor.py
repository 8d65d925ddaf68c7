"""``fleetopt doctor``: is this installation well?"""

from __future__ import annotations

from planner.cli import options as opt


def doctor(output_format: opt.Format = None, output: opt.OutputFile = None) -> None:
    """Versions, extras, GPU, your profiles, the age of the prices, and a plan from end to end. Exit code 6 when one is bad."""
    from planner.cli.checkup import checkup
    from planner.cli.output import writer
    from planner.errors import CheckFailedError

    write = writer(output_format, output)
    found = checkup()
    write(found)
    if not found.well:
        bad = next(f for f in found.findings if f.state == "bad")
        raise CheckFailedError(f"{bad.what}: {bad.told}")
