"""What Prometheus would hold of a fleet over hours or days: counters that grow by given rates, pods that come and go."""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from planner.operate.monitor.measured import Series
from tests.operate.monitor.exporter import E2E, PER_TOKEN, SECONDS

STEP_S = 30.0
BOUNDS = {
    "vllm:time_to_first_token_seconds": SECONDS,
    "vllm:request_time_per_output_token_seconds": PER_TOKEN,
    "vllm:e2e_request_latency_seconds": E2E,
}


@dataclass(frozen=True)
class Course:
    """Of a pool every :data:`STEP_S` seconds, each an array or one number.

    Parameters
    ----------
    rate, replicas
        Requests that come [1/s], replicas that serve.
    late
        Metric -> (limit [s], share of the requests beyond it [1]).
    prompt, output
        Mean lengths [tokens].
    running, waiting
        Requests of one replica.
    """

    rate: object
    replicas: object
    late: Mapping[str, tuple[float, object]]
    prompt: object = 1000.0
    output: object = 200.0
    running: object = 10.0
    waiting: object = 0.0


def pod_name(owner: str, number: int) -> str:
    """As a Deployment calls its pods: the hash of its template, and five characters."""
    letters = string.ascii_lowercase + string.digits
    tail = "".join(letters[(number // len(letters) ** k) % len(letters)] for k in range(5))
    return f"{owner}-5d9c8b7f6d-{tail}"


def scraped(
    hours: float,
    course: Course,
    owner: str = "fleetopt-all",
    namespace: str = "chat",
    model: str = "m",
    latencies: bool = True,
) -> dict[str, list[Series]]:
    """The series of a pool whose requests are shared out evenly."""
    times = np.arange(0.0, 3600.0 * hours + 1.0, STEP_S)

    def along(value: object) -> np.ndarray:
        return np.broadcast_to(np.asarray(value, dtype=float), times.shape)

    replicas, rate = along(course.replicas).astype(int), along(course.rate)
    each = np.divide(rate, replicas, out=np.zeros_like(rate), where=replicas > 0)
    found: dict[str, list[Series]] = {}
    born = 0
    for slot in range(int(replicas.max())):
        alive = replicas > slot
        edges = np.flatnonzero(np.diff(np.concatenate(([0], alive.astype(int), [0]))))
        for begin, end in zip(edges[::2], edges[1::2], strict=True):
            mine, born = slice(begin, end), born + 1
            pod = pod_name(owner, born)
            labels = {"namespace": namespace, "pod": pod, "instance": f"{pod}:8000", "model_name": model}
            came = np.cumsum(each[mine]) * STEP_S

            def add(
                name: str,
                values: np.ndarray,
                labels: dict[str, str] = labels,
                at: np.ndarray = times[mine],
                **more: str,
            ) -> None:
                found.setdefault(name, []).append(Series({**labels, **more}, at, np.asarray(values, dtype=float)))

            add("vllm:request_success_total", came)
            add("vllm:num_requests_running", along(course.running)[mine])
            add("vllm:num_requests_waiting", along(course.waiting)[mine])
            add("vllm:kv_cache_usage_perc", np.full(end - begin, 0.2))
            for name, mean in (("prompt", course.prompt), ("generation", course.output)):
                add(f"vllm:request_{name}_tokens_sum", np.cumsum(each[mine] * along(mean)[mine]) * STEP_S)
                add(f"vllm:request_{name}_tokens_count", came)
            for name, bounds in BOUNDS.items() if latencies else ():
                limit, share = course.late.get(name, (np.inf, 0.0))
                add(f"{name}_count", came)
                for bound in bounds:
                    # what is in time is so by far
                    inside = 1.0 if np.isinf(bound) else 1.0 - along(share)[mine] * (bound <= limit * 1.5)
                    label = "+Inf" if np.isinf(bound) else repr(float(bound))
                    add(f"{name}_bucket", np.cumsum(each[mine] * inside) * STEP_S, le=label)
    return found
