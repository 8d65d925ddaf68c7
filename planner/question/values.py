"""How the value of an option is written, read and checked: one :class:`Kind` per type of value, with its unit."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.errors import InputError, did_you_mean, refuse
from planner.machine.hardware import GROUPS
from planner.promise import GOODPUT, PROMISE_METRICS, Promise
from planner.shared.documents import parse_json, printable, read_text
from planner.shared.paths import at_home
from planner.units import parse_duration, parse_fraction, parse_number, parse_quantile, parse_rate, parse_tokens

SWITCHED = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def as_switch(value: Any) -> bool | None:
    """True or false, also as a word; ``None`` where it is neither."""
    return value if isinstance(value, bool) else SWITCHED.get(str(value).lower())


def read_measured(value: Any, name: str) -> bool | dict[str, Any]:
    """``true``, ``false``, a file of ``compress measure``, or what was kept of one.

    Returns
    -------
    bool or dict
        Of a file: ``boundary``, ``gamma``, ``source``, ``latency_s`` (quantiles and ``mean`` over all borderline prompts) and
        ``categories``: name -> ``borderline``, ``p_c``, ``p_c_low``, ``p_c_high``; all of them together are ``all``.
    """
    if (switched := as_switch(value)) is not None:
        return switched
    if isinstance(value, Mapping):
        return _kept(value, name)
    text = str(value)
    hint = "Make it: fleetopt compress measure --prompts FILE --boundary B --gamma G --format json -o measured.json"
    try:
        found = parse_json(read_text(path := at_home(text)), printable(text))
    except InputError as error:
        raise InputError(f"{error.message}; expected true, false or such a file", hint) from None
    if not isinstance(found, dict) or found.get("kind") != "fleetopt-compression":
        raise InputError(f"{text}: not a table of fleetopt compress measure", hint)
    try:
        total, rows = found["total"], found["categories"]
        table = {
            "boundary": found["boundary"],
            "gamma": found["gamma"],
            "source": path.name,
            "latency_s": total["latency_s"],
            "categories": {
                k: {"borderline": row["requests"], **{key: row[key] for key in ("p_c", "p_c_low", "p_c_high")}}
                for k, row in {**rows, "all": total}.items()
                if row["requests"]
            },
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{text}: incomplete ({error} is missing)", hint) from None
    if not table["categories"]:
        low, high = found["boundary"], found["gamma"] * found["boundary"]
        raise InputError(
            f"{text}: none of its prompts lies between {low:,} and {high:,.0f} tokens", "Measure where the boundary is."
        )
    return _kept(table, text)


def _kept(table: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The table, every share and time of it checked."""
    categories = table.get("categories")
    if not isinstance(categories, Mapping) or "all" not in categories:
        raise InputError(f"{name}: expected true, false, a file of compress measure, or its categories with `all`")
    problems = [
        f"{name}: {k} must be a positive number" for k in ("boundary", "gamma") if not _number(table.get(k), above=0.0)
    ]
    for category, row in categories.items():
        shares = [row.get(k) if isinstance(row, Mapping) else None for k in ("p_c_low", "p_c", "p_c_high")]
        if not all(_number(v, least=0.0, most=1.0) for v in shares) or shares != sorted(shares, key=float):  # type: ignore[arg-type]
            problems.append(f"{name}: categories.{category}: p_c and its interval must lie in [0, 1], in order")
    times = table.get("latency_s") or {}
    problems += [
        f"{name}: latency_s.{k} must be a time in s, got {v!r}" for k, v in times.items() if not _number(v, least=0.0)
    ]
    refuse(problems)
    return {k: table[k] for k in ("boundary", "gamma", "source", "latency_s", "categories") if k in table}


def _number(value: Any, above: float = -math.inf, least: float = -math.inf, most: float = math.inf) -> bool:
    """Whether it is a finite number in these limits."""
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return usable and value > above and least <= value <= most


def category_shares(measured: Mapping[str, Any], categories: Sequence[str], level: str = "point") -> dict[str, float]:
    """Probability that a prompt of each category can be compressed.

    Parameters
    ----------
    measured
        As :func:`read_measured` gives it.
    categories
        Of the workload.
    level
        ``point``, or ``low`` or ``high`` end of the 95% interval.

    Returns
    -------
    dict
        Category -> share [1]; a category that was not measured has that of all prompts.
    """
    key = {"point": "p_c", "low": "p_c_low", "high": "p_c_high"}[level]
    table = measured["categories"]
    return {name: float(table.get(name, table["all"])[key]) for name in categories}


