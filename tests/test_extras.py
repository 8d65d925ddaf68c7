"""A missing extra is installed from wherever the package came: the records are those that installers write (PEP 610)."""

from __future__ import annotations

import json
from importlib import metadata
from typing import Any

import pytest

from planner.shared.extras import installing

RECORDS: list[tuple[dict[str, Any] | None, str]] = [
    (None, "pip install 'fleetopt[gpu]'"),
    ({"url": "file:///home/a%20b/fleetopt", "dir_info": {}}, "pip install '/home/a b/fleetopt[gpu]'"),
    ({"url": "file:///src/fleetopt", "dir_info": {"editable": True}}, "pip install -e '/src/fleetopt[gpu]'"),
    (
        {"url": "file:///d/fleetopt-0.1.0-py3-none-any.whl", "archive_info": {}},
        "pip install '/d/fleetopt-0.1.0-py3-none-any.whl[gpu]'",
    ),
    (
        {"url": "https://example.org/fleetopt.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
        "pip install 'fleetopt[gpu] @ git+https://example.org/fleetopt.git@abc'",
    ),
]


class Installed:
    """A distribution with a record of where it came from."""

    def __init__(self, record: dict[str, Any] | None) -> None:
        self.record = record

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return None if self.record is None else json.dumps(self.record)


@pytest.mark.parametrize(("record", "told"), RECORDS)
def test_an_extra_comes_from_where_the_package_came(
    record: dict[str, Any] | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "distribution", lambda name: Installed(record))
    assert installing("gpu") == told


def test_a_package_that_was_not_installed_is_a_folder_of_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    assert installing("gpu").startswith("pip install '.[gpu]'")
