"""Offers out of price catalogs people already have: SkyPilot's CSV files and gpuhunt's."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from planner.catalog.load import gpus, normalized
from planner.catalog.prices import COLUMNS, Offer, parse_offers
from planner.errors import InputError, refuse
from planner.machine.hardware import GpuSpec
from planner.shared.documents import Rows, read_text, rows_by_column
from planner.units import GIB, LEAST, MOST

MEMORY_TOLERANCE = 0.13
"""How far a listed memory size may be from the catalog's: vendors write 80 GB, 81,920 MiB or 79.65 GiB for one part."""


@dataclass(frozen=True, slots=True)
class PriceImport:
    """What a price file holds.

    Parameters
    ----------
    offers
        The cheapest of each GPU, vendor, region and term.
    form
        ``skypilot``, ``gpuhunt`` or ``fleetopt``.
    skipped
        GPUs (or accelerators) the catalog does not have, with the number of their rows.
    """

    offers: tuple[Offer, ...]
    form: str
    skipped: Mapping[str, int]


def _squashed(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", normalized(name).removeprefix("nvidia-").removeprefix("amd-"))


def match_gpu(name: str, memory_gib: float | None = None, hint: str = "") -> GpuSpec | None:
    """The catalog's GPU for a name as price lists write it.

    Parameters
    ----------
    name
        ``A100-80GB``, ``H100``, ``RTX4090``, ``RTXPRO6000``, ...
    memory_gib
        Memory of one GPU where the list says it [GiB]: it tells an A100 of 40 GB from one of 80.
    hint
        Text that may name the form: an instance type, ``"gpu_8x_h100_sxm5"``.

    Returns
    -------
    GpuSpec or None
        ``None`` when nothing of the catalog fits.

    Examples
    --------
    >>> match_gpu("A100", 40.0).name, match_gpu("A100-80GB").name, match_gpu("H100", 80.0, "gpu_1x_h100_pcie").name
    ('a100-40gb', 'a100-80gb', 'h100-80gb-pcie')
    >>> match_gpu("V100") is None, match_gpu("RTX4090", 24.0).name
    (True, 'rtx-4090-24gb')
    """

    def fits(spec: GpuSpec) -> bool:
        return not memory_gib or abs(spec.memory_bytes / GIB / memory_gib - 1.0) <= MEMORY_TOLERANCE

    wanted, low = _squashed(name), hint.lower()
    if not wanted:
        return None
    spelled = {s: spec for spec in gpus().values() for s in map(_squashed, (spec.name, *spec.aliases))}
    form = next((f for f in ("pcie", "nvl") if f in low and f not in wanted), "")
    ordered = [spelled.get(wanted + form)] if form else []
    ordered.append(spelled.get(wanted))
    # "A100" of 40 GB: a spelling that goes on after the name with a size
    ordered += [s for k, s in spelled.items() if re.fullmatch(re.escape(wanted) + r"\d+gb?", k)]
    return next((spec for spec in ordered if spec is not None and fits(spec)), None)


def read_price_file(path: Path, *, vendor: str | None = None, seen: str | None = None) -> PriceImport:
    """Read a price catalog.

    Parameters
    ----------
    path
        A CSV of SkyPilot's catalog (``catalogs/*/VENDOR/vms.csv``), of gpuhunt's (``VENDOR.csv``), or a list of our own.
    vendor
        Whose prices they are; default: the file's folder (SkyPilot) or name (gpuhunt).
    seen
        Day the prices were seen, ISO 8601; default: the day the file was written.

    Raises
    ------
    InputError
        Not a file, not one of these formats, nothing of the catalog in it, or lines that cannot be read.
    """
    text = read_text(path)
    header = set(next(Rows(text.splitlines(), str(path)), []))
    if set(COLUMNS) <= header:
        return PriceImport(tuple(parse_offers(text, str(path), gpus(), own=True)), "fleetopt", {})
    found = next((f for f in _FORMS if f[1] <= header), None)
    if found is None:
        columns = (("SkyPilot", sorted(_SKYPILOT)), ("gpuhunt", sorted(_GPUHUNT)), ("Our own", COLUMNS))
        raise InputError(
            f"{path}: not a price list: none of SkyPilot's, gpuhunt's or our own columns",
            " ".join(f"{name}: {', '.join(names)}." for name, names in columns),
        )
    form, _, rows_of, named = found
    day = _day(path, seen)
    cheapest: dict[tuple[str, str, str, str], Offer] = {}
    skipped: Counter[str] = Counter()
    problems: list[str] = []
    reader = rows_by_column(text, str(path))
    for row in reader:
        if None in row.values():
            problems.append(f"{path}:{reader.line_num}: fewer values than there are columns")
            continue
        try:
            entries = list(rows_of(row))
        except ValueError as error:
            problems.append(f"{path}:{reader.line_num}: {error}")
            continue
        who = row.get("provider") or vendor or named(path)
        for name, memory_gib, instance, region, term, price in entries:
            if (spec := match_gpu(name, memory_gib, instance)) is None:
                skipped[name] += 1
                continue
            offer = Offer(spec.name, who, region, term, price, day, f"{path.name} ({form}), {instance}", True)
            key = (offer.gpu, who, region, term)
            if key not in cheapest or price < cheapest[key].usd_per_gpu_hour:
                cheapest[key] = offer
    refuse(problems)
    if not cheapest:
        others = f": it lists {', '.join(sorted(skipped)[:8])}" if skipped else ""
        raise InputError(f"{path}: no GPU of the catalog has a price in it{others}")
    return PriceImport(tuple(cheapest.values()), form, dict(skipped))


_Entry = tuple[str, float | None, str, str, str, float]
"""One price of one row: GPU, its memory [GiB], instance, region, term, and what a GPU costs [USD/hour]."""


def _positive(text: str | None, name: str) -> float | None:
    """A positive number, ``None`` for an empty or zero cell.

    >>> _positive("1.5", "Price"), _positive("", "Price"), _positive("nan", "Price")
    (1.5, None, None)
    """
    if text is None or not text.strip():
        return None
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{name}: expected a number, got {text!r}") from None
    return value if LEAST <= value <= MOST else None


def _skypilot(row: Mapping[str, str]) -> Iterator[_Entry]:
    """On-demand and spot price of one instance type; a row without an accelerator has none."""
    name, count = row["AcceleratorName"], _positive(row["AcceleratorCount"], "AcceleratorCount")
    if not name or not count:
        return
    # GpuInfo is JSON or a Python literal; its per-GPU size is the first one, some vendors' files have it in GiB
    size = re.search(r"SizeInMiB\W+(\d+)", row.get("GpuInfo") or "")
    memory = None if size is None else float(size[1]) / (1024.0 if float(size[1]) > 1024.0 else 1.0)
    for column, term in (("Price", "on-demand"), ("SpotPrice", "spot")):
        price = _positive(row[column], column)
        if price is not None:
            yield name, memory, row["InstanceType"], row["Region"], term, price / count


def _gpuhunt(row: Mapping[str, str]) -> Iterator[_Entry]:
    """The price of one instance; a row without GPUs has none."""
    name, count = row["gpu_name"], _positive(row["gpu_count"], "gpu_count")
    price = _positive(row["price"], "price")
    if not name or not count or price is None:
        return
    if (spot := row["spot"].strip().lower()) not in ("true", "false"):
        raise ValueError(f"spot: expected True or False, got {row['spot']!r}")
    term, memory_gib = "spot" if spot == "true" else "on-demand", _positive(row["gpu_memory"], "gpu_memory")
    yield name, memory_gib, row["instance_name"], row["location"], term, price / count


_SKYPILOT = frozenset({"InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "SpotPrice", "Region"})
_GPUHUNT = frozenset({"instance_name", "location", "price", "gpu_count", "gpu_name", "gpu_memory", "spot"})

_FORMS: tuple[
    tuple[str, frozenset[str], Callable[[Mapping[str, str]], Iterator[_Entry]], Callable[[Path], str]], ...
] = (
    ("skypilot", _SKYPILOT, _skypilot, lambda path: path.resolve().parent.name),
    ("gpuhunt", _GPUHUNT, _gpuhunt, lambda path: path.stem),
)


def _day(path: Path, seen: str | None) -> str:
    """The day given, else the one the file was written on."""
    from datetime import date

    if seen is None:
        return date.fromtimestamp(path.stat().st_mtime).isoformat()
    try:
        return date.fromisoformat(seen).isoformat()
    except ValueError:
        raise InputError(f"--date: expected a day like 2026-10-01, got {seen!r}") from None
