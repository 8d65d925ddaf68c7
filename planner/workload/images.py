"""Images of requests: those of a category have as many as its name says, as ``2-images`` or ``chat:2-images`` does."""

from __future__ import annotations

import re
from collections.abc import Iterable

_MARK = re.compile(r"(?:^|:)(\d{1,4})-images$", re.ASCII)

MOST_IMAGES = 9_999
"""More no prompt has."""


def labelled(category: str, images: int) -> str:
    """The category of requests of a category with so many images.

    >>> labelled("chat", 2), labelled("", 1), labelled("chat", 0)
    ('chat:2-images', '1-images', 'chat')
    """
    return f"{images}-images" if not category else f"{category}:{images}-images" if images else category


def images_in(categories: Iterable[str]) -> dict[str, int]:
    """Images of the requests of each category that has some.

    >>> images_in(["chat", "chat:2-images", "12-images", "2-images-a-day"])
    {'chat:2-images': 2, '12-images': 12}
    """
    found = {name: int(mark[1]) for name in categories if (mark := _MARK.search(name))}
    return {name: count for name, count in found.items() if count}
