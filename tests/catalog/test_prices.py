"""Price lists: reading, importing other projects' files, choosing an offer, and what a plan says of it."""

from __future__ import annotations

import json
from datetime import date, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planner.catalog.load import gpus, price_offers
from planner.catalog.price_files import match_gpu, read_price_file
from planner.catalog.prices import COLUMNS, STALE_DAYS, Offer, parse_offers, reference_offer, save_offers
from planner.cli.main import app
from planner.errors import InputError

# as SkyPilot's catalogs/v8 hold them: the order of columns differs between vendors, GpuInfo is a Python literal or JSON,
# MemoryInfo in MiB or (RunPod) in GiB, SpotPrice may be empty, CPU rows have no accelerator
SKYPILOT = """\
InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice
cpu-d3_4vcpu-16gb,,0,4,16,0.0992,eu-north1,,
gpu-h100-sxm_1gpu-16vcpu-200gb,H100,1,16,200,2.95,eu-north1,"{'Gpus': [{'Count': 1, 'MemoryInfo': {'SizeInMiB': 81920}}]}",1.25
gpu-h100-sxm_8gpu,H100,8,128,1600,23.60,eu-north1,"{'Gpus': [{'Count': 8, 'MemoryInfo': {'SizeInMiB': 81920}}]}",10.00
gpu_1x_h100_pcie,H100,1.0,26.0,225.0,3.29,us-west-1,"{""Gpus"": [{""MemoryInfo"": {""SizeInMiB"": 81920}}]}",
1x_A100-80GB_SECURE,A100-80GB,1.0,8.0,117.0,1.39,IN,"{'Gpus': [{'Name': 'A100', 'Count': 1, 'MemoryInfo': {'SizeInMiB': 80}}]}",1.39
a2-highgpu-1g,A100,1.0,12.0,85.0,3.67,us-central1,"{'Gpus': [{'Name': 'A100', 'Count': 1, 'MemoryInfo': {'SizeInMiB': 40960}}]}",1.1
gpu_8x_v100,V100,8.0,92.0,448.0,6.32,us-east-1,"{'Gpus': [{'Name': 'V100', 'Count': 8.0, 'MemoryInfo': {'SizeInMiB': 16384}}]}",
"""

# gpuhunt's catalog v2: one file per provider, no provider column
GPUHUNT = """\
instance_name,location,price,cpu,memory,gpu_count,gpu_name,gpu_memory,spot,disk_size,gpu_vendor,flags,cpu_arch,provider_data
p5.48xlarge,us-east-1,55.04,192,2048.0,8,H100,80.0,False,,nvidia,,x86,{}
p5.48xlarge,us-east-1,30.0,192,2048.0,8,H100,80.0,True,,nvidia,,x86,{}
g6.xlarge,us-east-1,0.8048,4,16.0,1,L4,24.0,False,,nvidia,,x86,{}
m5.large,us-east-1,0.096,2,8.0,0,,,False,,,,x86,{}
"""


def offer(
    gpu: str = "l4-24gb", price: float = 1.0, *, days: int = 0, own: bool = False, term: str = "on-demand"
) -> Offer:
    seen = (date.today() - timedelta(days=days)).isoformat()
    return Offer(gpu, "acme", "", term, price, seen, "a page", own)


def test_skypilot(tmp_path: Path) -> None:
    path = tmp_path / "nebius" / "vms.csv"
    path.parent.mkdir()
    path.write_text(SKYPILOT)
    found, skipped = read_price_file(path, seen="2026-10-01")
    prices = {(o.gpu, o.region, o.term): o.usd_per_gpu_hour for o in found}
    assert prices == {
        ("h100-80gb", "eu-north1", "on-demand"): 2.95,
        ("h100-80gb", "eu-north1", "spot"): 1.25,
        ("h100-80gb-pcie", "us-west-1", "on-demand"): 3.29,
        ("a100-80gb", "IN", "on-demand"): 1.39,
        ("a100-80gb", "IN", "spot"): 1.39,
        ("a100-40gb", "us-central1", "on-demand"): 3.67,
        ("a100-40gb", "us-central1", "spot"): 1.1,
    }
    assert {o.vendor for o in found} == {"nebius"}
    assert {o.date for o in found} == {"2026-10-01"}
    assert skipped == {"V100": 1}


