"""Wheels for every platform and the sdist of the last commit: ``python tools/release.py [FOLDER] [--only NAME] [--once]``.

Each wheel is built in two checkouts at different places and must be the same bytes; then it is looked into: what it must hold and
must not, its size, its library as far as the format goes (machine, names, what it wants of the system), and what ``twine check``
says. A library of this kind of machine is opened and asked too, that for musl by a program of musl's where ``musl-gcc`` is here
(Debian's musl-tools). Needs what the extra ``release`` installs: zig compiles for all of them. It takes five minutes, of which
Windows' first library takes one.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MOST_BYTES = 4_000_000

TARGETS = {
    "manylinux_2_17_x86_64.manylinux2014_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux_2_17_aarch64.manylinux2014_aarch64": "aarch64-linux-gnu.2.17",
    "musllinux_1_2_x86_64": "x86_64-linux-musl",
    "musllinux_1_2_aarch64": "aarch64-linux-musl",
    "macosx_11_0_x86_64": "x86_64-macos.11.0",
    "macosx_11_0_arm64": "aarch64-macos.11.0",
    "win_amd64": "x86_64-windows-gnu",
}
"""Platform of a wheel -> target of zig."""

FORMATS = {"linux": ("ELF", "machine_type"), "macos": ("MACHO", "cpu_type"), "windows": ("PE", "machine")}
"""System -> format of its libraries, and where a head names the machine."""

MACHINES = {"x86_64": ("X86_64", "AMD64"), "aarch64": ("AARCH64", "ARM64")}
"""Architecture of zig -> what the formats call it."""

WANTED = re.compile(r"libc\.so(\.6)?|/usr/lib/libSystem\.B\.dylib|KERNEL32\.dll|api-ms-win-crt-[\w-]+\.dll")
"""Libraries that every such system has; of glibc at most version 2.17, of macOS 11.0."""

CALLS = {f"fleetopt_{name}" for name in ("interface", "open", "advance", "order", "close")}

MUST = (
    "planner/py.typed", "planner/predict/kernel.c", "planner/_workloads/README.md", "planner/_workloads/azure.csv", "fleetopt.py",
    "planner/catalog/gpus.yaml", "planner/report/page.css", "planner/schemas/plan-2.json", "planner/cli/completion.json",
)  # fmt: skip
MUST_NOT = re.compile(r"(^|/)(tests?|benchmarks|docs|tools|\.ci|__pycache__)/|\.pyc$|\.partial$")


def built(checkout: Path, folder: Path, tag: str | None) -> tuple[Path, float]:
    """The wheel of a platform, or the sdist for ``None``, and the seconds it took."""
    begun = time.perf_counter()
    if tag is not None:
        # notes for debuggers, and the name a library of macOS calls itself by, would say in which folder it was built
        named = " -Wl,-install_name,@rpath/kernel.dylib" if tag.startswith("macosx") else ""
        target = f"{sys.executable} -m ziglang cc -target {TARGETS[tag]} -mcpu=baseline -s{named}"
        environment = os.environ | {"CC": target, "FLEETOPT_PLATFORM": tag}
    else:
        environment = dict(os.environ)
    before = set(folder.glob("*"))
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel" if tag else "sdist", "-d", str(folder)]
    subprocess.run(command, cwd=checkout, env=environment, check=True, capture_output=True, text=True)
    (made,) = set(folder.glob("*")) - before
    return made, time.perf_counter() - begun


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def wrong_of_wheel(wheel: Path, tag: str) -> list[str]:
    """What is wrong with the contents of a wheel."""
    problems = [] if wheel.stat().st_size <= MOST_BYTES else [f"{wheel.stat().st_size:,} bytes"]
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        problems += [f"holds {name}" for name in names if MUST_NOT.search(name)]
        problems += [f"lacks {name}" for name in MUST if name not in names]
        for beside in (".dist-info/licenses/LICENSE", ".data/data/share/man/man1/fleetopt.1"):
            problems += [] if any(name.endswith(beside) for name in names) else [f"lacks {beside}"]
        shipped = [n for n in names if re.fullmatch(r"planner/_workloads/.*\.csv", n)]
        problems += [f"{n}: says no licence" for n in shipped if b"\n# licence: " not in packed.read(n)[:4000]]
        head = next(packed.read(n).decode() for n in names if n.endswith(".dist-info/WHEEL"))
        problems += [f"no tag {t}" for t in tag.split(".") if f"Tag: py3-none-{t}\n" not in head]
        libraries = [n for n in names if "/_kernel-" in n]
        if len(libraries) != 1 or "Root-Is-Purelib: false" not in head:
            return [*problems, f"libraries {libraries}"]
        (name,) = libraries
        binary = packed.read(name)
    if not Path(name).stem.endswith(hashlib.sha256(binary).hexdigest()[:16]):
        problems.append(f"{name}: not the bytes it is named for")
    return problems + wrong_of_library(binary, tag)


def wrong_of_library(binary: bytes, tag: str) -> list[str]:
    """What is wrong with a library, as far as its format says."""
    import lief

    lief.logging.disable()
    target = TARGETS[tag]
    kind, machine = next(names for system, names in FORMATS.items() if f"-{system}" in target)
    found: Any = lief.parse(binary)
    if found is None or found.format.name != kind:
        return [f"no {kind} file"]
    what = getattr(found.header, machine).name
    problems = [] if what in MACHINES[target.partition("-")[0]] else [f"made for {what}"]
    exported = {str(f.name).removeprefix("_" if kind == "MACHO" else "") for f in found.exported_functions}
    problems += [f"has no {name}" for name in sorted(CALLS - exported)]
    libraries = {str(one) for one in found.libraries} if kind != "MACHO" else set()
    if kind == "MACHO":
        libraries = {one.name for one in found.libraries if one.command.name == "LOAD_DYLIB"}
        if list(found.build_version.minos[:2]) > [11, 0]:
            problems.append(f"wants macOS {found.build_version.minos}")
        if tag.endswith("arm64") and not found.has_code_signature:
            problems.append("not signed, so that no such Mac opens it")
    if kind == "ELF":
        versions = [v.name for r in found.symbols_version_requirement for v in r.get_auxiliary_symbols()]
        numbers = [[int(n) for n in re.findall(r"\d+", v)] for v in versions]
        problems += [f"wants {v}" for v, n in zip(versions, numbers, strict=True) if n > [2, 17]]
    return problems + [f"wants {name}" for name in sorted(libraries) if not WANTED.fullmatch(name)]


def runs_here() -> set[str]:
    """The platforms whose libraries Linux on x86-64 opens: its own, and musl's where its compiler is."""
    systems = ("manylinux", "musllinux") if shutil.which("musl-gcc") else ("manylinux",)
    return {tag for tag in TARGETS if tag.startswith(systems) and tag.endswith("x86_64")}


