"""Writing results: links, modes, FIFOs, devices, full disks, own inputs, runs that were killed."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import planner
from planner.errors import InputError
from planner.shared.writing import is_stream, keep_copy, write_text


def test_a_new_file_obeys_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "a.yaml", "x: 1")
    finally:
        os.umask(before)
    assert (tmp_path / "a.yaml").read_text() == "x: 1\n"
    assert stat.S_IMODE((tmp_path / "a.yaml").stat().st_mode) == 0o640
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.yaml"]


def test_an_existing_file_keeps_its_mode_and_a_link_its_target(tmp_path: Path) -> None:
    real = tmp_path / "real.yaml"
    real.write_text("old")
    real.chmod(0o604)
    link = tmp_path / "link.yaml"
    link.symlink_to("real.yaml")
    write_text(link, "new")
    assert link.is_symlink() and real.read_text() == "new\n" and stat.S_IMODE(real.stat().st_mode) == 0o604
    dangling = tmp_path / "dangling.yaml"
    dangling.symlink_to(tmp_path / "later.yaml")
    write_text(dangling, "there")
    assert dangling.is_symlink() and (tmp_path / "later.yaml").read_text() == "there\n"


def test_fifos_and_devices_are_streams(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(fifo.read_text()))
    reader.start()
    write_text(fifo, "through" * 50_000)
    reader.join(60.0)
    assert got == ["through" * 50_000 + "\n"] and stat.S_ISFIFO(fifo.stat().st_mode)
    write_text("/dev/null", "gone")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with pytest.raises(InputError, match="No space left"):
        write_text("/dev/full", "x")


def test_what_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in.yaml").write_text("old")
    (tmp_path / "same.yaml").symlink_to("in.yaml")
    os.link(tmp_path / "in.yaml", tmp_path / "hard.yaml")
    for name in ("in.yaml", "same.yaml", "hard.yaml"):
        with pytest.raises(InputError, match="is what was read"):
            write_text(tmp_path / name, "new", inputs=[tmp_path / "in.yaml", "no such file"])
    assert (tmp_path / "in.yaml").read_text() == "old"
    with pytest.raises(InputError, match="is a folder"):
        write_text(tmp_path, "x")
    with pytest.raises(InputError, match="does not exist"):
        write_text(tmp_path / "none" / "a", "x")
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(InputError, match="leads to itself"):
        write_text(tmp_path / "round", "x")
    assert (tmp_path / "round").is_symlink()
    for bad in ("n" * 300, "a\0b", "~nobody-of-that-name/x"):
        with pytest.raises(InputError):
            write_text(tmp_path / bad if bad[0] != "~" else bad, "x")
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".fleetopt")]
    # the longest name the file system takes works
    write_text(tmp_path / ("n" * 250), "x")


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="No space left"):
        write_text(tmp_path / "a", "new")
    assert [p.name for p in tmp_path.iterdir()] == ["a"] and (tmp_path / "a").read_text() == "old"


def test_a_file_mounted_by_itself_is_written_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("a longer old text")
    inode = (tmp_path / "a").stat().st_ino

    def busy(self: Path, target: Path) -> Path:
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(Path, "replace", busy)
    write_text(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "new\n" and (tmp_path / "a").stat().st_ino == inode
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_killed_runs_leave_nothing_for_long(tmp_path: Path) -> None:
    """A run killed at any moment: the old file or the new one, whole; the next run removes what it left."""
    target = tmp_path / "out.txt"
    write_text(target, "old\n")
    new = "new " * 20_000
    code = f"""
from planner.shared.writing import is_stream, keep_copy, write_text
print('go', flush=True)
while True:
    write_text({str(target)!r}, 'new ' * 20_000)
