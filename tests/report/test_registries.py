"""What is found by folder: deployable formats, words of results, names in help."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path

import pytest

import planner.report
from planner.cli.workload import import_
from planner.report import export_names, formats, formatter
from planner.report.output import WORDS, function_of
from planner.workload.formats.registry import format_names

FOLDER = Path(planner.report.__file__).parent


@pytest.mark.parametrize("of", ["plan", "schedule"])
def test_every_file_of_the_folder_is_an_export(of: str) -> None:
    names = export_names(of)
    assert names
    assert set(names) < set(formats(of))
    for name in names:
        assert callable(formatter(name, of))


def test_a_result_without_exports_has_the_common_formats() -> None:
    assert formats() == ("table", "markdown", "json", "yaml", "csv")


def test_every_function_of_words_belongs_to_a_class() -> None:
    """A function that no result is called after would never be found."""
    classes = {
        name
        for path in FOLDER.parent.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith("class ")
        for name in [line.removeprefix("class ").split("(")[0].rstrip(":")]
    }
    assert {path.stem for path in (FOLDER / "text").glob("[!_]*.py")} == {*WORDS}
    for module, kinds in WORDS.items():
        words = vars(import_module(f"planner.report.text.{module}"))
        own = {name for name, found in words.items() if name.startswith("of_") and found.__module__.endswith(module)}
        assert own == {function_of(kind) for kind in kinds}
        assert {*kinds} <= classes


def test_help_of_import_names_every_format() -> None:
    told = " ".join((inspect.getdoc(import_) or "").split())
    assert [name for name in format_names() if name not in told] == []