def span_of(measured: Mapping[str, Any]) -> tuple[float, float, float]:
    """Low end, share and high end of all borderline prompts [1]."""
    row = measured["categories"]["all"]
    return row["p_c_low"], row["p_c"], row["p_c_high"]


MOST = 10**12
"""No count of tokens, requests or GPUs is larger: twenty million times it are whole numbers of 64 bits yet."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of value.

    Parameters
    ----------
    unit
        What it is, with its unit, in words.
    read
        (value as given, name of the option) -> the value in SI units; raises InputError.
    python
        Its type as an argument of a Python function.
    flag
        Its type on the command line: ``str``, ``int``, ``float``, or ``list`` where the flag may be repeated.
    many
        Whether it holds several items, written ``a+b`` as one value of ``--set``.
    bare
        What its flag alone stands for, where a value may be left out.
    example
        A value as people write it.
    """

    unit: str
    read: Callable[[Any, str], Any]
    python: str
    flag: type = str
    many: bool = False
    bare: str = ""
    example: str = ""


Check = Callable[[str, Any], Iterable[str]]
"""(name, value) -> what is wrong with it, a line each."""


def rule(text: str, holds: Callable[[Any], bool]) -> Check:
    """A check of one value: ``NAME: must be at least 1, got 0``."""
    return lambda name, value: () if holds(value) else (f"{name}: {text}, got {value!r}{_meant(text, value)}",)


def _meant(text: str, value: Any) -> str:
    """The spelling of a share that was given as a number of percent."""
    percent = isinstance(value, float) and 2.0 <= value <= 100.0 and text.startswith("must lie")
    return f"; write {value:g}% for {value:g} in a hundred" if percent else ""


def each(text: str, holds: Callable[[Any], bool]) -> Check:
    """A check of every item of a list, told once, or of every entry of a mapping, told by its key."""

    def check(name: str, value: Any) -> Iterable[str]:
        if isinstance(value, Mapping):
            return [f"{name}.{k}: {text}, got {v!r}{_meant(text, v)}" for k, v in value.items() if not holds(v)]
        items = value if isinstance(value, tuple) else (value,)
        told = list(value) if isinstance(value, tuple) else value
        return () if all(map(holds, items)) else (f"{name}: {text}, got {told!r}{_meant(text, told)}",)

    return check


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"expected text, got {value!r}")
    return value


def _speculation(value: Any, name: str) -> str:
    """METHOD:key=value,..., or a mapping with ``method`` and those keys, in which lists stand for values by position.

    >>> _speculation({"method": "eagle3", "accept": [0.8, 0.7, 0.6]}, "speculate")
    'eagle3:accept=[0.8,0.7,0.6]'
    """
    if not isinstance(value, Mapping):
        return _text(value, name)
    rest = {
        k: f"[{','.join(map(str, v))}]" if isinstance(v, (list, tuple)) else v
        for k, v in value.items()
        if k != "method"
    }
    return f"{value.get('method', '')}:{','.join(f'{k}={v}' for k, v in rest.items())}"


def _items(value: Any) -> list[Any]:
    """What is listed: items of a sequence or one alone, texts taken apart at commas."""
    given = value if isinstance(value, (list, tuple)) else [value]
    return [part for item in given for part in (map(str.strip, item.split(",")) if isinstance(item, str) else [item])]


def _names(value: Any, name: str) -> tuple[str, ...]:
    """One name, several by comma, or a list of them."""
    names = _items(value)
    if not all(isinstance(v, str) and v for v in names):
        raise InputError(f"expected a GPU name or a list of them, got {value!r}")
    return tuple(dict.fromkeys(names))


def _whole(parse: Callable[[Any, str], float]) -> Callable[[Any, str], int]:
    def read(value: Any, name: str) -> int:
        number = parse(value, name)
        if number != int(number):
            raise InputError(f"expected a whole number, got {value!r}")
        if abs(number) > MOST:
            raise InputError(f"{value!r} is beyond anything that can be counted here ({MOST:.0e})")
        return int(number)

    return read


def _count(value: Any, name: str) -> float:
    """A number of things: ``12``, ``1k``, and of spares ``N+1``."""
    spares = re.fullmatch(r"\s*[nN]\s*\+\s*(\d+)\s*", value) if isinstance(value, str) else None
    if spares is not None:
        return float(spares[1])
    try:
        return parse_tokens(value, name)
    except InputError:
        raise InputError(f"{name}: {value!r} is not a whole number", "Write it as 12 or 1k.") from None


