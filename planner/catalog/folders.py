"""Where files of the catalog lie: the package's, and a user's own profiles."""

from __future__ import annotations

import os
import re
from pathlib import Path

from planner.shared.paths import at_home

FOLDER = Path(__file__).parent
"""Where the package's YAML files lie (importlib.resources would find the same and take 10 ms to import)."""


def user_directory() -> Path:
    """Where a user's own profiles live: ``FLEETOPT_PROFILES``, else ``~/.config/fleetopt/profiles``."""
    named = os.environ.get("FLEETOPT_PROFILES")
    return at_home(named or "~/.config/fleetopt/profiles")


def newest_day() -> str:
    """The day on which the newest entry, price or profile that is shipped was read."""
    texts = (
        path.read_text(encoding="utf-8") for path in FOLDER.rglob("*.*") if path.suffix in (".yaml", ".json", ".csv")
    )
    return max(found[0] for text in texts for found in re.finditer(r"\b20\d\d-\d\d-\d\d\b", text))
