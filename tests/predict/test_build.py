"""The kernel's library is found, checked and built; where none can be had, one line says why, and nothing crashes."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planner.cli import doctor
from planner.errors import InputError
from planner.predict import build, library
from planner.predict.build import INTERFACE, SUFFIX, compilers, keep, library_name, stem
from planner.predict.library import KernelUnavailable, find

SMALL = "int fleetopt_interface(void) {{ return {}; }}\n"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A small source in a folder of its own."""
    path = tmp_path / "beside" / "kernel.c"
    path.parent.mkdir()
    path.write_text(SMALL.format(INTERFACE))
    return path


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing on the path, and no zig."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: None)


@pytest.fixture
def asked_anew() -> Iterator[None]:
    """What the process knows of its kernel is put aside."""
    library._found.cache_clear()
    yield
    library._found.cache_clear()


def libraries(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"_kernel-*{SUFFIX}"))


def test_it_is_built_beside_the_source_once(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find(source, (source.parent,)).fleetopt_interface() == INTERFACE
    (made,) = libraries(source.parent)
    assert made.name == library_name(source, made.read_bytes())
    # nothing half-written, and no compiler's leavings
    assert sorted(source.parent.iterdir()) == sorted([made, source])
    monkeypatch.setattr(library, "compiled", lambda source: pytest.fail("built again"))
    assert find(source, (source.parent,))._name == str(made)


def test_another_source_is_another_name_and_the_older_library_goes(source: Path) -> None:
    find(source, (source.parent,))
    (old,) = libraries(source.parent)
    before = stem(source)
    source.write_text(source.read_text() + "int more(void) { return 2; }\n")
    assert stem(source) != before
    assert find(source, (source.parent,)).more() == 2
    (new,) = libraries(source.parent)
    assert new != old


def test_another_interface_is_another_name(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = stem(source)
    monkeypatch.setattr(build, "INTERFACE", INTERFACE + 1)
    assert stem(source) != before


def damaged(binary: bytes) -> Iterator[bytes]:
    """Cut off, a byte turned, emptied, something else."""
    yield binary[: len(binary) // 2]
    yield binary[:700]
    yield bytes([*binary[:-300], binary[-300] ^ 1, *binary[-299:]])
    yield b""
    yield b"no library at all"


@pytest.mark.parametrize("case", range(5))
def test_a_damaged_library_is_told_or_replaced(case: int, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = build.compiled(source)
    path = keep(binary, source, source.parent)
    path.write_bytes(list(damaged(binary))[case])
    with monkeypatch.context() as patch:
        patch.setattr(library, "compiled", _no_compiler)
        with pytest.raises(KernelUnavailable, match=rf"{path.name}: damaged.*no C compiler") as told:
            find(source, (source.parent,))
    assert "\n" not in told.value.message and "Install fleetopt again" in str(told.value.hint)
    assert find(source, (source.parent,)).fleetopt_interface() == INTERFACE
    assert libraries(source.parent) == [path]


def _no_compiler(source: Path) -> bytes:
    raise build.BuildError("no C compiler was found")


def other_machine(source: Path) -> bytes:
    """A library of the source for a machine of another kind."""
    binary = bytearray(build.compiled(source))
    if binary[:4] != b"\x7fELF":
        pytest.skip("only ELF's header is known here")
    machine = int.from_bytes(binary[18:20], sys.byteorder)
    x86_64, aarch64 = 62, 183
    binary[18:20] = (aarch64 if machine == x86_64 else x86_64).to_bytes(2, sys.byteorder)
    return bytes(binary)


def test_a_library_of_another_machine_is_passed_over(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # what two kinds of machines find in a home that they share
    foreign = keep(other_machine(source), source, source.parent)
    with monkeypatch.context() as patch:
        patch.setattr(library, "compiled", _no_compiler)
        with pytest.raises(KernelUnavailable, match=rf"{foreign.name}: cannot be opened, .* another kind of machine"):
            find(source, (source.parent,))
    assert find(source, (source.parent,))._name != str(foreign)
    assert len(libraries(source.parent)) == 2


@pytest.mark.parametrize("body", [SMALL.format(INTERFACE + 1), "int something_else(void) { return 1; }\n"])
def test_a_library_of_another_interface_is_refused(body: str, source: Path) -> None:
    source.write_text(body)
    with pytest.raises(
        KernelUnavailable, match=rf"speaks interface {INTERFACE + 1}, this fleetopt {INTERFACE}|cannot be opened"
    ):
        find(source, (source.parent,))


def test_where_the_folder_cannot_be_written_the_users_own_is(source: Path, tmp_path: Path) -> None:
    # below a file, as even the superuser cannot write there
    locked, own = source / "below a file", tmp_path / "own" / "fleetopt"
    assert find(source, (locked, own))._name == str(libraries(own)[0])
    with pytest.raises(KernelUnavailable, match=r"below a file: cannot be written \(Not a directory\)"):
        find(source, (locked,))


def test_a_folder_without_the_right_to_write(source: Path, tmp_path: Path) -> None:
    source.parent.chmod(0o500)
    if os.access(source.parent, os.W_OK):
        pytest.skip("everything is the superuser's to write")
    assert find(source, (source.parent, tmp_path / "own"))._name == str(libraries(tmp_path / "own")[0])


def test_a_full_disk_leaves_nothing_half_written(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(KernelUnavailable, match=r"cannot be written \(No space left"):
        find(source, (source.parent,))
    assert [*source.parent.iterdir()] == [source]


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_one_line_says_so(source: Path) -> None:
    with pytest.raises(KernelUnavailable, match="no C compiler was found"):
        find(source, (source.parent,))


def test_the_compiler_that_is_named_is_taken_and_no_other(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = next(compilers())
    monkeypatch.setenv("CC", f"{usual[0]} -DNAMED")
    assert next(compilers()) == [usual[0], "-DNAMED"] and len([*compilers()]) == 1
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(KernelUnavailable, match=r"no-such-compiler: No such file"):
        find(source, (source.parent,))


def test_what_the_compiler_complains_of_is_told(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "compilers", lambda: iter([next(compilers())]))
    source.write_text("int broken(\n")
    with pytest.raises(KernelUnavailable, match=r"fails \(\d+\): .*error") as told:
        find(source, (source.parent,))
    assert "\n" not in told.value.message


def test_the_next_compiler_is_tried_where_one_only_stands_there(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = next(compilers())
    stub = tmp_path / "stub"
    stub.write_text("#!/bin/sh\necho 'error: install the command line tools' >&2\nexit 1\n")
    stub.chmod(0o755)
    monkeypatch.setattr(build, "compilers", lambda: iter([[str(stub)], real]))
    assert find(source, (source.parent,)).fleetopt_interface() == INTERFACE


def test_a_source_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(KernelUnavailable, match=r"kernel\.c: cannot be read \(No such file"):
        find(tmp_path / "kernel.c", (tmp_path,))


def test_builders_at_once_leave_one_library(source: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from planner.predict.library import find\n"
        "source = Path(sys.argv[1])\n"
        "print(find(source, (source.parent,)).fleetopt_interface())"
    )
    line = [sys.executable, "-c", script, str(source)]
    started = [subprocess.Popen(line, stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(4)]
    assert [one.communicate()[0].strip() for one in started] == [str(INTERFACE)] * 4
    assert len(libraries(source.parent)) == 1 and len([*source.parent.iterdir()]) == 2


@pytest.mark.usefixtures("asked_anew")
def test_python_or_c_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for asked in ("", "c"):
        monkeypatch.setenv(library.VARIABLE, asked)
        found, told = library.in_use()
        assert isinstance(found, ctypes.CDLL) and Path(told).name.startswith(stem())
    monkeypatch.setenv(library.VARIABLE, "python")
    assert library.in_use() == (None, "FLEETOPT_KERNEL=python asks for it")
    monkeypatch.setenv(library.VARIABLE, "pyhton")
    with pytest.raises(InputError, match=r"^FLEETOPT_KERNEL=pyhton: expected c or python; did you mean 'python'\?$"):
        library.in_use()


@pytest.mark.usefixtures("asked_anew", "no_compiler")
def test_python_does_the_work_of_a_kernel_that_is_missing(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "SOURCE", source)
    monkeypatch.delenv(library.VARIABLE, raising=False)
    # as where HOME is not set and the user has no entry: nothing is looked for in the working directory
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", str)
    found, told = library.in_use()
    assert found is None and "no C compiler" in told
    (finding,) = doctor._kernel()
    assert (finding.what, finding.state) == ("kernel", "worth knowing") and "in Python" in finding.told
    monkeypatch.setenv(library.VARIABLE, "c")
    for _ in range(2):
        with pytest.raises(KernelUnavailable, match="no C compiler"):
            library.in_use()


def test_the_doctor_says_which_kernel_is_in_use() -> None:
    (finding,) = doctor._kernel()
    assert finding.state == "good" and finding.told.startswith("compiled, ") and stem() in finding.told


def test_the_users_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert library.user_directory() == tmp_path / "fleetopt"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert library.user_directory() == tmp_path / ".cache" / "fleetopt"


def builder() -> Any:
    """What builds wheels of this checkout."""
    if not (ROOT / "hatch_build.py").exists():
        pytest.skip("the package is installed and its checkout is not here")
    return pytest.importorskip("hatchling.builders.wheel").WheelBuilder(str(ROOT))


def wheel(folder: Path) -> list[str]:
    """A wheel of this checkout, and the names of its files."""
    (made,) = builder().build(directory=str(folder), versions=["standard"])
    return [made, *zipfile.ZipFile(made).namelist()]


STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", *(["-Wl,-z,defs"] if sys.platform == "linux" else [])]
"""No warning; square roots are instructions, so that no mathematics library is asked."""


def test_a_wheel_holds_the_library_and_is_for_this_kind_of_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if gcc := shutil.which("gcc"):
        monkeypatch.setenv("CC", shlex.join([gcc, *STRICT]))
    stale = ROOT / "planner" / "predict" / f"_kernel-of-an-editable-install{SUFFIX}"
    stale.touch()
    try:
        path, *names = wheel(tmp_path)
    finally:
        stale.unlink(missing_ok=True)
    assert "-py3-none-" in path and not path.endswith("-any.whl")
    assert "planner/predict/kernel.c" in names
    (inside,) = (name for name in names if "_kernel-" in name)
    assert build.is_whole(Path(zipfile.ZipFile(path).extract(inside, tmp_path)))


def test_a_wheel_without_the_library_is_for_any_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEETOPT_KERNEL", "python")
    path, *names = wheel(tmp_path)
    assert path.endswith("-py3-none-any.whl") and not [name for name in names if "_kernel-" in name]


@pytest.mark.usefixtures("no_compiler")
def test_a_build_asks_for_a_compiler_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "ziglang" in builder().config.dependencies
    with pytest.raises(SystemExit):
        wheel(tmp_path)
    assert "no C compiler was found" in "".join(capsys.readouterr())
    monkeypatch.setenv("FLEETOPT_KERNEL", "python")
    assert "ziglang" not in builder().config.dependencies


def test_clang_too_builds_the_kernels_source_without_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """As gcc does for the wheel above."""
    if clang := shutil.which("clang"):
        monkeypatch.setenv("CC", shlex.join([clang, *STRICT]))
        assert build.compiled()