def _list(parse: Callable[[Any, str], float]) -> Callable[[Any, str], tuple[float, ...]]:
    """Reads ``2048,4096``, one number or a list as sorted distinct numbers."""

    def read(value: Any, name: str) -> tuple[float, ...]:
        items = value.split(",") if isinstance(value, str) else value
        items = [items] if isinstance(items, (int, float)) else items
        if not isinstance(items, (list, tuple)) or not items:
            raise InputError(f"expected a list of numbers, got {value!r}")
        return tuple(sorted({parse(v, name) for v in items}))

    return read


def _whole_list(parse: Callable[[Any, str], float]) -> Callable[[Any, str], tuple[int, ...]]:
    """Reads ``512,1024``, one number, or a list of either as sorted distinct whole numbers."""
    read_one = _whole(parse)

    def read(value: Any, name: str) -> tuple[int, ...]:
        return tuple(sorted({read_one(part, name) for part in _items(value)}))

    return read


def _tp_sizes(value: Any, name: str) -> tuple[int, ...]:
    """``"all"``, ``"1,2,4"`` or one size as sizes of tensor-parallel groups."""
    if isinstance(value, (str, list, tuple)) and value in ("all", ["all"], ("all",)):
        return GROUPS
    try:
        return _whole_list(parse_number)(value, "tp")
    except InputError as error:
        raise InputError(error.message, "Write a number of GPUs, several (1,2,4), or all.") from None


def _by_gpu(value: Any, name: str) -> dict[str, float]:
    """GPU -> number, from pairs in a file, from ``GPU=number``, several by comma, or from a list of it."""
    if not isinstance(value, Mapping):
        pairs: dict[str, Any] = {}
        for item in _items(value):
            gpu, _, number = map(str.strip, str(item).replace(":", "=", 1).partition("="))
            if not (gpu and number):
                raise InputError(f"expected GPU=number, or GPU: number pairs in a file; {item!r} is not GPU=NUMBER")
            if gpu in pairs:
                raise InputError(f"{gpu} is given twice")
            pairs[gpu] = number
        value = pairs
    return {str(k): parse_number(_money(v), f"{name}.{k}") for k, v in value.items()}


def _money(value: Any) -> Any:
    """A price without its currency and hour: ``$2.50/h``."""
    found = re.fullmatch(r"\s*\$\s*(\d*\.?\d+)\s*(?:/\s*(?:h|hr|hour))?\s*", value) if isinstance(value, str) else None
    return value if found is None else found[1]


def _counts_by_gpu(value: Any, name: str) -> dict[str, int]:
    return {k: int(v) for k, v in _by_gpu(value, name).items()}


def _shares(value: Any, name: str) -> float | dict[str, float]:
    """One share, or shares by category: a mapping, or ``conv=0.6,code=0.2``."""
    items = re.split("[,+]", value) if isinstance(value, str) and "=" in value else value
    if isinstance(items, (list, tuple)):
        items = dict(str(item).split("=", 1) for item in items if "=" in str(item))
    if isinstance(items, Mapping):
        return {str(k): parse_fraction(v, f"{name}.{k}") for k, v in items.items()}
    return parse_fraction(items, name)


_CALLED = {
    word: metric.removesuffix("_s")
    for metric, told in PROMISE_METRICS.items()
    for word in (metric.removesuffix("_s"), *told.also)
}
"""What people call a latency that can be promised -> the name of its option."""

_PROMISE = re.compile(
    rf"^\s*(?:({'|'.join(sorted(_CALLED, key=len, reverse=True))})\s*(?::|<=|=|<)\s*)?"
    r"(?:(p\d+(?:\.\d+)?|mean|avg|average|median)\s*(?:<=|=|<|:)\s*)?"
    r"(?:<=|<)?\s*(.+?)\s*$",
    re.IGNORECASE,
)