"""
    for k in range(6):
        run = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        assert run.stdout is not None and run.stdout.readline()
        time.sleep(0.001 + 0.0037 * k)
        run.send_signal(signal.SIGKILL)
        run.wait(60.0)
        run.stdout.close()
        assert target.read_text() in ("old\n", new + "\n")
    for left in tmp_path.glob(".fleetopt-*"):
        os.utime(left, (0, 0))
    write_text(target, "last")
    assert [p.name for p in tmp_path.iterdir()] == ["out.txt"]


def fleetopt(tmp_path: Path, *arguments: str, redirect: str = "") -> subprocess.CompletedProcess[str]:
    """The command in a shell, from `tmp_path`."""
    line = " ".join([sys.executable, "-m", "planner.cli.main", *arguments, redirect])
    paths = os.pathsep.join([str(Path(planner.__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        ["bash", "-c", line],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": paths},
    )


@pytest.mark.parametrize("redirect", ["> /dev/full", ">&-"])
def test_a_stdout_that_takes_nothing(tmp_path: Path, redirect: str) -> None:
    done = fleetopt(tmp_path, "workload", "list", redirect=redirect)
    assert done.returncode == 3 and done.stderr.count("\n") == 1 and "standard output" in done.stderr


@pytest.mark.parametrize("arguments", [["--version"], ["workload", "--help"]])
def test_what_the_framework_prints_to_a_full_disk(tmp_path: Path, arguments: list[str]) -> None:
    done = fleetopt(tmp_path, *arguments, redirect="> /dev/full")
    assert done.returncode == 3 and done.stderr.splitlines()[-1].startswith("error: standard output")
    assert "Traceback" not in done.stderr


def test_a_stderr_that_takes_nothing(tmp_path: Path) -> None:
    plan = [
        "plan",
        "--isl",
        "500",
        "--osl",
        "100",
        "--rate",
        "5",
        "--slo",
        "20",
        "--method",
        "mgc",
        "--no-options",
    ]
    done = fleetopt(tmp_path, *plan, redirect="2> /dev/full")
    assert done.returncode == 0 and "BUY  1 x" in done.stdout


def test_a_page_without_our_letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = fleetopt(tmp_path, "workload", "list")
    assert done.returncode == 0 and "\n-----" in done.stdout and "?" not in done.stdout


@pytest.mark.parametrize("columns", ["1", "0", "9" * 30, "-3", "\u00b2", "\u0663"])
def test_a_page_of_no_width(tmp_path: Path, columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    # a table, an error and help, of one process
    words = ["workload", "list"], ["workload", "import", "no-such-file.csv"], ["workload", "list", "--help"]
    code = (
        "import contextlib; from planner.cli.main import run\n"
        f"for words in {words!r}:\n    with contextlib.suppress(SystemExit): run(words)\n"
    )
    (tmp_path / "three.py").write_text(code, encoding="utf-8")
    done = subprocess.run([sys.executable, "three.py"], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and "Traceback" not in done.stderr
    assert "error:" in "".join(done.stderr.split()) and done.stdout


def test_a_command_does_not_overwrite_what_it_reads(tmp_path: Path) -> None:
    trace = "input_tokens,output_tokens\n" + "100,20\n200,30\n" * 20
    (tmp_path / "mine.csv").write_text(trace)
    for arguments in (
        ["import", "mine.csv", "-o", "mine.csv"],
        ["show", "mine.csv", "--output=./mine.csv"],
    ):
        done = fleetopt(tmp_path, "workload", *arguments)
        assert done.returncode == 3 and "is what was read" in done.stderr, done.stderr
    assert (tmp_path / "mine.csv").read_text() == trace
    assert fleetopt(tmp_path, "workload", "list", redirect="2>&-").returncode == 0


def test_a_copy_is_kept_of_files_alone(tmp_path: Path) -> None:
    """What stands under the name stays where it is: a device moved away is gone for every program."""
    assert keep_copy(tmp_path / "none.yaml") is None and keep_copy("/dev/null") is None
    assert keep_copy("half\ud800") is None and keep_copy("none\x00") is None
    fifo, link = tmp_path / "fifo", tmp_path / "link.yaml"
    os.mkfifo(fifo)
    assert keep_copy(fifo) is None and is_stream(fifo)
    link.symlink_to("real.yaml")
    (tmp_path / "real.yaml").write_text("old")
    (tmp_path / "real.yaml").chmod(0o604)
    assert keep_copy(link) == tmp_path / "real.yaml.old-1" and keep_copy(link) == tmp_path / "real.yaml.old-2"
    assert link.is_symlink() and (tmp_path / "real.yaml").read_text() == "old"
    assert (tmp_path / "real.yaml.old-2").read_text() == "old"
    assert stat.S_IMODE((tmp_path / "real.yaml.old-1").stat().st_mode) == 0o604


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_what_a_shell_appends_to_is_kept(name: str, tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("before\n")
    code = f"from planner.shared.writing import write_text; print('first'); write_text({name!r}, 'new'); print('last')"
    with log.open("a") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True)
    assert log.read_text() == "before\nfirst\nnew\nlast\n"
    assert [p.name for p in tmp_path.iterdir()] == ["log.txt"]
