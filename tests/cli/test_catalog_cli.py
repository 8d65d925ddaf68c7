"""``fleetopt gpu`` and ``fleetopt model``: every number with its source; and the exit codes of checks."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest

from planner.cli.main import run


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        run([*arguments])
    out = capsys.readouterr()
    return int(end.value.code or 0), out.out, out.err


def test_every_number_of_a_gpu_has_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys, "gpu", "show", "H100 SXM", "--format", "json")
    found = json.loads(out)
    assert code == 0
    assert found["name"] == "h100-80gb"
    assert all(fact["source"] for fact in found["facts"].values())
    # the data sheet's own figures
    assert found["facts"]["bandwidth_bytes_per_s"]["value"] == 3.35e12
    assert found["facts"]["bf16_flops_per_s"]["value"] == pytest.approx(989e12, rel=1e-3)
    price = found["facts"]["price_usd_per_hour"]
    assert re.search(r"on-demand, seen \d{4}-\d\d-\d\d", price["source"])


def test_lists_name_what_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    from planner.catalog.load import gpus, models

    for kind, known in (("gpu", gpus()), ("model", models())):
        _, out, _ = said(capsys, kind, "list", "--format", "csv")
        rows = list(csv.DictReader(io.StringIO(out)))
        assert [row[kind] for row in rows] == [*known]
        _, out, _ = said(capsys, kind, "list")
        assert all(name in out for name in known)


def test_a_model_says_where_its_shape_is_from(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = said(capsys, "model", "show", "meta-llama/Llama-3.1-8B-Instruct", "--format", "json")
    facts = json.loads(out)["facts"]
    assert facts["layers"]["value"] == 32
    assert "config.json" in facts["layers"]["source"]
    # 2 (keys, values) x 32 layers x 8 heads x 128 x 2 bytes
    assert facts["kv_bytes_per_token"]["value"] == 131_072


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("gpu", "show", "h1000"), "unknown GPU 'h1000'"),
        (("model", "show", "llama-9"), "unknown model 'llama-9'"),
        (("gpu", "show", "h100", "--format", "xml"), "--format: 'xml' is none of"),
    ],
)
def test_what_is_not_known(arguments: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = said(capsys, *arguments)
    assert (code, out) == (3, "")
    assert line in err


def test_a_fleet_that_is_not_stable_is_a_failed_check(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = said(capsys, "stability", "--cdf", "azure", "--rate", "500", "--replicas", "2")
    assert code == 6
    assert "IMPOSSIBLE" in out
    assert "error: impossible: " in err
    assert said(capsys, "stability", "--cdf", "azure", "--rate", "5", "--replicas", "2")[0] == 0


def test_wait_of_an_overloaded_replica_is_a_failed_check(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = said(capsys, "wait", "--cdf", "azure", "--rate", "5000", "--replicas", "1")
    assert code == 6
    assert "error: overload: " in err
