"""Files of settings: what is refused, and that it is refused quickly and in one line."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import planner
from planner.errors import InputError
from planner.operate.deploy.acceptance import read_results
from planner.shared.documents import load_document, parse_document, parse_json, parse_yaml, printable, read_text
from planner.workload.workload import Workload

BOMBS = {
    "billion laughs": "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
    + "".join(f"{chr(98 + k)}: &{chr(98 + k)} [{','.join([f'*{chr(97 + k)}'] * 10)}]\n" for k in range(9)),
    "merge bomb": "a: &a {k0: 1, k1: 2}\n"
    + "".join(
        f"{chr(98 + k)}: &{chr(98 + k)}\n  <<: [{','.join([f'*{chr(97 + k)}'] * 40)}]\n  n{k}: 1\n" for k in range(8)
    ),
    "deep flow": "[" * 100_000,
    "deep block": "\n".join("  " * k + "- " for k in range(300)),
    "deep mapping": "{a: " * 5_000,
    "alias in itself": "a: &a [1, *a]\n",
    "key twice": "rate: 1\nrate: 2\n",
    "tag": "!!python/object/apply:os.system ['true']\n",
    "huge integer": f"rate: {'9' * 400}\n",
    "not a number": "rate: .nan\n",
    "infinity": "rate: .inf\n",
    "control characters": "rate: \x07\n",
    "bad date": "when: 2026-13-45\n",
    "two documents": "a: 1\n---\nb: 2\n",
    "unhashable key": "? [1, 2]\n: 3\n",
    "tab": "a:\n\t- 1\n",
    "empty": " \n",
}


@pytest.mark.parametrize("name", BOMBS)
def test_yaml_that_is_refused(name: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_document(BOMBS[name], "file.yaml")
    text = str(caught.value)
    assert text.startswith("file.yaml") and "\n" not in caught.value.message and len(text) < 400
    assert all(c.isprintable() or c == "\n" for c in text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": ' * 50_000, "nested more than"),
        ('{"a": ' + "[" * 70 + "]" * 70 + "}", "nested more than"),
        ('{"a": 1, "a": 2}', "'a' is given twice"),
        ('{"a": NaN}', "NaN"),
        ('{"a": -Infinity}', "Infinity"),
        ('{"a": 1e999}', "too large"),
        ('{"a": ' + "9" * 5_000 + "}", "5000 digits"),
        ('{"a": "\\ud800"}', "a: text with half a character"),
        ('{"a": [1, {"b\\udfff": 1}]}', "half a character"),
        ('{"a": }', ":1: not JSON"),
        ('{"a": "', "not JSON"),
        ('{"a": "\\', "not JSON"),
    ],
)
def test_json_that_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_document(text, "file.json")


def test_brackets_in_strings_do_not_nest() -> None:
    data = {"a": "[" * 500 + '"\\' + "{" * 500}
    assert parse_json(json.dumps(data), "x") == data


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.floats(-1e12, 1e12) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(min_size=1, max_size=8), VALUES, min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_read(data: dict[str, object]) -> None:
    assert parse_document(json.dumps(data), "x") == data
    dumped = yaml.safe_dump(data, allow_unicode=True)
    assert parse_yaml(dumped, "x") == yaml.safe_load(dumped)


@given(st.text(max_size=60) | st.text(alphabet="{}[]:,&*<>-? \n\"'|#!%@ab1", max_size=60))
@settings(max_examples=200, deadline=None)
def test_any_text_is_data_or_an_input_error(text: str) -> None:
    try:
        parse_document(text, "x")
    except InputError as error:
        assert str(error).startswith("x")


def test_reading(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xef\xbb\xbfrate: 3\n")
    assert load_document(tmp_path / "a.yaml") == {"rate": 3}
    (tmp_path / "b.yaml").write_bytes(b"rate: \xff\n")
    for name, message in (
        ("b.yaml", "byte 6 is not UTF-8"),
        ("none.yaml", "no such file"),
        (".", "is a folder"),
        ("a\0b", "cannot"),
    ):
        with pytest.raises(InputError, match=message):
            read_text(f"{tmp_path}/{name}")
    with pytest.raises(InputError, match="too large"):
        read_text(tmp_path / "a.yaml", largest=4)
    if os.path.exists("/dev/zero"):
        with pytest.raises(InputError, match="too large"):
            read_text("/dev/zero", largest=1 << 20)
    assert printable("a\nb" * 100, 6) == "a\\nba\\nb..."


@pytest.mark.parametrize("made", [
    lambda: "".join(f"key{k}: {k}\n" for k in range(200_000)),
    lambda: "a:\n" + "".join(f"  key{k}: {k}\n" for k in range(10_001)),
    lambda: json.dumps({f"key{k}": k for k in range(200_000)}),
], ids=["yaml", "nested", "json"])  # fmt: skip
def test_more_keys_than_any_settings_have_are_refused_in_seconds_and_one_line(made: Callable[[], str]) -> None:
    text = made()
    begun = time.process_time()
    with pytest.raises(InputError, match="keys, which no file of settings has") as told:
        parse_document(text, "x")
    assert time.process_time() - begun < 5.0 and len(str(told.value).splitlines()) == 1


def test_as_many_keys_as_are_allowed_and_longer_lists_are_read() -> None:
    many = "".join(f"key{k}: {k}\n" for k in range(10_000))
    assert len(parse_document(many, "x")) == 10_000
    assert len(parse_document("a:\n" + "- 1\n" * 30_000, "x")["a"]) == 30_000


def test_named_pipes_are_refused_and_those_of_a_shell_read(tmp_path: Path) -> None:
    """Nobody writes to the first, and it is not waited for; what a shell has opened is read once, as a file is."""
    os.mkfifo(tmp_path / "pipe")
    told = "is a named pipe, which nobody may ever write to"
    for reader in (read_text, Workload.from_file, lambda path: read_results(Path(path))):
        with pytest.raises(InputError, match=told):
            reader(str(tmp_path / "pipe"))
    opened, written = os.pipe()
    try:
        with os.fdopen(written, "w") as shell:
            shell.write("rate: 3\n")
        assert load_document(f"/dev/fd/{opened}") == {"rate": 3}
    finally:
        os.close(opened)
    for rows, mean in (("100,20\n200,40\n", (150.0, 30.0)), ("10,2\n", (10.0, 2.0))):
        # the second is opened under the name of the first
        opened, written = os.pipe()
        try:
            with os.fdopen(written, "w") as shell:
                shell.write(f"input_tokens,output_tokens\n{rows}")
            found = Workload.from_file(f"/dev/fd/{opened}")
        finally:
            os.close(opened)
        assert (found.mean_input, found.mean_output) == mean


def test_the_shipped_files_keep_the_rules() -> None:
    """They are read without these checks at every start."""
    files = sorted(Path(planner.__file__).parent.rglob("*.yaml"))
    assert len(files) > 60
    for file in files:
        assert load_document(file)
