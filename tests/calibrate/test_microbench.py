"""The microbenchmark on a CPU build of torch: the whole path, small. Timing on a GPU is not tested here."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from planner.calibrate.device import GpuState, read_gpu_state, same_device
from planner.calibrate.microbench import CPU, TINY_MODEL, collectives, measure
from planner.calibrate.run import calibrate
from planner.catalog.profiles import load_profile, save_profile
from planner.errors import CalibrationError, InputError
from planner.machine.hardware import Parallelism
from planner.machine.roofline import ASSUMED, CONSTANTS, roofline

PRIOR = roofline(CPU, TINY_MODEL)


def test_without_torch_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(CalibrationError, match=r"needs PyTorch") as caught:
        calibrate(model="tiny", device="cpu")
    assert "pip install" in str(caught.value) and "[gpu]" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"index_layers": 4}, "sparse attention"),
        ({"state_layers": 2}, "recurrent state"),
        ({"v_head_dim": 64}, "another size"),
        ({"sliding_window": 128, "full_attention_layers": 2, "sliding_head_dim": 64}, "sliding-window"),
        ({"weight_dtype": "mxfp4"}, "mxfp4 weights"),
        ({"weight_dtype": "int4", "experts": 8, "experts_per_token": 2}, "experts in int4"),
        ({"weight_dtype": "fp4", "experts": 8, "experts_per_token": 2}, "experts in fp4"),
        ({"kv_dtype": "fp8"}, "fp8 KV cache"),
    ],
)
def test_models_without_kernels_are_refused(change: dict[str, object], told: str) -> None:
    with pytest.raises(CalibrationError, match=told):
        measure(CPU, replace(TINY_MODEL, **change), PRIOR, device="cpu")


def test_device_names() -> None:
    assert same_device("h100", "NVIDIA H100 80GB HBM3")
    assert same_device("a100", "NVIDIA A100-SXM4-80GB")
    assert same_device("h200", "NVIDIA H200")
    assert not same_device("a100", "NVIDIA H100 80GB HBM3")
    assert not same_device("h100", "Tesla T4")
    for other in ("NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H100 96GB HBM3", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"):
        assert not same_device("h100", other), other
    assert not same_device("a100", "NVIDIA A100-PCIE-40GB")
    assert same_device("h100-nvl", "NVIDIA H100 NVL")


def fake_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, gpu: str, apps: str = "4711") -> None:
    """A driver's tool that answers so."""
    tool = folder / "nvidia-smi"
    tool.write_text(f'#!/bin/sh\ncase "$2" in *compute-apps*) printf "{apps}\\n";; *) echo "{gpu}";; esac\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_the_state_of_a_gpu_is_read_from_the_drivers_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_smi(
        tmp_path,
        monkeypatch,
        "NVIDIA H100 80GB HBM3, 550.90, Disabled, 1500, 1980, 2619, 695.5, 700.00, 61, 5",
        "1\\n2",
    )
    state = read_gpu_state()
    assert (state.sm_mhz, state.power_w, state.temperature_c, state.processes) == (1500.0, 695.5, 61.0, 2)
    assert not state.sliced and state.note() == (
        "just after: SM clock 1500 of 1980 MHz, memory 2619 MHz, 696 of 700 W, 61 C, driver 550.90"
    )
    assert [d.split()[-1] for d in state.doubts()] == ["MHz", "GPU"]
    fake_smi(tmp_path, monkeypatch, "NVIDIA A100, 550.90, Enabled, [N/A], [N/A], 1593, [Not Supported], 400, 30, 4", "")
    state = read_gpu_state()
    assert state.sliced and state.sm_mhz is None and state.doubts() == () and state.processes == 0
    fake_smi(tmp_path, monkeypatch, "NVIDIA-SMI has failed because it could not talk to the driver")
    assert read_gpu_state() == GpuState()


def test_unknown_device() -> None:
    with pytest.raises(InputError, match="neither cuda nor cpu"):
        measure(CPU, TINY_MODEL, PRIOR, device="tpu")


@pytest.mark.torch
def test_a_gpu_that_is_not_there() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(CalibrationError, match="no GPU"):
        calibrate(gpu="a100", model="llama-3.1-8b")


