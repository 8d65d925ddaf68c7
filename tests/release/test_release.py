"""The script that makes releases: what it looks for in wheels and sdists, and wheels for machines of another kind."""

from __future__ import annotations

import zipfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from planner.shared.version import __version__

ROOT = Path(__file__).resolve().parents[2]
TAG = "manylinux_2_17_x86_64.manylinux2014_x86_64"


def tool(name: str) -> ModuleType:
    """A script of tools/."""
    spec = spec_from_file_location(f"tool_{name}", ROOT / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script; what a library's format says is told by lief, which tests do without."""
    found = tool("release")
    monkeypatch.setattr(found, "wrong_of_library", lambda binary, tag: [])
    return found


def wheel(folder: Path, tag: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel that says it is for a platform."""
    from hatchling.builders.wheel import WheelBuilder

    monkeypatch.setenv("FLEETOPT_PLATFORM", tag)
    (made,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    return Path(made)


PLATFORMS = [
    ("win_amd64", ".dll"),
    *(
        pytest.param(*of, marks=pytest.mark.long("other platforms; Windows in CI"))
        for of in (("macosx_11_0_arm64", ".dylib"), ("musllinux_1_2_aarch64", ".so"))
    ),
]


@pytest.mark.parametrize(("tag", "suffix"), PLATFORMS)
def test_a_wheel_for_another_platform_is_named_for_it(
    tmp_path: Path, tag: str, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = wheel(tmp_path, tag, monkeypatch)
    assert made.name == f"fleetopt-{__version__}-py3-none-{tag}.whl"
    (library,) = (name for name in zipfile.ZipFile(made).namelist() if "/_kernel-" in name)
    assert library.endswith(suffix)


def test_what_is_wrong_with_a_wheel_is_told(tmp_path: Path, release: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    good = wheel(tmp_path, TAG, monkeypatch)
    assert release.wrong_of_wheel(good, TAG) == []
    assert release.wrong_of_wheel(good, "musllinux_1_2_x86_64") == ["no tag musllinux_1_2_x86_64"]
    monkeypatch.setattr(release, "MOST_BYTES", 1000)
    assert release.wrong_of_wheel(good, TAG) == [f"{good.stat().st_size:,} bytes"]
    monkeypatch.undo()
    monkeypatch.setattr(release, "wrong_of_library", lambda binary, tag: [])

    def changed(leave: str, **more: bytes) -> list[str]:
        other = tmp_path / "other.whl"
        with (
            zipfile.ZipFile(good) as packed,
            zipfile.ZipFile(other, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as written,
        ):
            for name in packed.namelist():
                if leave not in name:
                    written.writestr(name, packed.read(name))
            for name, data in more.items():
                written.writestr(name.replace("__", "/"), data)
        found: list[str] = release.wrong_of_wheel(other, TAG)
        return found

    assert changed("licenses/LICENSE") == ["lacks .dist-info/licenses/LICENSE"]
    assert changed("nothing", tests__x=b"") == ["holds tests/x"]
    assert changed("_workloads/README") == ["lacks planner/_workloads/README.md"]
    assert changed("/_kernel-") == ["libraries []"]
    assert "planner/_workloads/mine.csv: says no licence" in changed(
        "nothing", **{"planner__" + "_workloads/mine.csv": b"a\n"}
    )
    (damaged,) = changed("/_kernel-", **{"planner__predict/_kernel-0123-4567.so": b"no library"})
    assert damaged.endswith("not the bytes it is named for")


def test_copies_are_made_where_there_is_no_history(
    tmp_path: Path, release: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    (source / ".venv").mkdir(parents=True)
    (source / "pyproject.toml").write_text("[project]\n", encoding="utf-8")
    monkeypatch.setattr(release, "ROOT", source)
    (tmp_path / "work").mkdir()
    for place in release.checkouts(tmp_path / "work"):
        assert [path.name for path in place.iterdir()] == ["pyproject.toml"]


def test_the_version_is_one() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == __version__
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_site_has_every_document_and_every_link_leads_somewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tool("site")
    monkeypatch.setattr(site, "PAGES", tmp_path)
    documents = {*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"}
    assert documents <= {ROOT / source for source in site.SOURCES.values()}
    for page, source in site.SOURCES.items():
        # raises where a link leads nowhere
        assert site.moved((ROOT / source).read_text(encoding="utf-8"), page, source).strip()
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert {line.rpartition(": ")[2] for line in text.splitlines() if line.endswith(".md")} == {
        *site.SOURCES,
        "start/notebooks.md",
    }


def test_the_site_runs_what_needs_nothing_of_yours(tmp_path: Path) -> None:
    site = tool("site")
    (tmp_path / "plan.yaml").touch()
    run = ("fleetopt evaluate plan.yaml --rate 30", "fleetopt plan --cdf azure.csv -o new.yaml", "echo 1 >> mine.jsonl")
    left = (
        "fleetopt evaluate other.yaml",
        "fleetopt check plan.yaml --prometheus http://x",
        "rm -rf /",
        "fleetopt calibrate --gpu a100",
    )
    assert all(site.runs_here(line, tmp_path) for line in run) and not any(
        site.runs_here(line, tmp_path) for line in left
    )
    fenced = "1. a\n\n   ```bash\n   fleetopt a \\\n     --b\n   ```\n"
    text = f"See:\n\n{fenced}\nand\n\n    fleetopt c   # why\n\n```text\n$ fleetopt d\n```\n"
    assert [line for found in site.BLOCK.finditer(text) for line in site.lines_of(found[0])] == [
        "fleetopt a --b",
        "fleetopt c # why",
    ]