def answers(wheel: Path) -> bool:
    """Whether the library of a wheel of this kind of machine opens and speaks the interface of its package."""
    with zipfile.ZipFile(wheel) as packed, tempfile.TemporaryDirectory() as folder:
        name = next(n for n in packed.namelist() if "/_kernel-" in n)
        library = packed.extract(name, folder)
        if "-musllinux" in wheel.name:
            program = f"{folder}/interface"
            subprocess.run(["musl-gcc", "-o", program, str(ROOT / "tools" / "interface.c")], check=True)
            said = int(subprocess.run([program, library], check=True, capture_output=True, text=True).stdout)
        else:
            said = ctypes.CDLL(library).fleetopt_interface()
        source = packed.read("planner/predict/build.py").decode()
    return f"\nINTERFACE = {said}\n" in source


def checkouts(work: Path) -> list[Path]:
    """Two of the last commit, made with other rights of files; where there is no history, copies of what is there."""
    made = [work / "one", work / "somewhere" / "else"]
    for place, mask in zip(made, ("022", "027"), strict=True):
        place.parent.mkdir(exist_ok=True)
        if (ROOT / ".git").exists():
            subprocess.run(["sh", "-c", f"umask {mask}; git clone -q {ROOT} {place}"], check=True)
        else:
            shutil.copytree(
                ROOT, place, ignore=shutil.ignore_patterns(".venv", "build", "dist", "__pycache__", "_kernel-*")
            )
    return made


def main() -> None:
    """Build, compare, look into, and tell each file's bytes, digest and seconds."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", nargs="?", type=Path, default=ROOT / "dist")
    options.add_argument("--only", help="the platforms whose names match this, without the sdist")
    options.add_argument("--once", action="store_true", help="do not build a second time")
    given = options.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if (ROOT / ".git").exists():
        commit = ["git", "log", "-1", "--format=%ct"]
        done = subprocess.run(commit, cwd=ROOT, check=True, capture_output=True, text=True)
        os.environ["SOURCE_DATE_EPOCH"] = done.stdout.strip()
    here = f"{platform.system()} {platform.machine()} {platform.libc_ver()[0]}"
    problems: list[str] = []
    made = []
    with tempfile.TemporaryDirectory() as work:
        places = checkouts(Path(work))[: 1 if given.once else 2]
        for tag in [t for t in TARGETS if re.search(given.only or "", t)] + ([None] if given.only is None else []):
            # what zig makes of a system's own library is kept for the second build, the kernel is compiled again
            os.environ["ZIG_GLOBAL_CACHE_DIR"] = os.environ["ZIG_LOCAL_CACHE_DIR"] = f"{work}/zig"
            found = [built(place, Path(work, f"dist-{n}"), tag) for n, place in enumerate(places)]
            digests = [digest(path) for path, _ in found]
            target = given.folder / found[0][0].name
            target.write_bytes(found[0][0].read_bytes())
            made.append(str(target))
            wrong = [] if len(set(digests)) == 1 else [f"two builds differ: {' '.join(digests)}"]
            wrong += wrong_of_wheel(target, tag) if tag else wrong_of_sdist(target)
            asked = here == "Linux x86_64 glibc" and tag in runs_here()
            if asked and not answers(target):
                wrong.append("its library speaks another interface")
            told = "opened" if asked else "looked into"
            times = " + ".join(f"{seconds:.1f}" for _, seconds in found)
            same = f"sha256 {' and '.join(dict.fromkeys(digests))} of {len(found)} builds"
            print(f"{target.name}: {target.stat().st_size:,} bytes, {same}; {told}; {times} s", flush=True)
            problems += [f"{target.name}: {one}" for one in wrong]
    if subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *made]).returncode:
        problems.append("twine check refuses a file")
    sys.exit("\n".join(problems) or None)


def wrong_of_sdist(sdist: Path) -> list[str]:
    """What the source lacks or holds in vain."""
    with tarfile.open(sdist) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    must = (
        "pyproject.toml",
        "hatch_build.py",
        "LICENSE",
        "planner/predict/kernel.c",
        "workloads/README.md",
        "tests/conftest.py",
    )
    strange = [n for n in names if re.search(r"(^|/)(_kernel-|__pycache__|\.ci/|\.venv/)|\.(pyc|whl|so)$", n)]
    large = [f"{sdist.stat().st_size:,} bytes"] if sdist.stat().st_size > MOST_BYTES else []
    return [f"lacks {n}" for n in must if n not in names] + [f"holds {n}" for n in strange] + large


if __name__ == "__main__":
    main()
