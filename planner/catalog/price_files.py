"""Prices in files that others keep: of GPUs, in SkyPilot's and gpuhunt's CSV catalogs; per token of model APIs, in genai-prices'
format (github.com/pydantic/genai-prices).

A file of genai-prices is a provider's (YAML, as in ``prices/providers``), or a list of them (JSON, as ``prices/data.json``). Of
prices with a start date the latest that has begun counts, of prices by time of day the one without; of tiers by the length of a
prompt each request pays its own.
"""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.catalog.load import gpus, normalized
from planner.catalog.prices import COLUMNS, Offer, parse_offers
from planner.errors import InputError, did_you_mean, refuse
from planner.machine.hardware import GpuSpec
from planner.shared.documents import load_document, printable, read_text, rows_by_column
from planner.units import GIB, LEAST, MOST

MEMORY_TOLERANCE = 0.13
"""How far a listed memory size may be from the catalog's: vendors write 80 GB, 81,920 MiB or 79.65 GiB for one part."""


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


def read_price_file(
    path: Path, *, vendor: str | None = None, seen: str | None = None
) -> tuple[Sequence[Offer], Mapping[str, int]]:
    """Read a price catalog.

    Parameters
    ----------
    path
        A CSV of SkyPilot's catalog (``catalogs/*/VENDOR/vms.csv``), of gpuhunt's (``VENDOR.csv``), or a list of our own.
    vendor
        Whose prices they are; default: the file's folder (SkyPilot) or name (gpuhunt).
    seen
        Day the prices were seen, ISO 8601; default: the day the file was written.

    Returns
    -------
    tuple
        The cheapest offer of each GPU, vendor, region and term; and GPUs (or accelerators) the catalog does not have, with the
        number of their rows.

    Raises
    ------
    InputError
        Not a file, not one of these formats, nothing of the catalog in it, or lines that cannot be read.
    """
    text = read_text(path)
    reader = rows_by_column(text.splitlines(), str(path))
    header = set(reader.fieldnames or ())
    if set(COLUMNS) <= header:
        return parse_offers(text, str(path), gpus(), own=True), {}
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
    return [*cheapest.values()], skipped


_Entry = tuple[str, float | None, str, str, str, float]
"""One price of one row: GPU, its memory [GiB], instance, region, term, and what a GPU costs [USD/hour]."""