def parse_promise(text: str | float, metric: str = "ttft", quantile: float = 0.99, scope: str = "pool") -> Promise:
    """A promise as people write it: ``0.5``, ``500ms``, ``p95=300ms``, ``tpot:p95=40ms``, ``ttft=500ms``.

    >>> parse_promise("ttft:p95=300ms")
    Promise(metric='ttft_s', limit_s=0.3, quantile=0.95, scope='pool')
    >>> parse_promise(0.05, "tpot").label, parse_promise("mean=8ms", "tpot").told, parse_promise("30tok/s", "tpot").limit_s
    ('P99 TPOT', 'mean TPOT <= 8 ms', 0.03333333333333333)
    """
    if not isinstance(text, str):
        return Promise(f"{metric}_s", _limit(text, metric), quantile, scope)
    match = _PROMISE.match(text)
    if match is None:
        raise InputError(f"{metric}: {text!r} is not a promise", "Write it as 500ms, p95=300ms or tpot:p95=40ms.")
    named, level, limit = match.groups()
    if level is not None:
        quantile = parse_quantile(level)
    word = (named or metric).lower()
    name = _CALLED.get(word, word)
    if name == "tpot" and re.search(r"tok\w*\s*/", limit, re.IGNORECASE):
        # of one user, as people say how fast answers are to be read
        return Promise("tpot_s", 1.0 / parse_rate(limit, name), quantile, scope)
    return Promise(f"{name}_s", _limit(limit, name), quantile, scope)


def _limit(text: str | float, metric: str) -> float:
    """The limit of a promise [s]; a bare number that can only be milliseconds is refused, with its spelling."""
    limit = parse_duration(text, metric)
    bare = not isinstance(text, str) or text.strip()[-1:] in "0123456789."
    if bare and limit > PROMISE_METRICS[f"{metric}_s"].bare_up_to_s:
        raise InputError(
            f"{limit:,.10g} s of {metric.upper()}? A bare number is seconds: write {limit:.10g}ms "
            f"({limit:.10g}s if seconds are meant)"
        )
    return limit


_SHARE = re.compile(r"^\s*([^:=,]*[^:=,\s])\s*:\s*(.*=.*)$")
_GOODPUT_HINT = "Write it as 99%:ttft=500ms,tpot=50ms: the share of the requests, then two or three limits."


def parse_goodput(value: str | Mapping[str, Any], share: float = 0.99, scope: str = "pool") -> Promise:
    """A promise about several latencies of the same request: ``99%:ttft=500ms,tpot=50ms``, or a mapping with ``share``.

    >>> parse_goodput("95%:tpot=50ms,ttft=0.5").told
    '95% within TTFT 500 ms and TPOT 50 ms'
    >>> parse_goodput({"share": 0.9, "ttft": "1s", "e2e": 20}).told
    '90% within TTFT 1 s and E2E 20 s'
    """
    if isinstance(value, Mapping):
        parts = [(str(k), v) for k, v in value.items() if k != "share"]
        level = value.get("share")
    elif isinstance(value, str):
        named = _SHARE.match(value)
        level, rest = named.groups() if named else (None, value)
        parts = [(name, limit) for name, _, limit in (part.partition("=") for part in rest.split(","))]
    else:
        raise InputError(f"goodput: {value!r} is not a promise", _GOODPUT_HINT)
    limits: dict[str, float] = {}
    for spelled, limit in parts:
        word = spelled.strip().lower().removesuffix("_s")
        metric = _CALLED.get(word, "")
        if not metric or limit in ("", None):
            told = "" if metric else did_you_mean(word, _CALLED)
            raise InputError(
                f"goodput: {str(spelled).strip() or value!r} is no limit on ttft, tpot or e2e{told}", _GOODPUT_HINT
            )
        if f"{metric}_s" in limits:
            raise InputError(f"goodput: {metric} is limited twice", _GOODPUT_HINT)
        limits[f"{metric}_s"] = _limit(limit, metric)
    if len(limits) < 2:
        alone = next(iter(limits), "ttft_s").removesuffix("_s")
        raise InputError(f"goodput: {value!r} limits only {alone}", f"{_GOODPUT_HINT} One alone is --{alone}.")
    kept = share if level is None else parse_fraction(level, "goodput")
    if not 0.0 < kept < 1.0:
        raise InputError(f"goodput: a share of {level} of the requests is not between 0 and 1", _GOODPUT_HINT)
    return Promise.joint(limits, kept, scope)


