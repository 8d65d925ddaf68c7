"""``fleetopt doctor``: whether an installation is well: versions, extras, files of the user's own, and a plan from end to end."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from importlib import metadata
from typing import Any, ClassVar

from planner.cli import options as opt
from planner.errors import CheckFailedError, FleetOptError
from planner.shared.record import Record
from planner.shared.version import __version__

GOOD, WORTH_KNOWING, BAD = "good", "worth knowing", "bad"

EXTRAS = {
    "gpu": ("torch",),
    "plot": ("matplotlib",),
    "parquet": ("pyarrow",),
    "compress": ("sentencex", "scikit-learn", "tokenizers", "aiohttp", "prometheus-client"),
}
"""Extra -> packages."""


@dataclass(frozen=True, slots=True)
class Finding(Record):
    """One thing looked at: what, how it is (``good``, ``worth knowing`` or ``bad``), and in words."""

    what: str
    state: str
    told: str


@dataclass(frozen=True, slots=True)
class Checkup(Record):
    """Everything looked at.

    Parameters
    ----------
    findings
        In the order of looking.
    """

    findings: tuple[Finding, ...]

    document: ClassVar[str] = "fleetopt-checkup"
    written: ClassVar[tuple[str, ...]] = ("well", "findings")

    @property
    def well(self) -> bool:
        """Whether nothing is bad."""
        return all(f.state != BAD for f in self.findings)

    def to_rows(self) -> list[dict[str, object]]:
        """One row per finding."""
        return [f.to_dict() for f in self.findings]


def checkup() -> Checkup:
    """Look at everything; what fails with one of our errors is bad, anything else is a bug and is raised."""
    found: list[Finding] = []
    for look in (_python, _packages, _kernel, _extras, _gpu, _profiles, _prices, _plan):
        try:
            found += look()
        except FleetOptError as error:
            found.append(Finding(look.__name__.strip("_"), BAD, error.message))
    return Checkup(tuple(found))


def _known(what: str, well: object, told: str, otherwise: str | None = None) -> Finding:
    """Good where it is well, else worth knowing, in other words where there are some."""
    return Finding(what, GOOD if well else WORTH_KNOWING, told if well or otherwise is None else otherwise)


def _python() -> Iterator[Finding]:
    told = f"fleetopt {__version__} on Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    yield Finding("python", GOOD if sys.version_info >= (3, 11) else BAD, told)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _packages() -> Iterator[Finding]:
    import yaml

    for package in ("typer", "numpy", "scipy", "mpmath", "rich", "pyyaml"):
        version = _version(package)
        yield Finding(package, GOOD if version else BAD, version or "missing: install fleetopt again")
    if not yaml.__with_libyaml__:
        yield Finding("pyyaml", WORTH_KNOWING, "without libyaml: files are read ten times slower")


def _kernel() -> Iterator[Finding]:
    """What replays are done by: the compiled kernel, or Python."""
    from planner.predict.library import in_use

    library, told = in_use()
    slow = f"replays in Python, about 100 times slower: {told}"
    yield _known("kernel", library is not None, f"compiled, {told}", slow)


def _extras() -> Iterator[Finding]:
    for extra, packages in EXTRAS.items():
        missing = [p for p in packages if _version(p) is None]
        lacking = f"{', '.join(missing)} missing: install the extra where it is needed"
        yield _known(f"extra {extra}", not missing, "installed", lacking)


def _gpu() -> Iterator[Finding]:
    """What `calibrate` would measure here, without loading torch."""
    import shutil
    import subprocess

    from planner.catalog.load import gpu as find_gpu

    tool = shutil.which("nvidia-smi")
    if tool is None:
        told = "no nvidia-smi: plans need no GPU, `calibrate` can measure a server instead (--server)"
        return (yield Finding("gpu", WORTH_KNOWING, told))
    try:
        query = [tool, "--query-gpu=name", "--format=csv,noheader"]
        names = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout.split("\n")
    except (OSError, subprocess.SubprocessError) as error:
        told = f"nvidia-smi does not answer ({error.__class__.__name__})"
        return (yield Finding("gpu", WORTH_KNOWING, told))
    for name in dict.fromkeys(n.strip() for n in names if n.strip()):
        try:
            yield Finding("gpu", GOOD, f"{name}: {find_gpu(name).name} of the catalog")
        except FleetOptError:
            yield Finding("gpu", WORTH_KNOWING, f"{name}: not in the catalog; a profile of it can still be measured")


def _profiles() -> Iterator[Finding]:
    """Profiles in the user's folder, and which of them cannot be read."""
    from planner.catalog.profiles import load_profile, user_directory

    folder = user_directory()
    files = sorted(folder.glob("*.y*ml")) if folder.is_dir() else []
    if not files:
        told = f"none of your own in {folder}: iteration times are shipped or estimated (fleetopt calibrate)"
        yield Finding("profiles", WORTH_KNOWING, told)
    for path in files:
        try:
            found = load_profile(path)
            yield Finding("profiles", GOOD, f"{path.name}: {found.model} on {found.gpu}, {found.provenance}")
        except FleetOptError as error:
            yield Finding("profiles", BAD, error.message)


def _prices() -> Iterator[Finding]:
    """How old the newest price is."""
    from planner.catalog.load import price_offers
    from planner.catalog.prices import STALE_DAYS

    days = [date.fromisoformat(str(o.date)) for o in price_offers()]
    if not days:
        yield Finding("prices", BAD, "no price list")
        return
    age = (date.today() - max(days)).days
    told = f"{len(days)} offers, the newest seen {age} days ago"
    yield _known("prices", age <= STALE_DAYS, told)


def _plan() -> Iterator[Finding]:
    """A small question through every room."""
    import planner as fo

    begun = time.perf_counter()
    found: Any = fo.plan(
        isl=512, osl=128, rate=5, slo=1.0, gpu="h100", model="llama-3.1-8b", price={"h100": 2.0}, pools=1
    )
    taken = time.perf_counter() - begun
    told = f"{found.replicas} replica{'s' if found.replicas != 1 else ''} for a small question, {taken:.1f} s"
    yield Finding("plan", GOOD, told)


@opt.verb()
def doctor() -> Iterator[Any]:
    """Versions, extras, GPU, your profiles, the age of the prices, and a plan from end to end. Exit code 6 when one is bad."""
    yield (found := checkup())
    if bad := next((f for f in found.findings if f.state == "bad"), None):
        raise CheckFailedError(f"{bad.what}: {bad.told}")
