"""The numbers of images of requests, from the formats that have them, and back."""

import json
from pathlib import Path

import pytest

from planner.errors import InputError
from planner.workload.calls import images_in
from planner.workload.formats.base import ReadOptions
from planner.workload.importing import import_files, read_workload
from planner.workload.workload import Workload
from planner.workload.writer import csv_text

ROWS = [(0.0, 100, 10, "chat", 2), (0.5, 200, 20, "chat", 0), (1.0, 300, 30, "doc", 1), (1.5, 400, 40, "doc", 0)]
EXPECTED = {"chat": 0.25, "chat:2-images": 0.25, "doc": 0.25, "doc:1-images": 0.25}


def shares(workload: Workload) -> dict[str, float]:
    """Share of requests by category."""
    return dict(zip(workload.categories, workload.category_shares().tolist(), strict=True))


def table(time: str, rows: list[tuple[object, ...]] = ROWS) -> str:
    """As CSV."""
    return "\n".join([f"{time},input_tokens,output_tokens,category,images", *(",".join(map(str, r)) for r in rows), ""])


@pytest.mark.parametrize("time", ["t_s", "timestamp"])
def test_a_csv(tmp_path: Path, time: str) -> None:
    (tmp_path / "a.csv").write_text(table(time))
    found = Workload.from_file(tmp_path / "a.csv")
    assert shares(found) == EXPECTED and images_in(found.categories) == {"chat:2-images": 2, "doc:1-images": 1}
    # lengths are as they were: tokens of images depend on the model
    assert found.mean_input == 250.0


def test_json_lines_name_their_pictures(tmp_path: Path) -> None:
    records = [{"prompt_tokens": r[1], "completion_tokens": r[2], "images": ["x.png"] * int(r[4])} for r in ROWS]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, records)))
    assert shares(Workload.from_file(tmp_path / "a.jsonl")) == {"0-images": 0.5, "1-images": 0.25, "2-images": 0.25}


def test_blank_is_none_and_other_names_are_mapped(tmp_path: Path) -> None:
    text = table("timestamp").replace("images", "pictures").replace(",0\n", ",\n")
    (tmp_path / "a.csv").write_text(text)
    found, _ = read_workload(tmp_path / "a.csv", columns={"images": "pictures"})
    assert shares(found) == EXPECTED


def test_written_and_read_again(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(table("t_s"))
    found = Workload.from_file(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text(csv_text(found))
    again = Workload.from_file(tmp_path / "b.csv")
    assert again.digest == found.digest and images_in(again.categories) == images_in(found.categories)


def test_a_name_given_to_a_file_keeps_its_images(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(table("timestamp"))
    found, _ = import_files([("mine", str(tmp_path / "a.csv"))], ReadOptions())
    assert shares(found) == {"mine": 0.5, "mine:1-images": 0.25, "mine:2-images": 0.25}


def test_a_law_has_them_too(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        "# fleetopt-workload: 2\ninput_tokens,output_tokens,weight,images\n100,10,3,0\n200,20,1,2\n"
    )
    assert shares(Workload.from_file(tmp_path / "a.csv")) == {"0-images": 0.75, "2-images": 0.25}


@pytest.mark.parametrize("images", ["-1", "1.5", "many", "100000", "nan"])
def test_what_is_no_number_of_images(tmp_path: Path, images: str) -> None:
    for time in ("t_s", "timestamp"):
        (tmp_path / "a.csv").write_text(table(time, [(0.0, 100, 10, "chat", images)]))
        with pytest.raises(InputError, match="is not a number of images"):
            Workload.from_file(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text(
        f"# fleetopt-workload: 2\ninput_tokens,output_tokens,weight,images\n100,10,3,{images}\n"
    )
    with pytest.raises(InputError, match="images"):
        Workload.from_file(tmp_path / "a.csv")