def _promises(value: Any, name: str) -> tuple[Promise, ...]:
    """Promises as records, as mappings of their fields, or as people write them."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise InputError(f"expected a list of promises, got {value!r}")
    result = []
    for item in value:
        if isinstance(item, Promise):
            result.append(item)
        elif isinstance(item, Mapping):
            if item.get("metric") == GOODPUT and isinstance(item.get("limits_s"), Mapping):
                level = parse_fraction(item.get("quantile", 0.99), "quantile")
                result.append(parse_goodput(item["limits_s"], level, str(item.get("scope", "pool"))))
                continue
            unknown = set(item) - {"metric", "limit_s", "quantile", "scope"}
            if unknown or "metric" not in item or "limit_s" not in item:
                raise InputError(f"a promise has metric, limit_s, quantile and scope, got {dict(item)!r}")
            limit = parse_duration(item["limit_s"], "limit_s")
            level = parse_quantile(item.get("quantile", 0.99), "quantile")
            result.append(Promise(str(item["metric"]), limit, level, str(item.get("scope", "pool"))))
        else:
            result.append(parse_promise(item))
    return tuple(result)


def _limits(value: Any, name: str) -> tuple[Any, ...]:
    """Promises as written, several quantiles of one (``p50=200ms,p99=1s``) taken apart."""
    items = value if isinstance(value, (list, tuple)) else (value,)
    parts = [str(item).split(",") if isinstance(item, str) and name != "goodput" else [item] for item in items]
    return tuple(p for item, each in zip(items, parts, strict=True) for p in (each if _levels(each) else [item]))


def _levels(parts: Sequence[Any]) -> bool:
    """Whether these are several promises, each with its quantile."""
    return len(parts) > 1 and all("=" in part or "<" in part or ":" in part for part in parts)


def _switch(value: Any, name: str) -> bool:
    if (found := as_switch(value)) is None:
        raise InputError(f"expected true or false, got {value!r}")
    return found


_WORD, _WHOLE = "float | str", "int | str"

SWITCH = Kind("true or false", _switch, "bool", bare="true", example="true")
_MEASURED = "true, false, or a file of `compress measure`"
COMPRESS = Kind(_MEASURED, read_measured, "bool | str | Mapping[str, Any]", bare="true")
TEXT = Kind("text", _text, "str")
SPECULATION = Kind("text, or its parts by name", _speculation, "str | Mapping[str, Any]")
RATE = Kind("number [1/s]: 100, 1k, 100rps or 1000/min", parse_rate, _WORD, example="20")
TOKEN_RATE = Kind("tokens/s: 2000, 2k tok/s", parse_rate, _WORD, example="2000tok/s")
NUMBER = Kind("number", parse_number, _WORD, example="1")
COUNT = Kind("whole number", _whole(_count), _WHOLE, example="1")
TOKENS = Kind("tokens: 8192, 8k or 8Ki", _whole(parse_tokens), _WHOLE, example="8k")
FRACTION = Kind("share: 0.3 or 30%", parse_fraction, _WORD, example="30%")
QUANTILE = Kind("quantile: 0.99, 99 or p99", parse_quantile, _WORD, example="99")
DURATION = Kind("time [s]: 0.5 or 500ms", parse_duration, _WORD, example="500ms")
GPUS = Kind("names", _names, "str | Sequence[str]", list, many=True, example="h100")
_SIZES = f"{_WHOLE} | Sequence[int]"
TP = Kind("whole number, a list of them, or all", _tp_sizes, _SIZES, list, many=True, example="all")
TP_SIZES = Kind("list of whole numbers", _tp_sizes, "Sequence[int]", many=True)
BUDGETS = Kind("tokens, a list: 1024,2048", _whole_list(parse_tokens), _SIZES, list, many=True, example="2048")
TOKEN_LIST = Kind("tokens, a list", _list(parse_tokens), f"{_WORD} | Sequence[float]", many=True, example="4096")
GAMMAS = Kind("numbers, a list", _list(parse_number), f"{_WORD} | Sequence[float]", many=True, example="1,1.5")
GPU_PRICES = Kind("GPU=number [USD/hour]", _by_gpu, "Mapping[str, float]", list, many=True, example="h100=2.5")
GPU_COUNTS = Kind("GPU=number of GPUs", _counts_by_gpu, "Mapping[str, int]", list, many=True, example="h100=640")
_BY_CATEGORY = f"{_WORD} | Mapping[str, float | str]"
SHARES = Kind("share, or category=share,...", _shares, _BY_CATEGORY, many=True, example="60%")
_TIMES = "time [s], with its quantile or not: 0.5, 500ms, p95=300ms, mean=200ms"
PROMISE = Kind(_TIMES, _limits, f"{_WORD} | Sequence[float | str]", list, example="500ms")
_SHARED = "99%:ttft=500ms,tpot=50ms"
_JOINT = "str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]]"
GOODPUTS = Kind(f"share and limits: {_SHARED}", _limits, _JOINT, list, example=_SHARED)
PROMISES = Kind("list of promises: metric, limit_s, quantile, scope", _promises, "Sequence[Promise]")
