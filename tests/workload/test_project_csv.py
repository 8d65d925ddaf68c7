"""The project's CSV: every shape it has, every mistake it can hold, and writing it back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from planner.errors import InputError
from planner.workload.combine import mix
from planner.workload.importing import read_workload
from planner.workload.resolve import shipped_names
from planner.workload.workload import Workload
from planner.workload.writer import csv_text


def write(folder: Path, text: str, name: str = "w.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


FOUR = """\
# name: small
# arrival_rate_per_s: 4
# requests: 10
tokens,cdf,input_tokens,output_tokens
100,0.25,60.5,20.5
100,0.5,30,50
400,1,300,50
"""


def test_four_columns(tmp_path: Path) -> None:
    w = Workload.from_file(write(tmp_path, FOUR))
    assert w.name == "small"
    assert w.arrivals.rate_per_s == 4.0
    assert w.mean_output == pytest.approx(0.25 * 20.5 + 0.25 * 50 + 0.5 * 50)
    assert w.cdf([50, 100, 250, 400]) == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert not w.provenance.exact


def test_rows_that_are_requests_are_exact(tmp_path: Path) -> None:
    w = Workload.from_file(write(tmp_path, "tokens,cdf,input_tokens,output_tokens\n100,0.5,80,20\n400,1,350,50\n"))
    assert w.provenance.exact
    assert w.cdf([99, 100, 399, 400]) == pytest.approx([0.0, 0.5, 0.5, 1.0])


def test_five_columns_and_aliases(tmp_path: Path) -> None:
    text = (
        "# rate_per_s: 8.0\n# ca2_60s: 1.6\n# compressible: conv=1 code=0\n# dispersion: 1=5.4 60=74\n# a remark\n"
        "TOKENS, CDF, Input_Tokens,output_tokens,category\n100,0.5,70,20,conv\n100,0.6,60,30,code\n400,1,300,50,code\n"
    )
    w = Workload.from_file(write(tmp_path, text))
    assert w.categories == ("code", "conv")
    assert w.compressible == (0.0, 1.0)
    assert w.arrivals.rate_per_s == 8.0
    assert (w.arrivals.scv, w.arrivals.scv_window_s) == (1.6, 60.0)
    assert w.arrivals.dispersion == ((1.0, 5.4), (60.0, 74.0))
    written = csv_text(w)
    for line in (
        "# arrival_rate_per_s: 8",
        "# arrival_scv: 1.6",
        "# arrival_scv_window_s: 60",
        "# compressible: code=0 conv=1",
    ):
        assert line in written


@pytest.mark.parametrize("text", ["1.5 window_s=60", "1.5 (60 s)", "1.5 over 60 s"])
def test_scv_with_its_window(tmp_path: Path, text: str) -> None:
    w = Workload.from_file(write(tmp_path, f"# arrival_scv: {text}\n" + FOUR))
    assert (w.arrivals.scv, w.arrivals.scv_window_s) == (1.5, 60.0)


def test_older_category_lines(tmp_path: Path) -> None:
    lines = "# category: conv 0.69 compressible\n# category: code 0.31 incompressible\n"
    w = Workload.from_file(write(tmp_path, lines + FOUR))
    assert w.compressible == (0.69,)
    assert any("assumed at every length" in note for note in w.provenance.notes)
    rows = "tokens,cdf,input_tokens,output_tokens,category\n100,0.5,70,20,conv\n400,1,300,50,code\n"
    assert Workload.from_file(write(tmp_path, lines + rows)).compressible == (0.0, 1.0)


def test_plain_cdf_with_stated_means(tmp_path: Path) -> None:
    text = "# mean_input: 200\n# mean_output: 55\ntokens,cdf\n100,0.25\n200,0.25\n400,1\n"
    w = Workload.from_file(write(tmp_path, text))
    assert w.mean_input == pytest.approx(200.0, rel=1e-9)
    assert w.mean_output == pytest.approx(55.0, rel=1e-9)
    assert w.cdf([50, 100, 150, 200, 300, 400]) == pytest.approx([0.125, 0.25, 0.25, 0.25, 0.625, 1.0])
    assert w.provenance.length_split is not None and "assumed" in w.provenance.length_split


def test_plain_cdf_with_a_share(tmp_path: Path) -> None:
    path = write(tmp_path, "tokens,cdf\n100,0.5\n300,1\n")
    w = Workload.from_file(path, output_share=0.2)
    assert w.mean_output / w.mean_total == pytest.approx(0.2)
    # uniform in the bins: mean and second moment of the total are those of the law
    assert w.mean_total == pytest.approx(0.5 * 50 + 0.5 * 200)
    assert w.moment("total", 2) == pytest.approx(0.5 * 100**2 / 3 + 0.5 * (200**2 + 200**2 / 12))
    with pytest.raises(InputError, match="how much of a request is output"):
        Workload.from_file(path)


BAD = {
    "header only": ("tokens,cdf\n", "no rows"),
    "comments only": ("# name: x\n", "no rows|not a format"),
    "not monotone": ("# output_share: 0.2\ntokens,cdf\n100,0.5\n200,0.4\n300,1\n", r"w.csv:4: cdf 0.4 after 0.5"),
    "not sorted": ("# output_share: 0.2\ntokens,cdf\n200,0.5\n100,1\n", r"w.csv:4: tokens 100 after 200"),
    "does not end at 1": ("# output_share: 0.2\ntokens,cdf\n100,0.5\n200,0.9\n", r"w.csv:4: the cdf ends at 0.9"),
    "above 1": ("# output_share: 0.2\ntokens,cdf\n100,0.5\n200,1.5\n", r"w.csv:4: cdf 1.5 is above 1"),
    "negative": ("tokens,cdf,input_tokens,output_tokens\n100,1,-5,3\n", r"w.csv:2: input_tokens '-5'"),
    "garbage": ("tokens,cdf,input_tokens,output_tokens\n100,1,12.5abc,3\n", r"w.csv:2: input_tokens '12.5abc'"),
    "nan": ("tokens,cdf,input_tokens,output_tokens\n100,1,5,nan\n", r"w.csv:2: output_tokens 'nan'"),
    "infinite": ("tokens,cdf,input_tokens,output_tokens\ninf,1,5,5\n", r"w.csv:2: tokens 'inf'"),
    "three columns": ("tokens,cdf,input_tokens\n100,1,5\n", r"w.csv:1: 3 columns"),
    "ragged": ("tokens,cdf,input_tokens,output_tokens\n100,1,5\n", r"w.csv:2: 3 columns instead of 4"),
    "wrong header": ("tokens,cdf,out,in\n100,1,5,5\n", r"w.csv:1: header"),
    "bad rate": ("# arrival_rate_per_s: -3\n" + FOUR.partition("4\n")[2], r"w.csv:1: arrival_rate_per_s"),
    "bad pairs": ("# compressible: foo\n" + FOUR, r"w.csv:1: compressible: 'foo' is not name=number"),
    "bad profile": ("# hourly_profile: 1 2 3\n" + FOUR, "hourly_profile needs 24 or 168"),
    "unknown category": (
        "# compressible: chat=1\ntokens,cdf,input_tokens,output_tokens,category\n100,1,5,5,conv\n",
        r"w.csv:1: compressible: no row has category 'chat'",
    ),
    "means that cannot be": (
        "# mean_input: 900\n# mean_output: 90\ntokens,cdf\n100,0.5\n200,1\n",
        "the CDF allows only",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_get_one_error_with_the_line(tmp_path: Path, case: str) -> None:
    text, message = BAD[case]
    with pytest.raises(InputError, match=message):
        read_workload(write(tmp_path, text))


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    text = "tokens,cdf,input_tokens,output_tokens\n100,0.5,-5,3\n200,x,2,3\n300,1,nan,12abc\n"
    with pytest.raises(InputError) as caught:
        read_workload(write(tmp_path, text))
    assert len(caught.value.problems) == 4
    rows = "".join(f"{k},0.5,-1,-1\n" for k in range(1, 100))
    with pytest.raises(InputError) as caught:
        read_workload(write(tmp_path, "tokens,cdf,input_tokens,output_tokens\n" + rows))
    assert len(caught.value.problems) == 198
    assert str(caught.value).endswith("... and 173 more")


def same_law(a: Workload, b: Workload, tolerance: float = 1e-4) -> None:
    totals = np.unique(np.concatenate([a.breakpoints(), b.breakpoints()]))
    np.testing.assert_allclose(a.cdf(totals), b.cdf(totals), atol=1e-8)
    assert b.mean_input == pytest.approx(a.mean_input, rel=tolerance)
    assert b.mean_output == pytest.approx(a.mean_output, rel=tolerance)
    assert b.iterations(512) == pytest.approx(a.iterations(512), rel=tolerance)


@pytest.mark.parametrize("name", shipped_names())
def test_written_and_read_again_is_the_same(tmp_path: Path, name: str) -> None:
    first = Workload.from_file(name)
    again = Workload.from_file(write(tmp_path, csv_text(first)))
    same_law(first, again)
    assert again.categories == first.categories
    assert again.compressible == first.compressible
    assert again.arrivals.dispersion == first.arrivals.dispersion
    assert again.quantile(0.99, "output") == pytest.approx(first.quantile(0.99, "output"), rel=1e-4)


def test_a_mix_of_bins_and_requests_survives_writing(tmp_path: Path) -> None:
    requests = Workload.from_arrays([100, 5000, 777], [11, 900, 3], name="requests")
    both = mix([Workload.from_file("azure-code"), requests], [3, 1])
    same_law(both, Workload.from_file(write(tmp_path, csv_text(both))))


def test_a_trace_written_row_by_row_stays_exact(tmp_path: Path) -> None:
    trace = Workload.from_arrays([100, 5000, 777], [11, 900, 3])
    again = Workload.from_file(write(tmp_path, csv_text(trace)))
    assert again.provenance.exact
    same_law(trace, again, 1e-9)
