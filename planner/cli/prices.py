"""``fleetopt prices``: what offers there are, and taking in the user's own price lists."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.cli import options as opt

app = typer.Typer(
    name="prices",
    help="GPU prices: show the offers with vendor, term and day; import your own lists.",
    no_args_is_help=True,
)


@app.command()
def show(
    gpu: Annotated[list[str] | None, opt.told("Only this GPU. Repeat.", "--gpu", "-g")] = None,
    vendor: Annotated[str | None, opt.told("Only this vendor.", "--vendor")] = None,
    term: Annotated[str | None, opt.told("Only this term: on-demand, spot, reserved-1y, ...", "--term")] = None,
    output_format: opt.Format = None,
    output: opt.OutputFile = None,
) -> None:
    """Offers of the shipped lists and of yours, the cheapest first; a star marks what a plan takes."""
    from planner.catalog.load import gpu as find_gpu
    from planner.catalog.load import price_offers
    from planner.catalog.prices import reference_offer
    from planner.cli.output import writer
    from planner.errors import InputError, did_you_mean
    from planner.report.listings.catalog import offer_list

    write = writer(output_format, output)
    known = price_offers()
    wanted = {find_gpu(name).name for name in gpu or ()}
    for option, value, values in (
        ("--vendor", vendor, {o.vendor for o in known}),
        ("--term", term, {o.term for o in known}),
    ):
        if value is not None and value not in values:
            raise InputError(
                f"{option}: no offer has {value!r}{did_you_mean(value, values)}",
                f"There are: {', '.join(sorted(values))}.",
            )
    found = [
        o for o in known if (not wanted or o.gpu in wanted) and vendor in (None, o.vendor) and term in (None, o.term)
    ]
    found.sort(key=lambda o: (o.gpu, o.term != "on-demand", o.term, o.usd_per_gpu_hour))
    references = (reference_offer(known, name) for name in {o.gpu for o in found})
    write(offer_list(found, frozenset(o for o in references if o is not None)))


@app.command("import")
def import_list(
    file: Annotated[
        Path, typer.Argument(help="A price list: SkyPilot's vms.csv, gpuhunt's CSV, or one of our own form.")
    ],
    vendor: Annotated[
        str | None, opt.told("Whose prices; default: the folder (SkyPilot) or the file's name.", "--vendor")
    ] = None,
    day: Annotated[
        str | None, opt.told("Day the prices were seen, 2026-10-01; default: the file's own.", "--date")
    ] = None,
    name: Annotated[str | None, opt.told("Name of the list; default: the vendor's.", "--name")] = None,
) -> None:
    """Take a price list in: plans use its offers before the shipped ones. Importing again replaces it."""
    import re

    from planner.catalog.price_import import read_price_file
    from planner.catalog.prices import save_offers
    from planner.cli.output import say
    from planner.errors import InputError

    found = read_price_file(file, vendor=vendor, seen=day)
    vendors = sorted({offer.vendor for offer in found.offers})
    stem = name or (vendors[0] if len(vendors) == 1 else file.stem)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", stem):
        raise InputError(f"--name: {stem!r} cannot name a file", "Use letters, digits, '.', '_' and '-'.")
    path = save_offers(found.offers, stem)
    gpus = sorted({offer.gpu for offer in found.offers})
    say([f"{len(found.offers)} offers of {', '.join(vendors)} for {', '.join(gpus)} -> {path}"])
    if found.skipped:
        names = sorted(found.skipped, key=lambda k: (-found.skipped[k], k))
        more = f" and {len(names) - 12} more" if len(names) > 12 else ""
        say([f"not in the catalog, left out: {', '.join(names[:12])}{more}"])
    if old := sorted({offer.date for offer in found.offers if offer.is_stale()}):
        say([f"warning: prices seen {old[0]} are more than 180 days old: plans will call them stale"])
