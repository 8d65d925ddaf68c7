"""Numbers with units, in and out: "500ms", "80GB", "2h", "8k" <-> SI floats. Inside the library everything is SI."""

from __future__ import annotations

import math
import re

from planner.errors import InputError

HOUR_S, DAY_S, WEEK_S = 3600.0, 86_400.0, 604_800.0
"""An hour, a day and a week [s]."""

HOURS_PER_DAY, HOURS_PER_WEEK = round(DAY_S / HOUR_S), round(WEEK_S / HOUR_S)
"""Rates of a profile: one an hour of a day, or of a week."""

GIB = 2.0**30
"""A GiB [bytes]."""

LEAST_RATE, MOST_RATE = 1e-9, 1e12
"""No rate of requests asked about is smaller or larger [1/s]: the arithmetic would end before the question means anything."""

RATE_RULE = f"must be a positive number, at least {LEAST_RATE:g} requests/s (one in 32 years), at most {MOST_RATE:g}"
"""What :func:`is_rate` asks, in words."""

_NUMBER = re.compile(r"^\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-zµ%/]*)\s*$")

SECONDS = {
    "": 1.0, "s": 1.0, "sec": 1.0, "secs": 1.0, "second": 1.0, "seconds": 1.0,
    "ms": 1e-3, "msec": 1e-3, "millis": 1e-3, "milliseconds": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9,
    "m": 60.0, "min": 60.0, "mins": 60.0, "minute": 60.0, "minutes": 60.0,
    "h": 3600.0, "hr": 3600.0, "hour": 3600.0, "hours": 3600.0, "d": 86400.0, "day": 86400.0, "days": 86400.0,
}  # fmt: skip
"""What people write behind a duration -> its length [s]."""

TIME_UNITS = ("s", "ms", "us", "ns")
"""Those that files of measurements have."""

_BYTES = {
    "": 1.0, "b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
    "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30, "tib": 2.0**40,
}  # fmt: skip
"""What people write behind a size -> bytes."""

_COUNT = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "ki": 1024.0, "mi": 1024.0**2}
"""What people write behind a number of tokens or requests -> its factor."""

_RATE = re.compile(
    r"^\s*((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([kKmM]?)\s*"
    r"(?:(rps|qps|rpm|rph|tps|tpm)|(?:req|reqs|requests?|r|q|queries|tok|toks|tokens?)?\s*(?:/|\bper\b)\s*([A-Za-z]+))?\s*$",
    re.IGNORECASE,
)
_PER = {"rpm": 60.0, "tpm": 60.0, "rph": HOUR_S}
"""A rate by its abbreviation -> the time it is counted over [s]; others are a second's."""


def _parse(text: str | float, table: dict[str, float], what: str, name: str, example: str) -> float:
    """A number with a unit of the table, in SI."""
    if isinstance(text, bool):
        raise InputError(f"{name}: {text!r} is not {what}", f"Write it as {example}.")
    if isinstance(text, (int, float)):
        value = float(text) if abs(text) < 1e300 else math.inf
    else:
        match = _NUMBER.match(text) if isinstance(text, str) else None
        unit = match.group(2).lower() if match else None
        if match is None or unit not in table:
            told = _comma(text) if isinstance(text, str) else ""
            raise InputError(f"{name}: {text!r} is not {what}{told}", f"Write it as {example}.")
        value = float(match.group(1)) * table[unit]
    if not math.isfinite(value):
        raise InputError(f"{name}: {str(text)[:40]!r} is not finite", f"Write it as {example}.")
    if not is_measurable(value):
        raise InputError(f"{name}: {text!r} is beyond anything that is counted or measured ({LEAST:g} to {MOST:g})")
    return value


def _comma(text: str) -> str:
    """What to write for a number with a comma: of thousands where three digits follow, else of decimals.

    >>> _comma("1,000"), _comma("0,5s"), _comma("fast")
    ('; write 1000', '; write 0.5s', '')
    """
    found = re.fullmatch(r"\s*(\d+),(\d+)([A-Za-z%]*)\s*", text)
    if found is None:
        return ""
    point = "" if len(found[2]) == 3 and found[1] != "0" else "."
    return f"; write {found[1]}{point}{found[2]}{found[3]}"


LEAST, MOST = 1e-15, 1e15
"""Sizes of numbers people give, zero aside: what others come to by squares and quotients stays a number."""


