"""What is found by folder: deployable formats, words of results, names in help."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import planner.report
from planner.cli.workload import import_
from planner.report import formats
from planner.report.exports import Export, export, export_names
from planner.workload.formats.registry import format_names

FOLDER = Path(planner.report.__file__).parent


@pytest.mark.parametrize("of", ["plan", "schedule"])
def test_every_file_of_the_folder_is_an_export(of: str) -> None:
    names = export_names(of)
    assert names
    assert set(names) < set(formats(of))
    for name in names:
        found = export(of, name)
        assert isinstance(found, Export)
        assert found.about


def test_a_result_without_exports_has_the_common_formats() -> None:
    assert formats() == ("table", "markdown", "json", "yaml", "csv")


def test_every_file_of_words_belongs_to_a_class() -> None:
    """A file that no result is called after would never be found."""
    classes = {
        name
        for path in FOLDER.parent.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith("class ")
        for name in [line.removeprefix("class ").split("(")[0].rstrip(":")]
    }
    for path in (FOLDER / "text").glob("[!_]*.py"):
        assert "".join(word.capitalize() for word in path.stem.split("_")) in classes, path.name


def test_help_of_import_names_every_format() -> None:
    told = " ".join((inspect.getdoc(import_) or "").split())
    assert [name for name in format_names() if name not in told] == []
