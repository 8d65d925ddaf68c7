"""A plan as files that start it: one file per target in ``targets/``, found by its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.errors import refuse_unknown
from planner.shared.arguments import told_types
from planner.shared.paths import modules_in
from planner.units import parse_duration

if TYPE_CHECKING:
    from planner.plans import Plan

__all__ = ["Rendered", "deploy", "find_target", "target_names"]


@dataclass(frozen=True, slots=True)
class Rendered:
    """Files that start a fleet.

    Parameters
    ----------
    files
        Name of a file -> its text, in the order of reading.
    notes
        What the reader must know or do, one line each.
    """

    files: Mapping[str, str]
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """All files one after the other; where there are several, each under its name."""
        if len(self.files) == 1:
            return next(iter(self.files.values()))
        return "\n".join(f"# ===== {name}\n{text.rstrip()}\n" for name, text in self.files.items())


@cache
def target_names() -> tuple[str, ...]:
    """The targets there are."""
    return modules_in(Path(__file__).with_name("targets"))


def find_target(name: str) -> Any:
    """The module of a target: ``render`` makes files of a fleet, ``address``, where there is a cluster, says where its requests go.

    Raises
    ------
    InputError
        There is none.
    """
    refuse_unknown("--to:", name, target_names())
    return import_module(f"planner.operate.deploy.targets.{name.replace('-', '_')}")


@told_types
def deploy(
    fleet: Plan | str | Path,
    to: str = "k8s",
    *,
    name: str = "fleetopt",
    namespace: str | None = None,
    engine: str | None = None,
    image: str | None = None,
    model_id: str | None = None,
    startup: float | str | None = None,
    cache: str | None = None,
    revision: str | None = None,
    api_key_secret: str | None = None,
    router_image: str | None = None,
    platform: str = "generic",
    replicas_by: str = "plan",
    layout: str = "file",
    prometheus_namespace: str = "monitoring",
) -> Rendered:
    """A plan as files that start it.

    Parameters
    ----------
    fleet
        A plan or a plan file.
    to
        Where to: k8s, kserve, llm-d, compose, systemd, production-stack, dynamo.
    name
        Objects are called NAME-POOL.
    namespace
        Kubernetes namespace. Default: not written.
    engine
        vllm, sglang or trtllm. Default: that of the plan's profile.
    image
        Container image of the engine. Default: the engine's own.
    model_id
        Hugging Face repository or folder of the weights. Default: the catalog's.
    startup
        From starting a replica until it serves: 110s. Default: estimated from the weights.
    cache
        Volume claim (or folder of the host) that keeps the weights. Default: downloaded at every start.
    revision
        Commit or tag of the weights' repository. Default: its newest.
    api_key_secret
        Secret whose `api-key` requests must bear. Default: they need none.
    router_image
        Image of what stands before the replicas, by tag or digest. Default: the target's own.
    platform
        Whose node labels name the GPUs: generic, gke, eks, aks.
    replicas_by
        Who says how many replicas there are: plan, or scaler, which leaves `replicas` out.
    layout
        file, or kustomize: a base and an overlay, in a folder.
    prometheus_namespace
        Namespace that network policies let read metrics.

    Returns
    -------
    Rendered
        Files by name, and what the reader must know.
    """
    from planner.ask.asked import document_of, standing_of
    from planner.operate.deploy.serving import DeployOptions, serving_of

    target, saved = find_target(to), standing_of(fleet)
    seconds = None if startup is None else parse_duration(startup, "--startup")
    options = DeployOptions(
        name, namespace, engine, image, model_id, seconds, cache, revision, api_key_secret, router_image, platform, replicas_by,
        layout, prometheus_namespace,
    )  # fmt: skip
    found: Rendered = target.render(serving_of(document_of(fleet), saved.pools, options))
    return found