@pytest.mark.torch
@pytest.mark.slow
def test_whole_path_on_a_cpu(tmp_path) -> None:  # type: ignore[no-untyped-def]
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    seen = []
    try:
        result = calibrate(
            model="tiny",
            device="cpu",
            points=14,
            max_seconds=6.0,
            progress=lambda done, total, what: seen.append(what),
            force=True,  # a machine with other work may make the band too wide
        ).only
    finally:
        torch.set_num_threads(threads)
    fit = result.fit
    assert fit is not None and fit.points >= 8 and fit.drift is not None
    assert seen[-1] == "done"
    assert result.profile.gpu == "cpu" and result.profile.automatic is False
    assert result.profile.engine_version is not None and "torch" in result.profile.engine_version
    # a bigger batch takes longer, whatever the machine does meanwhile
    model_fit = result.profile.iteration
    assert model_fit.time(64, 64 * 256) > model_fit.time(1, 256) > 0.0
    path = save_profile(result.profile, tmp_path)
    assert load_profile(path) == result.profile


def test_collectives_are_counted_and_take_the_times_that_were_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 4 layers 3 have experts; DP2 x TP2 sums after 4 attentions and one dense layer, and gathers thrice. Planted: a sum takes
    10 us, gathers 20 us and 1 us for each of a GPU's tokens, of which the two GPUs of a copy share 64."""
    mixture = replace(
        TINY_MODEL,
        layers=4,
        full_attention_layers=4,
        experts=8,
        experts_per_token=2,
        moe_intermediate_size=64,
        dense_layers=1,
    )
    found = collectives(mixture, Parallelism(2, dp=2))
    assert [(c.what, c.gpus, c.calls, c.trips) for c in found] == [("an all-reduce", 2, 5, 1), ("gathers", 4, 3, 2)]
    assert [c.what for c in collectives(mixture, Parallelism(8, ep=8))] == ["an all-reduce"]
    planted = {"an all-reduce": lambda n: 1e-5, "gathers": lambda n: 2e-5 + 1e-6 * n}
    module = sys.modules[collectives.__module__]
    monkeypatch.setattr(
        module, "collective_seconds", lambda what, gpus, hidden: {n: planted[what](n) for n in (1, 32, 1024)}
    )
    machine: Any = SimpleNamespace(cuda=True, torch=SimpleNamespace(cuda=SimpleNamespace(device_count=lambda: 4)))
    times = [c.times(machine, CPU, mixture) for c in found]
    assert [one(64) for one, _ in times] == [pytest.approx(5e-5), pytest.approx(3 * 5.2e-5)]
    assert "gathers measured over 4 GPUs" in times[1][1]
    # on fewer GPUs: two trips of the latency that estimates have over PCIe, and a token's bytes at their share of the link
    machine.torch.cuda.device_count = lambda: 1
    one, note = found[1].times(machine, replace(CPU, link_bytes_per_s=None), mixture)
    assert "stands for a group of 4: gathers estimated" in note
    link = CONSTANTS["link"] * ASSUMED["pcie_bytes_per_s"]
    assert one(64) == pytest.approx(3 * 2 * CONSTANTS["allreduce_s"] + 64 * found[1].bytes_per_token / link)


@pytest.mark.torch
def test_a_share_of_spread_experts_is_measured(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    mixture = replace(TINY_MODEL, name="tiny-moe", experts=8, experts_per_token=2, moe_intermediate_size=64)
    points, told = measure(CPU, mixture, PRIOR, tp=Parallelism(dp=4), device="cpu", points=6, max_seconds=4.0)
    assert len(points) >= 6 and any("gathers estimated" in note for note in told["notes"])


@pytest.mark.torch
def test_tensor_parallel_shard_and_its_estimated_all_reduce() -> None:
    pytest.importorskip("torch")
    _, told = measure(CPU, TINY_MODEL, PRIOR, tp=2, device="cpu", points=6, max_seconds=3.0)
    assert any("all-reduce estimated" in note for note in told["notes"])
    with pytest.raises(InputError, match="cannot be divided"):
        measure(CPU, TINY_MODEL, PRIOR, tp=3, device="cpu")
