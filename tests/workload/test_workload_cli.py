"""``fleetopt workload``: every command, its formats, its files."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from planner.cli.main import app
from planner.errors import InputError
from planner.workload.resolve import shipped_folder, shipped_names
from planner.workload.workload import Workload

runner = CliRunner()


def run(*arguments: object) -> str:
    """Standard output of a command that must succeed."""
    result = runner.invoke(app, ["workload", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    rows = [
        f"2024-01-01 00:{k // 60 % 60:02d}:{k % 60:02d}.5,{100 + 7 * k % 5000},{1 + 13 * k % 400}" for k in range(3000)
    ]
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    return path


def test_list_in_every_format() -> None:
    for name in shipped_names():
        assert name in run("list")
    assert {w["name"] for w in json.loads(run("list", "--format", "json"))["workloads"]} == set(shipped_names())
    assert yaml.safe_load(run("list", "-f", "yaml"))["profiles"]["servegen-m-mid"]["rate_per_s"] > 1000
    rows = list(csv.DictReader(io.StringIO(run("list", "-f", "csv"))))
    assert [r["name"] for r in rows] == list(shipped_names())


def test_the_readme_is_what_the_command_writes() -> None:
    readme = shipped_folder() / "README.md"
    assert run("list", "--format", "markdown") == readme.read_text(encoding="utf-8")


def test_shipped_files_are_small_and_say_where_they_come_from() -> None:
    for name in shipped_names():
        assert (shipped_folder() / f"{name}.csv").stat().st_size < 650_000
        origin = Workload.from_file(name).provenance
        assert origin.source and origin.licence, name


def test_import_keeps_stretches_and_reports(trace: Path, tmp_path: Path) -> None:
    out, account = tmp_path / "w.csv", tmp_path / "r.json"
    result = runner.invoke(
        app,
        ["workload", "import", f"chat={trace}", "-o", str(out), "--compressible", "chat=0.9", "--name", "mine", "--licence", "CC0",
         "--rows", "1200", "--report", str(account)],
        catch_exceptions=False,
    )  # fmt: skip
    assert result.stdout == ""
    assert "3,000 rows, 3,000 requests" in result.stderr
    assert "of 3,000 requests: " in result.stderr and "stretches that stand for all" in result.stderr
    w = Workload.from_file(out)
    assert (w.name, w.categories, w.compressible, w.provenance.licence) == ("mine", ("chat",), (0.9,), "CC0")
    facts = json.loads(account.read_text())
    assert facts["files"][0]["rows_read"] == 3000
    raw = Workload.from_file(trace)
    kept = w.trace()
    assert kept is not None and kept.requests <= 1200 and w.provenance.requests == 3000
    assert w.iterations(512)[0] == pytest.approx(raw.iterations(512)[0], rel=0.05)
    assert w.arrivals.rate_per_s == pytest.approx(raw.arrivals.rate_per_s, rel=1e-6)
    with pytest.raises(InputError, match="stretches of a longer trace, which cannot be merged or cut"):
        run("import", out, trace)
    with pytest.raises(InputError, match="at least 1"):
        run("import", trace, "--rows", "0")


def test_import_to_stdout_keeps_every_request(trace: Path, tmp_path: Path) -> None:
    text = run("import", trace, "--rate", "50")
    path = tmp_path / "again.csv"
    path.write_text(text)
    again = Workload.from_file(path)
    assert again.provenance.exact
    assert again.arrivals.rate_per_s == 50.0
    assert run("import", path) == text.replace("# name: trace", "# name: trace")


def test_import_options_that_make_no_sense(trace: Path) -> None:
    for arguments, message in (
        (["--map", "in=a"], "'in' is none of"),
        (["--map", "input"], "not NAME=VALUE"),
        (["--input-format", "azur"], "did you mean 'azure'"),
        (["--compressible", "chat=1"], "no category 'chat'"),
    ):
        with pytest.raises(InputError, match=message):
            run("import", trace, *arguments)
    with pytest.raises(InputError, match="workload mix"):
        run("import", "lmsys", trace)


def test_nothing_is_written_on_failure(tmp_path: Path) -> None:
    bad, out = tmp_path / "bad.csv", tmp_path / "out.csv"
    bad.write_text("input_tokens,output_tokens\n-1,2\n")
    with pytest.raises(InputError):
        run("import", bad, "-o", out)
    assert not out.exists()


def test_show(tmp_path: Path) -> None:
    text = run("show", "azure")
    for words in ("28,185 requests", "p99", "archetype I/II", "index of dispersion", "compressible", "correlation"):
        assert words in text
    facts = json.loads(run("show", "azure", "--boundary", "2k", "--gamma", "2", "--format", "json"))
    assert facts["split"]["boundary_tokens"] == 2000.0
    assert facts["iterations"]["mean"] == pytest.approx(157.1, abs=0.05)
    assert "split assumed" in run("show", "lmsys", "--format", "markdown")
    assert len(list(csv.DictReader(io.StringIO(run("show", "azure", "-f", "csv"))))) == 3
    plain = tmp_path / "cdf.csv"
    plain.write_text("tokens,cdf\n100,0.5\n300,1\n")
    assert "20% of every total" in run("show", plain, "--output-share", "20%")


def test_plot_or_a_clear_word(tmp_path: Path) -> None:
    path = tmp_path / "w.png"
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        with pytest.raises(InputError, match="matplotlib"):
            run("show", "azure", "--plot", path)
        return
    run("show", "azure", "--plot", path)
    assert path.stat().st_size > 1000


def test_mix_and_scale(tmp_path: Path, trace: Path) -> None:
    path = tmp_path / "mix.csv"
    run("mix", "azure-conv=3", f"{trace}=1", "--scale-output", "1.3", "--name", "tomorrow", "--rate", "20", "-o", path)
    w = Workload.from_file(path)
    assert w.name == "tomorrow"
    assert w.arrivals.rate_per_s == 20.0
    expected = 1.3 * (
        0.75 * Workload.from_file("azure-conv").mean_output + 0.25 * Workload.from_file(trace).mean_output
    )
    assert w.mean_output == pytest.approx(expected, rel=1e-3)
    with pytest.raises(InputError, match="every part or to none"):
        run("mix", "azure-conv=3", trace)
    path.write_text(run("mix", "azure", "--scale-input", "2"))
    assert Workload.from_file(path).mean_input == pytest.approx(2 * Workload.from_file("azure").mean_input, rel=1e-4)


def test_a_daily_profile_for_a_workload(tmp_path: Path) -> None:
    path = tmp_path / "day.csv"
    path.write_text(run("mix", "azure", "--profile", "servegen-m-small"))
    day = Workload.from_file(path)
    assert len(day.arrivals.hourly_profile) == 24
    assert day.arrivals.rate_per_s == Workload.from_file("azure").arrivals.rate_per_s
    assert "profile by hour of day: busiest 1.46" in run("show", path)


def test_compare() -> None:
    assert "joint law" in run("compare", "azure", "azure-code")
    assert json.loads(run("compare", "azure", "azure", "-f", "json"))["joint"] == 0.0


def test_the_command_group_loads_nothing_heavy() -> None:
    import subprocess
    import sys

    code = (
        "import sys, planner.cli.workload\n"
        "print([m for m in ('numpy', 'scipy', 'yaml', 'rich.table', 'planner.workload.workload') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_reading_a_shipped_file_loads_nothing_heavy() -> None:
    import subprocess
    import sys

    code = (
        "import sys\nfrom planner.workload.workload import Workload\nWorkload.from_file('azure').digest\n"
        "print([m for m in ('scipy', 'pandas', 'pydantic', 'rich', 'matplotlib', 'yaml') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
