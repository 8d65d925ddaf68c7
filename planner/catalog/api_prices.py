"""Prices per token of model APIs, read from a file in genai-prices' format (github.com/pydantic/genai-prices).

A file is a provider's (YAML, as in ``prices/providers``), or a list of them (JSON, as ``prices/data.json``). Of prices with a
start date the latest that has begun counts, of prices by time of day the one without; of tiers by the length of a prompt each
request pays its own.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.errors import InputError, did_you_mean
from planner.shared.documents import load_document, printable
from planner.units import MOST

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
        new, cached, out = (
            _price_at(tiers, inputs)
            for tiers in (self.input_usd_per_mtok, self.cached_usd_per_mtok, self.output_usd_per_mtok)
        )
        each = inputs * ((1.0 - cached_share) * new + cached_share * cached) + outputs * out
        return self.request_usd + 1e-6 * float(each @ weight / weight.sum())


def _price_at(tiers: Tiers, inputs: FloatArray) -> FloatArray:
    """Price of each request, by its prompt; a tier holds for prompts longer than its start."""
    starts, prices = np.array(tiers).T
    return np.asarray(prices[np.searchsorted(starts[1:], inputs, side="left")])


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
