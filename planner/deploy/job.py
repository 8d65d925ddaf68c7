"""A Job that accepts a fleet: a load generator sends it the planned traffic, then fleetopt judges what came back."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from planner.deploy import Rendered
from planner.deploy import kubernetes as k
from planner.deploy.pods import NOBODY, confined, secret
from planner.deploy.replay import AFTER_S, Requests
from planner.deploy.serving import COMPONENT, NAME, PART_OF, Serving, is_pinned, refusal
from planner.errors import InputError
from planner.shared.templates import templates

GENERATORS = ("guidellm", "vllm")

_filled: Callable[..., k.Object] = templates(__file__)

GUIDELLM_IMAGE = "ghcr.io/vllm-project/guidellm:v0.8.1"
PYTHON_IMAGE = "python:3.12.12-slim"

BLOCK = 512
"""Tokens that a block of a trace's prompts stands for, in Mooncake's format."""

LARGEST = 1 << 20
"""Largest ConfigMap [bytes]."""

LOADS_S = 900
"""For images, tokenizers and the first answer [s]."""


def acceptance(serving: Serving, planned: Requests, plan: str, *, generator: str, program: str, url: str) -> Rendered:
    """The Job, and what it reads.

    Parameters
    ----------
    serving
        The fleet.
    planned
        The traffic.
    plan
        The plan file.
    generator
        One of :data:`GENERATORS`.
    program
        An image with fleetopt in it, or the address of a wheel.
    url
        Where requests go.

    Raises
    ------
    InputError
        An unknown generator, a program that is neither, or more than a ConfigMap holds.
    """
    if generator not in GENERATORS:
        raise InputError(f"--acceptance: {generator!r} is none of {', '.join(GENERATORS)}")
    if serving.model.pooling:
        raise refusal("pooling", model=serving.model)
    wheel = re.fullmatch(r"https?://\S+\.whl", program) is not None
    if not wheel and not is_pinned(program):
        raise refusal("program", program=repr(program))
    name = f"{serving.options.name}-acceptance"
    files = {"plan.yaml": plan, "requests.jsonl": _trace(planned)}
    if generator == "guidellm":
        files["scenario.yaml"] = k.to_yaml(_filled("scenario", url=url, serving=serving))
    if (size := sum(len(text.encode()) for text in files.values())) > 0.95 * LARGEST:
        raise refusal("large", size=f"{size:,}")
    seconds = float(planned.times_s[-1]) + max(AFTER_S, max(p.drain_s for p in serving.pools))
    load = _load(serving, generator, url, planned.times_s.size)
    found = [k.config_map(serving, name, files), _job(serving, name, load, program, wheel, seconds)]
    notes = [
        f"{planned.times_s.size:,} requests in {planned.times_s[-1]:.0f} s, sent by {generator} to {url}",
        f"kubectl wait --for=condition=complete job/{name} says that the promises are kept; kubectl logs job/{name} how",
    ]
    return Rendered({"acceptance.yaml": k.dump(found, notes)}, tuple(notes))


def _trace(planned: Requests) -> str:
    """Requests as lines of Mooncake's format: both generators read it. Blocks of one number are the same text."""
    lines, fresh = [], 0
    common = -(-int(planned.shared_tokens.max()) // BLOCK)
    for record, shared in zip(planned.records(), planned.shared_tokens.tolist(), strict=True):
        blocks = -(-int(record["input_length"]) // BLOCK)
        known = min(round(shared / BLOCK), blocks - 1)
        own = range(common + fresh, common + fresh + blocks - known)
        fresh += blocks - known
        lines.append(json.dumps({**record, "hash_ids": [*range(known), *own]}, separators=(",", ":")))
    return "\n".join(lines) + "\n"


def _load(serving: Serving, generator: str, url: str, requests: int) -> k.Object:
    """The container that sends the requests."""
    known, key = secret("HF_TOKEN", "hf-token", "token", optional=True), serving.options.api_key_secret
    # the names by which each of them reads the key
    names = ("OPENAI_API_KEY", "GUIDELLM__SPEC__BACKEND__API_KEY") if key else ()
    environment = [
        *NOBODY,
        {"name": "HF_HOME", "value": "/tmp"},
        known,
        *(secret(n, str(key), "api-key") for n in names),
    ]
    image = GUIDELLM_IMAGE if generator == "guidellm" else serving.image
    arguments = _filled(generator, url=url, serving=serving, requests=str(requests), block=str(BLOCK))
    return _filled("container", name="load", image=image, command=[generator], args=arguments, env=environment)


def _job(serving: Serving, name: str, load: k.Object, program: str, wheel: bool, seconds: float) -> k.Object:
    """One try: the load generator first, then the judge, whose exit code is the Job's."""
    check, env = ["check", "/plan/plan.yaml", "--replay", "/results/load.json"], [*NOBODY]
    first, image, command = [load], program, ["fleetopt"]
    if wheel:
        image, command = PYTHON_IMAGE, ["python", "-m", "planner.cli.main"]
        install = ["pip", "install", "--no-cache-dir", "--target", "/results/python", program]
        first.insert(0, _filled("container", name="install", image=image, command=install, args=None, env=env))
        env = [*env, {"name": "PYTHONPATH", "value": "/results/python"}]
    judge = _filled("container", name="judge", image=image, command=command, args=check, env=env)
    return _filled(
        "job",
        metadata=k.tagged(serving, name),
        seconds=round(seconds) + LOADS_S,
        labels={PART_OF: serving.options.name, COMPONENT: "acceptance", NAME: name},
        pod=confined(_filled("pod", name=name, first=first, judge=judge)),
    )
