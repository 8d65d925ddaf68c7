"""``fleetopt calibrate`` and ``fleetopt profile`` from the outside: what is printed, written, and refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from pace import at_its_pace
from typer.testing import CliRunner, Result
from virtual_server import closed_loop_tpot

from planner.calibrate.fit import fit_points
from planner.calibrate.microbench import designed_batches
from planner.calibrate.servers import fit_server
from planner.catalog import gpu, model
from planner.catalog.profiles import load_profile, profile, served_by
from planner.cli.main import app
from planner.errors import CalibrationError, FleetOptError, InputError
from planner.machine.iteration import IterationModel
from planner.machine.roofline import CONSTANTS, roofline
from tests.test_schemas import wrong


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "profiles"
    monkeypatch.setenv("FLEETOPT_PROFILES", str(home))
    return home


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """How wide a parameter is does not matter here: that is tests/calibrate/test_fit.py's and test_servers.py's."""
    monkeypatch.setitem(fit_points.__kwdefaults__, "resamples", 20)
    monkeypatch.setitem(fit_server.__kwdefaults__, "resamples", 6)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def fails(*arguments: object) -> FleetOptError:
    result = run(*arguments)
    assert isinstance(result.exception, FleetOptError), (result.output, result.exception)
    return result.exception


TRUTH = roofline(gpu("l40s"), model("llama-3.1-8b"))
HEADER = "gpu,model,tp,n_decode,decode_ctx,prefill_seqs,prefill_new_tokens_per_seq,prefill_past_tokens,measured_ms"


def iterations(path: Path, truth: IterationModel = TRUTH, count: int = 24, gpu_name: str = "l40s") -> Path:
    rows = [HEADER]
    for b in designed_batches(model("llama-3.1-8b"), kv_bytes=25e9)[:count]:
        t = truth.time(b.decodes, b.decodes * b.context, b.prefills * b.new_tokens, b.pairs, b.context)
        cells = (b.decodes, b.context, b.prefills, b.new_tokens, b.past_tokens, 1e3 * t)
        rows.append(f"{gpu_name},llama-3.1-8b,1," + ",".join(map(str, cells)))
    path.write_text("\n".join(rows))
    return path


def test_a_file_becomes_a_profile_that_plan_finds(tmp_path: Path, folder: Path) -> None:
    assert profile(gpu="l40s", model="llama-3.1-8b").provenance == "estimated"
    result = run("calibrate", "--from", iterations(tmp_path / "it.csv"), "--source", "my lab")
    assert result.exit_code == 0, result.output
    assert "llama-3.1-8b-l40s-48gb-tp1: measured" in result.stdout
    assert "beta_p(256-4096)" in result.stdout and "left out one by one" in result.stdout
    assert "wrote " in result.stderr and ".points.jsonl" in result.stderr
    found = profile(gpu="l40s", model="llama-3.1-8b")
    assert found.provenance == "measured" and found.source == "my lab" and found.points == 24
    # kernels were measured: what finds the profile by its hardware adds the engine's host time
    host = CONSTANTS["vllm_iteration_s"] + 32 * CONSTANTS["vllm_sequence_s"]
    assert found.iteration.time(32, 32768) == pytest.approx(TRUTH.time(32, 32768) + host, rel=0.02)
    assert served_by(load_profile(next(folder.glob("*.yaml")))) == found
    listed = run("profile", "list", "--gpu", "l40s")
    assert "llama-3.1-8b-l40s-48gb-tp1" in listed.stdout
    shown = run("profile", "show", found.name)
    assert "my lab" in shown.stdout and "us/token" in shown.stdout
    by_hardware = run("profile", "show", "--gpu", "h100", "--model", "llama-3.1-8b")
    assert "estimated, ±" in by_hardware.stdout
    papers = run("profile", "show", found.name, "--papers", "--context", "2048")
    assert "exclusive batching" in papers.stdout and "mu_nLin" in papers.stdout and "(assumed)" in papers.stdout
    compared = run("profile", "compare", found.name, "fleetopt-paper")
    assert "64 decodes + 512 new" in compared.stdout and "(x" in compared.stdout


@pytest.mark.parametrize("output_format", ["json", "yaml", "csv", "markdown", "table"])
def test_formats(tmp_path: Path, output_format: str) -> None:
    path = iterations(tmp_path / "it.csv", count=8)
    result = run("calibrate", "--from", path, "--no-write", "-f", output_format)
    assert result.exit_code == 0, result.output
    if output_format == "json":
        data = json.loads(result.stdout)
        assert data["profile"]["schema"] == "fleetopt-profile/1"
        assert not wrong("calibration", data)
        assert {row["parameter"] for row in data["parameters"]} >= {"t0", "W", "H(1024)"}
    for command in (("list",), ("show", "fleetopt-paper"), ("compare", "fleetopt-paper", "fleetopt-paper")):
        told = run("profile", *command, "-f", output_format)
        assert told.exit_code == 0 and "fleetopt-paper" in told.stdout


def test_nothing_is_written_when_it_fails(tmp_path: Path, folder: Path) -> None:
    two = iterations(tmp_path / "two.csv", count=2)
    assert isinstance(fails("calibrate", "--from", two), CalibrationError)
    negative = tmp_path / "negative.csv"
    negative.write_text(HEADER + "\nl40s,llama-3.1-8b,1,4,64,0,0,0,-1")
    assert "must be positive" in str(fails("calibrate", "--from", negative))
    same = tmp_path / "same.csv"
    same.write_text("\n".join([HEADER, *["l40s,llama-3.1-8b,1,4,64,0,0,0,9"] * 9]))
    assert "all the same batch" in str(fails("calibrate", "--from", same))
    columns = tmp_path / "columns.csv"
    columns.write_text("a,b\n1,2\n")
    assert isinstance(fails("calibrate", "--from", columns), InputError)
    assert not folder.exists() or not list(folder.iterdir())


def test_refusals(tmp_path: Path) -> None:
    path = iterations(tmp_path / "it.csv")
    assert "two sources" in str(fails("calibrate", "--from", path, "--server", "http://x"))
    assert "Give --model" in str(fails("calibrate", "--server", "http://127.0.0.1:9"))
    assert "did you mean" in str(fails("calibrate", "--from", path, "-f", "tabel"))
    assert "column=value" in str(fails("calibrate", "--from", path, "--select", "role"))
    assert "no measurements with gpu=h100" in str(fails("calibrate", "--from", path, "--gpu", "h100"))
    assert "must be positive" in str(fails("calibrate", "--from", path, "--max-seconds", "0"))
    assert "nothing to compare" in str(fails("profile", "compare", "fleetopt-paper"))
    assert "unknown profile" in str(fails("profile", "show", "nonesuch"))


def test_a_model_the_catalog_does_not_know_is_fitted_all_the_same(tmp_path: Path, folder: Path) -> None:
    path = iterations(tmp_path / "it.csv", gpu_name="our-chip")
    result = run("calibrate", "--from", path)
    assert result.exit_code == 0, result.output
    assert "the prior is another model's, scaled" in result.stderr
    found = load_profile(next(folder.glob("*.yaml")))
    assert found.gpu == "our-chip"
    assert found.iteration.time(32, 32768) == pytest.approx(TRUTH.time(32, 32768), rel=0.03)


def test_two_groups_need_a_folder(tmp_path: Path) -> None:
    one = iterations(tmp_path / "one.csv", count=8)
    other = iterations(tmp_path / "other.csv", count=8, gpu_name="a100")
    assert "need a folder" in str(fails("calibrate", "--from", one, "--from", other, "-o", tmp_path / "x.yaml"))
    result = run("calibrate", "--from", one, "--from", other, "-o", tmp_path / "made")
    assert result.exit_code == 0, result.output
    assert len(list((tmp_path / "made").glob("*.yaml"))) == 2
    assert "cannot name 2 profiles" in str(fails("calibrate", "--from", one, "--from", other, "--name", "x"))


def test_server_points_from_a_file(tmp_path: Path, folder: Path) -> None:
    rows = ["isl,osl,concurrency,tpot_ms,ttft_ms"]
    for isl in (256, 1024, 4096):
        for osl in (64, 256):
            for level in (1, 16):
                tpot = closed_loop_tpot(TRUTH, isl, osl, level)
                ttft = TRUTH.time(0, 0, isl, isl * (isl + 1) / 2) + 0.01
                rows.append(f"{isl},{osl},{level},{1e3 * tpot},{1e3 * ttft}")
    path = tmp_path / "server.csv"
    path.write_text("\n".join(rows))
    assert "Give --gpu and --model" in str(fails("calibrate", "--from", path))
    result = run("calibrate", "--from", path, "--gpu", "l40s", "--model", "llama-3.1-8b", "--name", "mine")
    assert result.exit_code == 0, result.output
    assert "error of left-out shapes" in result.stdout
    found = load_profile(folder / "mine.yaml")
    assert found.provenance == "fitted"
    assert found.api_overhead_s == pytest.approx(0.01, rel=0.3)
    assert found.iteration.time(16, 16 * 1024) == pytest.approx(TRUTH.time(16, 16 * 1024), rel=0.03)


def test_dry_runs_send_and_measure_nothing(tmp_path: Path) -> None:
    with FakeEngine(TRUTH) as engine:
        result = run("calibrate", "--server", engine.url, "--model", "m", "--dry-run", "--max-requests", 200)
        assert engine.requests == 0
    assert result.exit_code == 0, result.output
    assert "at most 200 requests" in result.stdout and "4096" in result.stdout
    local = run("calibrate", "--gpu", "a100", "--model", "llama-3.1-8b", "--dry-run")
    assert local.exit_code == 0 and local.stdout.count("(sentinel)") == 4


@pytest.mark.parametrize(("fault", "patience"), [("500", "60s"), ("hang", "0.3s")])
def test_a_failing_server_writes_nothing(fault: str, patience: str, folder: Path) -> None:
    with FakeEngine(TRUTH, fault) as engine:
        error = fails(
            "calibrate", "--server", engine.url, "--model", "m", "--timeout", patience, "--start-wait", "0.1s"
        )
    assert isinstance(error, CalibrationError) and error.exit_code == 5
    assert not folder.exists() or not list(folder.iterdir())


def test_one_number_rescales_the_estimate(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "mlperf_log_summary.txt"
    path.write_text(
        "MLPerf Results Summary\nScenario : Offline\nSamples per second: 5\nTokens per second: 1500\nResult is : VALID\n"
    )
    result = run(
        "calibrate",
        "--from",
        path,
        "--isl",
        294,
        "--concurrency",
        64,
        "--gpu",
        "l40s",
        "--model",
        "llama-3.1-8b",
        "--name",
        "one",
    )
    assert result.exit_code == 0, result.output
    found = load_profile(folder / "one.yaml")
    assert 0.1 < found.band <= 0.40 and found.points == 1
    # 64 decodes take 64/1500 s; the estimate has less
    assert found.iteration.time(64, 64 * 444) == pytest.approx(64 / 1500, rel=0.15)


def test_secrets_are_nowhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A password in the address and a key in the environment: not in the profile, the points, the report, or an error."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-verysecretkey123")
    truth = IterationModel(t0=3e-3, h=60e-6)
    results = []

    def check(pace: float) -> None:
        with FakeEngine(truth, pace=pace) as engine:
            address = engine.url.replace("http://", "http://me:hunter2hunter2@")
            monkeypatch.setattr("sys.argv", ["fleetopt", "calibrate", "--server", address])
            results.append(run(
                "calibrate", "--server", address, "--model", "llama-3.1-8b", "--gpu", "l40s", "--max-input", 256,
                "--max-output", 16, "--max-concurrency", 4, "--max-seconds", 0.5 * pace, "--force", "-f", "json",
            ))  # fmt: skip
        assert results[-1].exit_code == 0, results[-1].output

    at_its_pace(check)
    result = results[-1]
    written = "".join(f.read_text() for f in folder.iterdir())
    for text in (written, result.stdout, result.stderr):
        assert "hunter2" not in text and "verysecret" not in text
    assert "127.0.0.1" in written  # the address itself is kept
    shared = run("profile", "share", next(folder.glob("*.yaml")))
    assert shared.exit_code == 0 and "127.0.0.1" not in shared.stdout and "measurements" in shared.stdout
    with FakeEngine(truth, "500") as engine:
        error = fails("calibrate", "--server", engine.url.replace("//", "//me:hunter2hunter2@"), "--model", "m")
    assert "hunter2" not in str(error)


def test_nothing_is_overwritten_and_points_are_fitted_again(tmp_path: Path, folder: Path) -> None:
    path = iterations(tmp_path / "it.csv", count=8)
    assert run("calibrate", "--from", path, "--source", "first").exit_code == 0
    again = run("calibrate", "--from", path, "--source", "second")
    assert "the one before is" in again.stderr
    (profile_file,) = folder.glob("*.yaml")
    assert load_profile(profile_file).source == "second"
    (older,) = folder.glob("*.yaml.old-1")
    assert "first" in older.read_text()
    points = profile_file.with_name(profile_file.stem + ".points.jsonl")
    header = json.loads(points.read_text().splitlines()[0])
    assert header["schema"] == "fleetopt-points/1" and header["gpu"] == "l40s-48gb" and header["clock"]
    for source in (profile_file, points):
        refitted = run("profile", "refit", source, "-o", tmp_path / "again.yaml", "--format", "json")
        assert refitted.exit_code == 0, refitted.output
        assert not wrong("calibration-set", json.loads(refitted.stdout))
    assert load_profile(tmp_path / "again.yaml").iteration == load_profile(profile_file).iteration
    shared = tmp_path / "shared.yaml"
    shared.write_text(run("profile", "share", profile_file).stdout)
    assert load_profile(shared).measurements and load_profile(shared).iteration == load_profile(profile_file).iteration
    assert run("profile", "refit", shared, "-o", tmp_path / "third.yaml").exit_code == 0
    assert "no points" in str(fails("profile", "refit", "fleetopt-paper"))


def test_a_profile_worse_than_its_estimate_is_not_written(tmp_path: Path, folder: Path) -> None:
    """Times that have nothing to do with their batches: exit 5, and only --force writes them."""
    rows = ["isl,osl,concurrency,tpot_ms"]
    for i, isl in enumerate((256, 1024, 4096)):
        for k, osl in enumerate((64, 256)):
            rows += [f"{isl},{osl},{level},{9 + 200 * ((i + k + level) % 3)}" for level in (1, 8)]
    path = tmp_path / "noise.csv"
    path.write_text("\n".join(rows))
    error = fails("calibrate", "--from", path, "--gpu", "l40s", "--model", "llama-3.1-8b")
    assert error.exit_code == 5 and "not written" in str(error)
    assert not folder.exists() or not list(folder.iterdir())
    forced = run("calibrate", "--from", path, "--gpu", "l40s", "--model", "llama-3.1-8b", "--force", "--name", "bad")
    assert forced.exit_code == 0 and "forced" in forced.stderr
    assert not load_profile(folder / "bad.yaml").automatic


def test_a_server_faster_than_its_hardware_is_refused(tmp_path: Path) -> None:
    rows = ["isl,osl,concurrency,tpot_ms"]
    rows += [f"{isl},{osl},{c},{0.5 + 0.01 * c}" for isl in (256, 4096, 1024) for osl in (64, 256) for c in (1, 8)]
    path = tmp_path / "fast.csv"
    path.write_text("\n".join(rows))
    error = fails("calibrate", "--from", path, "--gpu", "l40s", "--model", "llama-3.1-8b")
    assert "prefix cache" in str(error) and "data sheet" in str(error)


def test_shipped_profiles_are_sound() -> None:
    listed = json.loads(run("profile", "list", "-f", "json").stdout)["profiles"]
    fitted = [p for p in listed if p.get("engine") == "kernels composed to iterations"]
    assert len(fitted) == 11
    for entry in fitted:
        assert "licen" in entry["source"] or "Apache" in entry["source"]
        assert entry["error_mean"] < 0.06
        prior = roofline(gpu(entry["gpu"]), model(entry["model"]), entry["tp"])
        ratio = IterationModel.from_dict(entry["iteration"]).time(32, 32768) / prior.time(32, 32768)
        assert 0.6 < ratio < 1.7
