"""Plans of anybody's making: what their words become in files that start engines on other people's machines."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import planner as fo
from planner.cli.main import app
from planner.operate.deploy import target_names
from tests.operate.deploy.conftest import plan_of

pytestmark = pytest.mark.usefixtures("fewer_replayed")

Document = dict[str, Any]


@cache
def fair() -> str:
    return json.dumps(plan_of("one pool").to_dict())


def deployed(folder: Path, to: str, pool: Document, settings: Document) -> str:
    """What is said and written of a plan whose pool has these words."""
    document = json.loads(fair())
    document["pools"][0] |= pool
    document["pools"][0]["settings"] |= settings
    for name in ("theirs", "below"):
        (folder / name).mkdir(parents=True)
    (folder / "theirs/plan.json").write_text(json.dumps(document))
    out = folder / "below/out"
    run = CliRunner().invoke(app, ["deploy", str(folder / "theirs/plan.json"), "--to", to, "-o", str(out)])
    assert run.exception is None or isinstance(run.exception, (SystemExit, fo.InputError)), run.exception
    written = {file for file in folder.rglob("*") if file.is_file() and "theirs" not in file.parts}
    assert all(file == out or file.is_relative_to(out) for file in written), "written beside what was asked for"
    return run.output + str(run.exception or "") + "".join(file.read_text() for file in sorted(written))


@pytest.mark.parametrize(
    "name", ["../../evil", "a/b", "x; touch y", "x\nExecStartPre=y", "$(reboot)", ".", "-rf", "x" * 41]
)
def test_a_pools_name_is_no_path_no_line_and_no_command(name: str, tmp_path: Path) -> None:
    said = deployed(tmp_path, "systemd", {"name": name}, {})
    assert "pools[0].name" in said and "is no name of a pool" in said
    assert not any((tmp_path / "below").iterdir())


@pytest.mark.parametrize("to", target_names())
def test_nor_is_how_it_speculates(to: str, tmp_path: Path) -> None:
    for k, hostile in enumerate(("x\nExecStartPre=y", '{"model": "me/$(HF_TOKEN)"}', "${HOME}")):
        said = deployed(tmp_path / str(k), to, {}, {"speculative": hostile})
        assert "cannot stand in a start line" in said and "ExecStart" not in said.replace("\\nExecStartPre", "")
        assert not any((tmp_path / str(k) / "below").iterdir())
    # words that only a shell would take for its own are one word
    said = deployed(tmp_path / "fair", to, {}, {"speculative": '{"model": "a; b"}'})
    assert '{"model": "a; b"}' in said.replace("''", "'").replace('\\"', '"')


def test_what_is_as_large_as_the_port_is_not_the_port(tmp_path: Path) -> None:
    said = deployed(tmp_path, "systemd", {}, {"max_num_seqs": 8000, "max_num_batched_tokens": 8000})
    (start,) = (line for line in said.splitlines() if line.startswith("ExecStart=") and " serve " in line)
    words = start.split()
    value = {flag: words[words.index(flag) + 1] for flag in ("--max-num-seqs", "--max-num-batched-tokens", "--port")}
    assert value == {"--max-num-seqs": "8000", "--max-num-batched-tokens": "8000", "--port": "${PORT}"}


def test_a_replica_of_two_nodes_fetches_no_kv_caches(tmp_path: Path) -> None:
    """Which nobody writes for llm-d: it is said of the pool, with what does."""
    document = plan_of("split").to_dict()
    document["pools"][1]["tp"] = 16
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with pytest.raises(
        fo.InputError, match="pool decode: KV caches between replicas of 2 nodes are not written"
    ) as told:
        fo.deploy(tmp_path / "plan.json", "llm-d")
    assert told.value.hint == "Use --to dynamo." and fo.deploy(tmp_path / "plan.json", "dynamo").text


def test_whose_it_is_that_decode_replicas_help(tmp_path: Path) -> None:
    document = plan_of("split").to_dict()
    document["inputs"]["prefill_queue"] = 8
    (tmp_path / "plan.json").write_text(json.dumps(document))
    notes = fo.deploy(tmp_path / "plan.json", "dynamo").notes
    assert [line for line in notes if "prefill_queue 8, with which the plan was made, is your router's" in line]
