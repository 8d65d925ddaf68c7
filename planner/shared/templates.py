"""Objects as they are written, with places to be filled: the YAML beside a module, a template by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from planner.errors import InputError
from planner.shared.documents import shipped
from planner.shared.record import placed

_PLACE = re.compile(r"\$(?:(?P<brace>\{)?(?P<name>[a-z]\w*(?:\.[a-z]\w*)*)(?(brace)\})|\$)")


def templates(module: str, **known: Any) -> Callable[..., Any]:
    """What fills the templates of the YAML beside a module: called with a template's name and the values of its places.

    A text that is one place (``$pods``) becomes its value, of any kind; inside a text, and in braces (``${port}``), a place becomes
    words of it. What lies below a value has dots (``$pool.drain_s``); ``$$`` is a dollar. What is filled with ``None`` is left out
    of its mapping, a list in a list gives its items, and a key ``$more:`` of nothing its keys.

    Parameters
    ----------
    module
        ``__file__`` of the module.
    **known
        Values that every template may have.
    """
    read = cache(lambda: shipped(Path(module).with_suffix(".yaml")))

    def fill(template: str, /, **values: Any) -> Any:
        return filled(read()[template], known | values)

    return fill


def refusals(module: str) -> Callable[..., InputError]:
    """What makes errors of the YAML beside a module: a name stands for what is wrong, and what to do where that is said."""
    told = templates(module)

    def refuse(name: str, /, **values: Any) -> InputError:
        return InputError(*told(name, **values))

    return refuse


def filled(template: Any, values: Mapping[str, Any]) -> Any:
    """A template with its places filled; see :func:`templates`.

    >>> filled({"name": "$of-pool", "n": "$n", "none": "$no", "$more": None}, {"of": "a", "n": 2, "no": None, "more": {"b": [1]}})
    {'name': 'a-pool', 'n': 2, 'b': [1]}
    """
    if isinstance(template, str):
        alone = _PLACE.fullmatch(template)
        if alone and not alone["brace"]:
            return _value(alone, values)
        return _PLACE.sub(lambda found: str(_value(found, values)), template)
    found: Any
    if isinstance(template, list):
        found = []
        for inner in template:
            value = filled(inner, values)
            found += value if isinstance(value, list) else [value]
        return found
    if not isinstance(template, dict):
        return template
    found = {}
    for key, inner in template.items():
        value = filled(key if inner is None else inner, values)
        if inner is None:
            found |= value
        elif value is not None:
            found[filled(key, values)] = value
    return found


def _value(place: re.Match[str], values: Mapping[str, Any]) -> Any:
    """What fills a place."""
    if place["name"] is None:
        return "$"
    name, _, below = place["name"].partition(".")
    return placed(values[name], below) if below else values[name]
