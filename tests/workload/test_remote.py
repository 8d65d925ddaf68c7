"""Files that lie elsewhere or are many: patterns, addresses through fsspec, other packings."""

from __future__ import annotations

import bz2
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planner.errors import InputError
from planner.workload.formats.base import ReadOptions
from planner.workload.importing import import_files, read_workload
from planner.workload.resolve import expand, shown

LOG = "timestamp,input_tokens,output_tokens\n" + "".join(f"{k},{100 + k},{k + 1}\n" for k in range(40))


@pytest.fixture
def store() -> Iterator[Any]:
    """An object store in this process."""
    fsspec = pytest.importorskip("fsspec")
    system = fsspec.filesystem("memory")
    for day in (1, 2):
        system.pipe(f"/logs/day{day}.csv", LOG.encode())
    yield system
    system.rm("/logs", recursive=True)


def test_a_pattern_is_all_its_files_in_time(tmp_path: Path) -> None:
    for day in (1, 2, 3):
        (tmp_path / f"day{day}.csv").write_text(LOG)
    workload, reports = import_files([(None, tmp_path / "day*.csv")], ReadOptions())
    assert [r.requests for r in reports] == [40, 40, 40]
    assert workload.provenance.requests == 120
    with pytest.raises(InputError, match="no file matches"):
        import_files([(None, tmp_path / "night*.csv")], ReadOptions())


def test_an_address_is_read_as_the_file_it_is(store: Any, tmp_path: Path) -> None:
    (tmp_path / "day1.csv").write_text(LOG)
    here, _ = read_workload(tmp_path / "day1.csv")
    there, report = read_workload("memory://logs/day1.csv")
    assert there.to_dict() == here.to_dict()
    assert report.path == "memory://logs/day1.csv"
    both, reports = import_files([("chat", "memory://logs/*.csv")], ReadOptions())
    assert (both.provenance.requests, len(reports)) == (80, 2)


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("memory://logs/none.csv", "nothing is there"),
        ("nowhere://logs/day.csv", "cannot be read"),
        ("memory://nothing/*.csv", "no file matches"),
    ],
)
def test_what_cannot_be_had_is_said(address: str, says: str, store: Any) -> None:
    with pytest.raises(InputError, match=says):
        import_files([(None, address)], ReadOptions())


def test_a_key_in_an_address_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec")

    def fail(*_: Any) -> Any:
        raise OSError("403 for https://me:hunter2@127.0.0.1/day.csv?sig=topsecret")

    monkeypatch.setattr("fsspec.core.url_to_fs", fail)
    with pytest.raises(InputError) as caught:
        read_workload("https://me:hunter2@127.0.0.1/day.csv?sig=topsecret")
    assert "127.0.0.1/day.csv" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "topsecret" not in str(caught.value)
    assert shown("s3://bucket/a/b.parquet") == "s3://bucket/a/b.parquet"


def test_a_signature_in_an_address_is_no_pattern() -> None:
    signed = "https://bucket.example/day.csv?X-Amz-Signature=a*[b"
    assert expand(signed) == [signed]


@pytest.mark.parametrize("pack", [bz2.compress, lzma.compress], ids=["bzip2", "xz"])
def test_other_packings(pack: Any, tmp_path: Path) -> None:
    path = tmp_path / "log.csv.packed"
    path.write_bytes(pack(LOG.encode()))
    assert read_workload(path)[1].requests == 40
    path.write_bytes(pack(LOG.encode())[:-20])
    with pytest.raises(InputError, match=r"packed file|unpack"):
        read_workload(path)
