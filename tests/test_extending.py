"""What CONTRIBUTING.md says: a dummy of each kind is added to a copy of the package, and the files touched are counted."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def copied(source: str, target: str, **changes: str) -> Callable[[Path], list[str]]:
    """A file made of one that is there, with words replaced."""

    def add(root: Path) -> list[str]:
        text = (root / source).read_text(encoding="utf-8")
        for old, new in changes.items():
            assert old in text, old
            text = text.replace(old, new)
        (root / target).write_text(text, encoding="utf-8")
        return [target]

    return add


def appended(target: str, text: str) -> Callable[[Path], list[str]]:
    """A few lines behind those of a file."""

    def add(root: Path) -> list[str]:
        with (root / target).open("a", encoding="utf-8") as file:
            file.write(text)
        return [target]

    return add


def replaced(target: str, old: str, new: str) -> Callable[[Path], list[str]]:
    """A place of a file changed."""

    def add(root: Path) -> list[str]:
        text = (root / target).read_text(encoding="utf-8")
        assert text.count(old) >= 1, old
        (root / target).write_text(text.replace(old, new, 1), encoding="utf-8")
        return [target]

    return add


def of_model(root: Path) -> list[str]:
    """A model: its configuration, source and day."""
    entry = json.loads((root / "planner/catalog/models/llama-3.1-8b.json").read_text(encoding="utf-8"))
    target = "planner/catalog/models/dummy-1b.json"
    (root / target).write_text(json.dumps({**entry, "aliases": []}), encoding="utf-8")
    return [target]


GPU = (
    "  dummy-9000-100gb: {memory_gib: 99, bandwidth_gb_per_s: 5000, tflops: {bf16: 1000, fp16: 1000}, link_gb_per_s: 450,\n"
    "    gpu_class: sxm, sm_count: 100, attention_kernel: fa3, aliases: [dummy-9000], sources: [label, h100, h100, h100]}\n"
)
OPTION, TOLD = "    dummy: str | None = _option(None, of.TEXT)\n", "    dummy\n        A dummy.\n"
COMMAND = 'def dummy() -> None:\n    """A dummy."""\n'
FORMAT = """
dummy:
  title: a dummy
  csv: [[Words In, Words Out]]
  input: [Words In]
  output: [Words Out]
"""
PRICES = "gpu,vendor,region,term,usd_per_gpu_hour,date,source\nl4-24gb,dummy,,on-demand,0.01,2026-11-01,a page\n"

ROUTED = """
from planner.machine.iteration import IterationModel
from planner.predict import kernel, reference
from planner.predict.records import Replicas, Requests
import numpy as np
draw = np.random.default_rng(1)
lengths = draw.integers(50, 500, (2, 200)).astype(float)
requests = Requests(np.sort(draw.uniform(0.0, 9.0, 200)), *lengths, np.zeros(200), np.arange(200, dtype=np.uint64))
runs = [r.replay(requests, Replicas(5, IterationModel(t0=0.02), routing='dummy', slots=8.0)) for r in (kernel, reference)]
assert np.allclose(runs[0].ttft_s, runs[1].ttft_s) and np.isfinite(runs[0].ttft_s).all()
"""
"""A routing of parts there are goes by them in the kernel and in the reference."""

BEFORE = "    goodput\n        Share"
PROMISED = """
import planner as fo
asked = {'isl': 500, 'osl': 50, 'rate': 2, 'choices': False}
half, whole = fo.plan(half='p95=1s', **asked), fo.plan(e2e='p95=2s', **asked)
ends = [plan.pools[0].quantile(name, 0.95) for plan, name in ((half, 'half_s'), (whole, 'e2e_s'))]
assert [p.label for p in half.slo.promises] == ['P95 HALF'] and ends[0] == ends[1] / 2 and half.gpus == whole.gpus
"""
"""Half of the whole answer's time can be promised, and is planned for."""