def as_number(text: str) -> float:
    """`text` as a number, NaN where it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def is_measurable(value: float) -> bool:
    """Whether a number is zero or of a size that things have.

    >>> is_measurable(-2.5), is_measurable(0.0), is_measurable(4.9e-324), is_measurable(math.nan)
    (True, True, False, False)
    """
    return value == 0.0 or LEAST <= abs(value) <= MOST


def number_of(value: object) -> float | None:
    """A number of a size that things have, as it is or as text; ``None`` for all else that a file or a server may say.

    >>> number_of("2.5"), number_of(True), number_of("[N/A]")
    (2.5, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if is_measurable(number) else None


def is_rate(per_s: float) -> bool:
    """Whether a fleet can be asked about so many requests a second.

    >>> is_rate(40.0), is_rate(4.9e-324), is_rate(math.inf)
    (True, False, False)
    """
    return LEAST_RATE <= per_s <= MOST_RATE


def parse_duration(text: str | float, name: str = "duration") -> float:
    """Seconds from ``0.5``, ``"500ms"``, ``"20s"``, ``"2h"``; a bare number is seconds.

    >>> parse_duration("500ms"), parse_duration("2h"), parse_duration(0.25)
    (0.5, 7200.0, 0.25)
    """
    seconds = _parse(text, SECONDS, "a duration", name, "0.5, 500ms, 20s or 2h")
    if abs(seconds) > MOST_SECONDS:
        raise InputError(f"{name}: {seconds:g} s is longer than 30,000 years")
    return seconds


MOST_SECONDS = 1e12
"""Durations beyond are refused: squared, they are no numbers any more [s]."""


def parse_bytes(text: str | float, name: str = "size") -> float:
    """Bytes from ``"80GB"`` (decimal) or ``"80GiB"`` (binary); a bare number is bytes.

    >>> parse_bytes("80GB"), parse_bytes("1KiB")
    (80000000000.0, 1024.0)
    """
    return _parse(text, _BYTES, "a size", name, "80GB or 80GiB")


def parse_tokens(text: str | float, name: str = "tokens") -> float:
    """Tokens from ``8192``, ``"8k"`` (8,000) or ``"8Ki"`` (8,192).

    >>> parse_tokens("8Ki"), parse_tokens("128k")
    (8192.0, 128000.0)
    """
    return _parse(text, _COUNT, "a number of tokens", name, "8192, 8k (8,000) or 8Ki (8,192)")


def parse_number(text: str | float, name: str = "value") -> float:
    """A plain finite number.

    >>> parse_number("1e3")
    1000.0
    """
    return _parse(text, {"": 1.0}, "a number", name, "0.5 or 1e3")


def parse_rate(text: str | float, name: str = "rate", example: str = "100, 1k, 100rps or 1000/min") -> float:
    """A rate [1/s]; a bare number is per second.

    >>> parse_rate("1k"), parse_rate("1200/min"), parse_rate("100rps"), parse_rate("2k tok/s"), parse_rate("36000 per hour")
    (1000.0, 20.0, 100.0, 2000.0, 10.0)
    """
    found = _RATE.match(text) if isinstance(text, str) else None
    if found is None:
        return _parse(text, {"": 1.0}, "a rate", name, example)
    number, thousands, word, per = found.groups()
    seconds = _PER.get((word or "").lower(), 1.0) if per is None else SECONDS.get(per.lower())
    if seconds is None:
        raise InputError(f"{name}: {text!r} is not a rate", f"Write it as {example}.")
    return _parse(float(number) * _COUNT[thousands.lower()] / seconds, {"": 1.0}, "a rate", name, example)


def parse_quantile(text: str | float, name: str = "quantile") -> float:
    """A quantile as a share of one, as a percentile, or as it is called; 0 is the mean.

    >>> [parse_quantile(written) for written in (0.99, "99", "p99", "P99.9", "95%", "median", "mean")]
    [0.99, 0.99, 0.99, 0.999, 0.95, 0.5, 0.0]
    """
    word = text.strip().lower() if isinstance(text, str) else text
    if word in ("median", "mean", "avg", "average"):
        return 0.5 if word == "median" else 0.0
    if isinstance(word, str) and re.match(r"p\d", word):
        word = f"{word[1:].removesuffix('%')}%"
    share = _parse(word, {"": 1.0, "%": 0.01}, "a quantile", name, "0.99, 99 or p99")
    # to a digit no percentile is told by: 99.9 / 100 is not the number that 0.999 is
    return round(share if share < 1.0 or "%" in str(word) else share / 100.0, 12)


def parse_fraction(text: str | float, name: str = "fraction") -> float:
    """A fraction of one from ``0.3`` or ``"30%"``.

    >>> parse_fraction("95%"), parse_fraction(0.5)
    (0.95, 0.5)
    """
    found = _parse(text, {"": 1.0, "%": 0.01}, "a fraction", name, "0.3 or 30%")
    # 95 times a hundredth is not 0.95 to the last bit
    return float(f"{found:.15g}") if isinstance(text, str) else found


_DURATIONS = (
    (1e-6, "ns", 1e9), (1e-3, "us", 1e6), (1.0, "ms", 1e3), (600.0, "s", 1.0), (7200.0, "min", 1.0 / 60.0),
    (math.inf, "h", 1.0 / 3600.0),
)  # fmt: skip
"""(below this many seconds, unit, units of a second)."""


def round_up(value: float) -> float:
    """Up to two digits, so that what is printed is what was asked.

    >>> round_up(0.1866), round_up(0.19), round_up(2.01)
    (0.19, 0.19, 2.1)
    """
    scale = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / scale - 1e-9) * scale:.3g}")