def _amount(text: str | None, name: str) -> float | None:
    """A positive number, ``None`` for an empty or zero cell.

    >>> _amount("1.5", "Price"), _amount("", "Price"), _amount("nan", "Price")
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
    name, count = row["AcceleratorName"], _amount(row["AcceleratorCount"], "AcceleratorCount")
    if not name or not count:
        return
    # GpuInfo is JSON or a Python literal; its per-GPU size is the first one, some vendors' files have it in GiB
    size = re.search(r"SizeInMiB\W+(\d+)", row.get("GpuInfo") or "")
    memory = None if size is None else float(size[1]) / (1024.0 if float(size[1]) > 1024.0 else 1.0)
    for column, term in (("Price", "on-demand"), ("SpotPrice", "spot")):
        price = _amount(row[column], column)
        if price is not None:
            yield name, memory, row["InstanceType"], row["Region"], term, price / count


def _gpuhunt(row: Mapping[str, str]) -> Iterator[_Entry]:
    """The price of one instance; a row without GPUs has none."""
    name, count = row["gpu_name"], _amount(row["gpu_count"], "gpu_count")
    price = _amount(row["price"], "price")
    if not name or not count or price is None:
        return
    if (spot := row["spot"].strip().lower()) not in ("true", "false"):
        raise ValueError(f"spot: expected True or False, got {row['spot']!r}")
    term, memory_gib = "spot" if spot == "true" else "on-demand", _amount(row["gpu_memory"], "gpu_memory")
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
    if seen is None:
        return datetime.date.fromtimestamp(path.stat().st_mtime).isoformat()
    try:
        return datetime.date.fromisoformat(seen).isoformat()
    except ValueError:
        raise InputError(f"--date: expected a day like 2026-10-01, got {seen!r}") from None


FloatArray = NDArray[np.float64]

Tiers = tuple[tuple[float, float], ...]
"""(prompt tokens from which it holds, USD per million tokens), ascending, the first from 0."""


@dataclass(frozen=True, slots=True)
class ApiPrice:
    """What one provider asks for one model.

    Parameters
    ----------
    provider, model
        Their ids.
    input_usd_per_mtok, output_usd_per_mtok, cached_usd_per_mtok
        By length of the prompt [USD per million tokens]; the cached price is that of the input where none is stated.
    request_usd
        For each request [USD].
    """

    provider: str
    model: str
    input_usd_per_mtok: Tiers
    output_usd_per_mtok: Tiers
    cached_usd_per_mtok: Tiers
    request_usd: float = 0.0

    @property
    def name(self) -> str:
        """``provider/model``."""
        return f"{self.provider}/{self.model}"

    def usd_per_request(
        self, inputs: FloatArray, outputs: FloatArray, cached_share: FloatArray, weight: FloatArray
    ) -> float:
        """Mean price of a request [USD].

        Parameters
        ----------
        inputs, outputs
            Tokens, shape (rows,).
        cached_share
            Share of each prompt that the cache supplies [1], shape (rows,).
        weight
            Share of each row, shape (rows,).
        """

        def price(tiers: Tiers) -> FloatArray:
            # by its prompt; a tier holds for prompts longer than its start
            starts, prices = np.array(tiers).T
            return np.asarray(prices[np.searchsorted(starts[1:], inputs, side="left")])

        new, cached, out = map(price, (self.input_usd_per_mtok, self.cached_usd_per_mtok, self.output_usd_per_mtok))
        each = inputs * ((1.0 - cached_share) * new + cached_share * cached) + outputs * out
        return self.request_usd + 1e-6 * float(each @ weight / weight.sum())


def read_api_prices(path: str | Path, wanted: Sequence[str] = (), today: datetime.date | None = None) -> list[ApiPrice]:
    """The prices of a file.

    Parameters
    ----------
    path
        YAML or JSON.
    wanted
        Models, as ``model`` or ``provider/model``; empty = all of the file that charge for tokens.
    today
        The day prices are looked up for.

    Raises
    ------
    InputError
        Not such a file, a price that is none, a model that is not in it.
    """
    source = printable(str(path))
    document = load_document(path)
    providers = document if isinstance(document, list) else [document]
    found: list[ApiPrice] = []
    for number, provider in enumerate(providers):
        place = source if len(providers) == 1 else f"{source}: [{number}]"
        if not isinstance(provider, Mapping) or not isinstance(provider.get("models"), list) or "id" not in provider:
            raise InputError(f"{place}: expected a provider with id and models", "The format is that of genai-prices.")
        found += _models(provider, place, today or datetime.date.today())
    if not wanted:
        return found
    chosen = []
    for name in wanted:
        of_name = [p for p in found if name in (p.name, p.model)]
        if not of_name:
            known = [p.name for p in found]
            raise InputError(
                f"{source}: no price of {printable(name)!r}{did_you_mean(name, known)}", f"It has {len(known)} models."
            )
        chosen += of_name
    return chosen


def _models(provider: Mapping[str, Any], place: str, today: datetime.date) -> Iterator[ApiPrice]:
    """Prices of one provider's models that charge for tokens."""
    for number, model in enumerate(provider["models"]):
        here = f"{place}: models[{number}]"
        if not isinstance(model, Mapping) or "id" not in model or "prices" not in model:
            raise InputError(f"{here}: expected a model with id and prices")
        prices = _current(model["prices"], f"{here}.prices", today)
        new, out = (_tiers(prices.get(key), f"{here}.prices.{key}") for key in ("input_mtok", "output_mtok"))
        if new is None or out is None:
            # an embedding or an image model, or a free one
            continue
        cached = _tiers(prices.get("cache_read_mtok"), f"{here}.prices.cache_read_mtok") or new
        each = _tiers(prices.get("requests_kcount"), f"{here}.prices.requests_kcount")
        names = printable(str(provider["id"])), printable(str(model["id"]))
        yield ApiPrice(*names, new, out, cached, each[0][1] / 1000.0 if each else 0.0)


def _current(prices: Any, place: str, today: datetime.date) -> Mapping[str, Any]:
    """The prices that hold on a day: later entries before earlier ones, times of day left aside."""
    if isinstance(prices, Mapping):
        return prices
    for entry in reversed(prices if isinstance(prices, list) else []):
        if not isinstance(entry, Mapping) or not isinstance(entry.get("prices"), Mapping):
            raise InputError(f"{place}: expected entries with prices")
        constraint = entry.get("constraint") or {}
        if "start_time" in constraint:
            continue
        try:
            begins = datetime.date.fromisoformat(str(constraint.get("start_date", "0001-01-01")))
        except ValueError:
            raise InputError(f"{place}: {constraint.get('start_date')!r} is not a day") from None
        if begins <= today:
            found: Mapping[str, Any] = entry["prices"]
            return found
    raise InputError(f"{place}: no price that holds on {today.isoformat()}")


def _tiers(value: Any, place: str) -> Tiers | None:
    """A number, or a base price with tiers."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        return ((0.0, _positive(value, place)),)
    entries = value.get("tiers") or []
    if not isinstance(entries, list) or not all(isinstance(t, Mapping) for t in entries):
        raise InputError(f"{place}.tiers: expected a list of start and price")
    later = [
        (_positive(t.get("start"), f"{place}.tiers"), _positive(t.get("price"), f"{place}.tiers")) for t in entries
    ]
    return ((0.0, _positive(value.get("base"), f"{place}.base")), *sorted(later))


def _positive(value: Any, place: str) -> float:
    """A number that is not negative."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value <= MOST:
        raise InputError(f"{place}: expected a price, got {printable(str(value))!r}")
    return float(value)