KINDS: dict[str, tuple[tuple[Callable[[Path], list[str]], ...], int, str]] = {
    "price list": (
        (appended("planner/catalog/prices/dummy.csv", PRICES),), 1,
        "from planner.catalog.load import price_offers; assert any(o.vendor == 'dummy' for o in price_offers())",
    ),
    "model": ((of_model,), 1, "from planner.catalog import model; assert model('dummy-1b').layers == 32"),
    "trace format": (
        (appended("planner/workload/formats/table.yaml", FORMAT),), 1,
        "from planner.workload.importing import read_workload; open('t.csv', 'w').write('Words In,Words Out\\n10,5\\n20,5\\n'); "
        "assert read_workload('t.csv')[1].format == 'dummy'",
    ),
    "scheduling policy": (
        (copied("planner/papers/policies/fcfs_restart.py", "planner/papers/policies/dummy.py"),), 1,
        "from planner.papers.policy import find_policy, policy_names; assert 'dummy' in policy_names() and find_policy('dummy')",
    ),
    "target of `deploy`": (
        (copied("planner/operate/deploy/targets/systemd.py", "planner/operate/deploy/targets/dummy.py"),), 1,
        "from planner.operate.deploy import find_target, target_names; assert 'dummy' in target_names() and find_target('dummy')",
    ),
    "export of a plan": (
        (copied("planner/report/exports/plan/vllm.py", "planner/report/exports/plan/dummy.py"),), 1,
        "from planner.report import formats, formatter; assert 'dummy' in formats('plan'); formatter('dummy', 'plan')",
    ),
    "latency method": (
        (
            copied("planner/predict/methods/mgc.py", "planner/predict/methods/dummy.py"),
        ), 1,
        "from planner.question.options import OPTIONS; from planner.predict.methods import find_method; "
        "assert 'dummy' in OPTIONS['method'].choices and find_method('dummy')",
    ),
    "shape": (
        (copied("planner/size/shapes/colocated.py", "planner/size/shapes/dummy.py"),), 1,
        "from planner.question.options import OPTIONS; from planner.size.shapes import find_shape; "
        "assert 'dummy' in OPTIONS['shape'].choices and find_shape('dummy')",
    ),
    "promise metric": (
        (
            replaced("planner/promise.py", '    "e2e_s": Metric(', '    "half_s": Metric(60.0),\n    "e2e_s": Metric('),
            replaced("planner/question/options.py", BEFORE, "    half\n        Half.\n" + BEFORE),
            replaced("planner/predict/replayed.py", '"e2e_s": e2e}', '"half_s": 0.5 * e2e, "e2e_s": e2e}'),
        ), 3, PROMISED,
    ),
    "option of a plan": (
        (
            replaced("planner/question/options.py", "    rate: float | None", OPTION + "    rate: float | None"),
            replaced("planner/question/options.py", "    rate\n        Arr", TOLD + "    rate\n        Arr"),
        ), 1,
        "from planner.question.options import OPTIONS; assert OPTIONS['dummy'].spellings == ('--dummy',)",
    ),
    "routing": (
        (
            replaced(
                "planner/routing.py", '        Routing("least-kv"',
                '        Routing("dummy", "of two", candidates=2, least="tokens"),\n        Routing("least-kv"',
            ),
        ), 1, ROUTED,
    ),
    "GPU": (
        (replaced("planner/catalog/gpus.yaml", "  l4-24gb:", GPU + "  l4-24gb:"),), 1,
        "from planner.catalog import gpu; assert gpu('dummy-9000').memory_bytes > 1e11",
    ),
    "engine": (
        (copied("planner/machine/engines/sglang.yaml", "planner/machine/engines/dummy.yaml"),), 1,
        "from planner.machine.engines import engine; assert engine('dummy').name == 'dummy'",
    ),
    "option of a command": (
        (
            replaced("planner/ask/stability.py", "    burst: float = 2.0,", "    burst: float = 2.0,\n    dummy: int = 3,"),
            replaced("planner/ask/stability.py", "    burst\n        B", "    dummy\n        A dummy.\n    burst\n        B"),
        ), 1,
        "from planner.cli.commands import Built; "
        "assert [p.default for p in Built()['stability'].params if '--dummy' in p.opts and p.help == 'A dummy.'] == [3]",
    ),
    "command": (
        (
            replaced("planner/cli/commands.py", '"doctor",', '"doctor", "dummy",'),
            appended("planner/cli/dummy.py", COMMAND),
        ), 2,
        "from planner.cli.commands import Built; assert Built()['dummy'].help == 'A dummy.'",
    ),
}  # fmt: skip
"""Kind -> what is added, how many files that touches, and what must hold then."""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, to be added to."""
    root = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "planner", root / "planner", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "workloads", root / "workloads")
    return root


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_dummy_of_each_kind(kind: str, copy: Path, tmp_path: Path) -> None:
    additions, most, holds = KINDS[kind]
    touched = {path for add in additions for path in add(copy)}
    assert len(touched) <= most
    done = subprocess.run(
        [sys.executable, "-c", holds], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(copy)}, capture_output=True, text=True
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_table_names_them() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert [kind for kind in KINDS if f"**{kind}**" not in table] == []