def format_duration(seconds: float) -> str:
    """Three significant digits and the unit people read.

    >>> [format_duration(x) for x in (3.2e-5, 0.0078, 0.4991, 2.5, 95.0, 9000.0, float("inf"))]
    ['32 us', '7.8 ms', '499 ms', '2.5 s', '95 s', '2.5 h', 'never']
    """
    if math.isinf(seconds):
        return "never"
    unit, scale = next((unit, scale) for limit, unit, scale in _DURATIONS if abs(seconds) < limit)
    return f"{_significant(seconds * scale)} {unit}"


def format_band(seconds: float, low: float, high: float) -> str:
    """A time with the band it may lie in, in one unit.

    >>> format_band(0.341, 0.32, 0.38), format_band(0.9, 0.8, 1.25), format_band(2.0, 1.0, float("inf"))
    ('341 ms (320-380)', '900 ms (800-1,250)', '2 s (1-never)')
    """
    told = format_duration(seconds)
    number, _, unit = told.partition(" ")
    if not unit:
        return told
    scale = next(scale for limit, name, scale in _DURATIONS if name == unit)
    ends = [_significant(x * scale) if math.isfinite(x) else "never" for x in (low, high)]
    return f"{number} {unit} ({'-'.join(ends)})"


def format_bytes(value: float) -> str:
    """Decimal units.

    >>> format_bytes(8.5e10), format_bytes(70272)
    ('85 GB', '70.3 kB')
    """
    for limit, unit, scale in ((1e3, "B", 1.0), (1e6, "kB", 1e-3), (1e9, "MB", 1e-6), (1e12, "GB", 1e-9)):
        if abs(value) < limit:
            return f"{_significant(value * scale)} {unit}"
    return f"{_significant(value * 1e-12)} TB"


def format_count(value: float) -> str:
    """Thousands separated, no more decimals than matter.

    >>> format_count(28185), format_count(7.8345), format_count(0.0123)
    ('28,185', '7.83', '0.0123')
    """
    if abs(value) < 1e15 and value == int(value):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else _significant(value)


def format_gpus(count: float) -> str:
    """A number of GPUs.

    >>> format_gpus(1), format_gpus(1024)
    ('1 GPU', '1,024 GPUs')
    """
    return f"{count:,.0f} GPU{'' if count == 1 else 's'}"


def format_percent(fraction: float) -> str:
    """One decimal below 10%, none above; a half counts upwards.

    >>> format_percent(0.0423), format_percent(0.716), format_percent(0.985), format_percent(-0.125)
    ('4.2%', '72%', '99%', '-13%')
    """
    percent = 100.0 * fraction
    whole = math.copysign(math.floor(abs(percent) + 0.5 + 1e-9), percent)
    return f"{percent:.1f}%" if abs(percent) < 9.95 else f"{whole:.0f}%"


def format_chance(share: float) -> str:
    """A chance as people read it; a half counts upwards.

    >>> [format_chance(c) for c in (0.994, 0.985, 0.8049)]
    ['over 99%', '99%', '80%']
    """
    return "over 99%" if share > 0.99 else f"{math.floor(100.0 * share + 0.5 + 1e-9)}%"


def format_share(share: float) -> str:
    """A share of requests near one: as many decimals as tell how many are left.

    >>> format_share(0.713), format_share(0.9934), format_share(0.99951), format_share(1.0)
    ('71.3%', '99.34%', '99.951%', '100%')
    """
    left = 1.0 - share
    decimals = 0 if left < 5e-6 else 1 if left >= 0.01 else 2 if left >= 0.001 else 3
    return f"{100.0 * share:.{decimals}f}%"


def format_usd(value: float) -> str:
    """Dollars; cents only below 1,000.

    >>> format_usd(2.99), format_usd(26192.4)
    ('$2.99', '$26,192')
    """
    return f"${value:,.0f}" if abs(value) >= 1000 else f"${value:,.2f}"


def _significant(value: float) -> str:
    if value == 0.0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
