"""From a plan to files: a fleet for Kubernetes, and the Job that accepts it.

python examples/deploy.py
"""

from __future__ import annotations

import planner as fo


def main() -> None:
    fleet = fo.plan("azure", slo=fo.Slo(ttft_s=0.5), rate=100.0, gpu="h100", method="occupancy", pools=1, redundancy=1)
    files = fo.deploy(fleet, "k8s", namespace="serving", platform="gke", api_key_secret="llm-key", layout="kustomize")
    job = fo.acceptance_job(
        fleet, "k8s", program="registry.example/fleetopt:1.0", namespace="serving", api_key_secret="llm-key"
    )

    for name, text in {**files.files, **job.files}.items():
        print(f"{name}: {len(text.splitlines())} lines")
    for note in (*files.notes, *job.notes):
        print("-", note)


if __name__ == "__main__":
    main()