def test_gpuhunt(tmp_path: Path) -> None:
    path = tmp_path / "aws.csv"
    path.write_text(GPUHUNT)
    found, _ = read_price_file(path)
    prices = {(o.gpu, o.vendor, o.term): o.usd_per_gpu_hour for o in found}
    assert prices == {
        ("h100-80gb", "aws", "on-demand"): 6.88,
        ("h100-80gb", "aws", "spot"): 3.75,
        ("l4-24gb", "aws", "on-demand"): 0.8048,
    }
    assert {o.date for o in found} == {date.fromtimestamp(path.stat().st_mtime).isoformat()}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "not a price list"),
        ("", "not a price list"),
        (SKYPILOT.replace("2.95", "cheap"), "vms.csv:3: Price: expected a number, got 'cheap'"),
        (GPUHUNT.replace("True", "maybe"), "spot: expected True or False, got 'maybe'"),
        ("\n".join(GPUHUNT.splitlines()[:1] + GPUHUNT.splitlines()[-1:]), "no GPU of the catalog has a price in it"),
    ],
)
def test_files_that_are_no_price_lists(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "vms.csv"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_price_file(path)
    assert message in str(caught.value)
    assert caught.value.exit_code == 3


def test_a_list_of_our_own_names_every_problem_at_once() -> None:
    rows = [
        "h1000,acme,,on-demand,2,2026-10-01,x",
        "l4-24gb,,eu,sometimes,-1,October,x",
        "l4-24gb,acme,,spot,0,2026-13-01,x",
        "l4-24gb,acme",
    ]
    with pytest.raises(InputError) as caught:
        parse_offers("\n".join([",".join(COLUMNS), *rows]), "mine.csv", gpus())
    text = str(caught.value)
    for expected in (
        "mine.csv:2: gpu: 'h1000' is no canonical name",
        "mine.csv:3: vendor is empty",
        "mine.csv:4: usd_per_gpu_hour: expected a positive number, got '0'",
        "mine.csv:4: date: expected a day like 2026-10-01, got '2026-13-01'",
        "mine.csv:5: 2 values for 7 columns",
    ):
        assert expected in text
    with pytest.raises(InputError, match="columns term, source missing"):
        parse_offers("gpu,vendor,region,usd_per_gpu_hour,date\n", "mine.csv", gpus())


def test_which_offer_a_plan_takes() -> None:
    old, fresh, own = offer(price=0.1, days=STALE_DAYS + 1), offer(price=0.5), offer(price=0.9, own=True)
    assert reference_offer([old, fresh], "l4-24gb") is fresh
    assert reference_offer([old], "l4-24gb") is old
    assert reference_offer([old, fresh, own], "l4-24gb") is own
    assert reference_offer([offer(term="spot")], "l4-24gb") is None
    assert offer(days=STALE_DAYS).is_stale() is False
    assert "stale, ask again" in old.describe()
    assert "stale" not in fresh.describe()


@pytest.mark.parametrize(
    ("name", "memory", "hint", "meant"),
    [
        ("A100", 40.0, "", "a100-40gb"),
        ("A100", 80.0, "p4de.24xlarge", "a100-80gb"),
        ("RTX-PRO-6000", 96.0, "", "rtx-pro-6000-96gb"),
        ("RTX6000-Ada", 48.0, "", "rtx-6000-ada-48gb"),
        ("H100NVL", 94.0, "", "h100-nvl-94gb"),
        ("H200", 141.0, "h200_nvl", "h200-nvl-141gb"),
        ("MI300X", 192.0, "", "mi300x-192gb"),
        ("B300", 262.0, "1B300.30V", "b300-270gb"),
        ("NVIDIA L40S", None, "", "l40s-48gb"),
        ("L4", 48.0, "", None),  # no L4 has 48 GB
        ("tpu-v5e", None, "", None),
        ("", None, "", None),
    ],
)
def test_names_of_other_lists(name: str, memory: float | None, hint: str, meant: str | None) -> None:
    found = match_gpu(name, memory, hint)
    assert (None if found is None else found.name) == meant


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for the user's lists, for this test only."""
    from planner.catalog.prices import offers

    folder = tmp_path / "prices"
    monkeypatch.setenv("FLEETOPT_PRICES", str(folder))
    offers.cache_clear()
    gpus.cache_clear()
    yield folder
    offers.cache_clear()
    gpus.cache_clear()


def test_import_and_show(own_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "aws.csv"
    path.write_text(GPUHUNT)
    run = CliRunner()
    result = run.invoke(app, ["prices", "import", str(path), "--date", date.today().isoformat()])
    assert result.exit_code == 0, result.output
    assert (own_folder / "aws.csv").is_file()
    assert not list(own_folder.glob(".*"))
    shown = json.loads(run.invoke(app, ["prices", "show", "--gpu", "h100", "--vendor", "aws", "-f", "json"]).stdout)[
        "offers"
    ]
    own = [o for o in shown if o["own"]]
    assert [(o["term"], o["usd_per_gpu_hour"], o["used"], o["age_days"]) for o in own] == [
        ("on-demand", 6.88, True, 0),
        ("spot", 3.75, False, 0),
    ]
    table = run.invoke(app, ["prices", "show", "--gpu", "h100"]).stdout
    assert "6.88 *" in table and "2.69 *" not in table
    # what the user pays is what a plan takes
    gpus.cache_clear()
    assert gpus()["h100-80gb"].price_usd_per_hour == 6.88
    assert gpus()["h100-80gb"].sources["price_usd_per_hour"].startswith("aws us-east-1, on-demand")


def test_options_that_fit_nothing_are_told(own_folder: Path) -> None:
    for arguments, message in (
        (["--vendor", "acme"], "no offer has 'acme'"),
        (["--term", "ondemand"], "did you mean 'on-demand'"),
        (["--gpu", "h1000"], "unknown GPU"),
    ):
        with pytest.raises(InputError, match=message):
            CliRunner().invoke(app, ["prices", "show", *arguments], catch_exceptions=False)


def test_a_saved_list_reads_back(own_folder: Path) -> None:
    path = save_offers([offer(price=0.25), offer("h100-80gb", 2.0, term="reserved-1y")], "mine")
    assert path == own_folder / "mine.csv"
    own = [o for o in price_offers() if o.own]
    assert [(o.gpu, o.term, o.usd_per_gpu_hour) for o in own] == [
        ("l4-24gb", "on-demand", 0.25),
        ("h100-80gb", "reserved-1y", 2.0),
    ]


def test_a_gpu_without_an_offer_asks_for_a_price() -> None:
    assert gpus()["h20-96gb"].price_usd_per_hour is None
    with pytest.raises(InputError, match="no price of h20-96gb is known") as caught:
        CliRunner().invoke(app, ["plan", "--cdf", "azure.csv", "--gpu", "h20", "--slo", "2"], catch_exceptions=False)
    assert "--price h20-96gb=2.5" in (caught.value.hint or "")
    result = CliRunner().invoke(
        app, ["plan", "--cdf", "azure.csv", "--gpu", "h20", "--slo", "9", "--method", "mgc", "--price", "h20=1.5"]
    )
    assert result.exit_code == 0


def test_the_plan_names_its_offer_and_its_age() -> None:
    result = CliRunner().invoke(
        app, ["explain", "--cdf", "azure.csv", "--slo", "9", "--method", "mgc", "--pools", "1", "--tp", "1"]
    )
    assert "runpod, on-demand, seen 2026-10-01" in result.stdout
    assert "days ago" in result.stdout
