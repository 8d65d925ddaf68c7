"""``fleetopt compress``: shorten borderline prompts, measure how many can be, run the gateway that does it."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import typer

from planner.cli import options as opt
from planner.cli.output import emit, say
from planner.errors import InputError, did_you_mean, refuse
from planner.shared.documents import read_text
from planner.units import parse_bytes, parse_duration

app = opt.group(
    "Compress-and-route: shorten prompts just above a pool boundary, measure how many can be, run the gateway."
)

MOST_WORKERS = 256
"""All of them are started at once."""

BOUNDARY: opt.Rows = {"boundary! -B": (int, "Longest request of the short pool, input + output [tokens].")}
BYTES: opt.Rows = {"bytes_per_token": (float, "Bytes of one token [default: 3, which counts high].")}
TOKENIZER: opt.Rows = {"tokenizer": (Path, "tokenizer.json of the served model: exact counts instead of bytes.")}
SHORTENING: opt.Rows = {
    "weights": "Parts of a sentence's score, e.g. textrank=0.2,position=0.4,tfidf=0.35,novelty=0.05.",
    "keep_first": (3, "Sentences kept at the beginning."),
    "keep_last": (2, "Sentences kept at the end."),
    "content": ("prose", "What may be compressed, of prose, code, structured; separated by commas."),
    "language": "Rules for sentences (ISO 639-1) [default: by script].",
}


def _settings(weights: str | None, keep_first: int, keep_last: int, content: str, language: str | None) -> Any:
    """Settings of the compressor from its options, all problems at once."""
    from planner.compress.extract import CompressorSettings
    from planner.compress.scores import ScoreWeights
    from planner.compress.segments import CONTENT_TYPES

    kinds = tuple(k.strip() for k in content.split(","))
    problems = [
        f"--content: {k!r} is none of {', '.join(CONTENT_TYPES)}{did_you_mean(k, CONTENT_TYPES)}"
        for k in kinds
        if k not in CONTENT_TYPES
    ]
    kept = {"keep-first": keep_first, "keep-last": keep_last}
    problems += [f"--{name}: must not be negative, got {value}" for name, value in kept.items() if value < 0]
    refuse(problems)
    parsed = ScoreWeights() if weights is None else ScoreWeights.parse(weights)
    return CompressorSettings(parsed, keep_first, keep_last, kinds, language)


MEASURING: opt.Table = {
    "": {
        "prompts!": (Path, "JSON lines with prompt, text, messages or conversations."),
        **BOUNDARY,
        "gamma": (1.5, "Width of the band: prompts up to gamma times the boundary."),
        "output_tokens": (256, "Output length of prompts that state none [tokens]."),
        **BYTES,
        **TOKENIZER,
        **SHORTENING,
    },
}


@app.command()
@opt.verb(table=MEASURING)
def measure(
    prompts: Path,
    boundary: int,
    gamma: float,
    output_tokens: int,
    tokenizer: Path | None,
    bytes_per_token: float | None,
    **given: Any,
) -> Any:
    """How many borderline prompts can be compressed (p_c, by category), what is kept of them, and how long it takes here."""
    from planner.compress.measure import measure as measured
    from planner.compress.measure import read_prompts
    from planner.compress.tokens import counter_from

    count = counter_from(tokenizer, bytes_per_token)
    words = f"tokenizer {tokenizer.name}" if tokenizer is not None else f"{bytes_per_token or 3:g} bytes per token"
    settings = _settings(**given)
    return measured(read_prompts(prompts), boundary, gamma, count, words, output_tokens, settings)


@app.command()
@opt.has({"": {"budget -b": (4096, "Tokens the prompt may have."), **BYTES, **TOKENIZER, **SHORTENING}})
def text(
    file: Annotated[Path | None, typer.Argument(help="The prompt; standard input without it.")] = None,
    *,
    budget: int,
    tokenizer: Path | None,
    bytes_per_token: float | None,
    output: opt.OutputFile = None,
    **given: Any,
) -> None:
    """Compress one prompt to a budget; what was done is said on stderr."""
    from planner.compress.extract import compress
    from planner.compress.tokens import counter_from

    if budget < 0:
        raise InputError(f"budget: must not be negative, got {budget}")
    try:
        prompt = sys.stdin.read() if file is None else read_text(file)
    except UnicodeDecodeError as error:
        raise InputError(f"standard input: cannot be read as text ({error})") from None
    done = compress(prompt, budget, counter_from(tokenizer, bytes_per_token), _settings(**given))
    emit(done.prompt, output)
    sentences = f"{done.sentences_kept:,} of {done.sentences:,} sentences kept"
    why = {
        "gate": f"left alone: {done.content} is not compressed (--content)",
        "kept": "left alone: what has to be kept is more than the budget",
        None: sentences if done.compressed else "within the budget",
    }[done.reason]
    say([f"{done.tokens_before:,} -> {done.tokens_after:,} tokens, {done.content}; {why}"])


SERVING: opt.Table = {
    "": {
        "short_url! --short": "Base address of the short pool, e.g. http://127.0.0.1:8001.",
        "long_url! --long": "Base address of the long pool.",
        **BOUNDARY,
        "gamma": (1.5, "Requests up to gamma times the boundary are compressed."),
        "host": ("127.0.0.1", "Address to listen on."),
        "port": (8080, "Port to listen on."),
        "default_output_tokens --default-output": (512, "Output length of requests without max_tokens [tokens]."),
        **TOKENIZER,
        "retries": (1, "Further tries at a pool that cannot be reached."),
        "fall_back --fall-back/--no-fall-back": (True, "The long pool takes over for the short one."),
        "max_body_bytes --max-body": ("16MB", "Largest body and answer held in memory."),
        "max_in_flight": (1024, "Requests at once; more get a 503."),
        "read_timeout_s --read-timeout": ("300s", "Longest silence of an upstream."),
        "workers": (1, "Processes that compress."),
        **SHORTENING,
    },
}


@app.command()
@opt.has(SERVING)
def serve(host: str, port: int, **given: Any) -> None:
    """Run the paper's gateway: an OpenAI-compatible proxy that compresses what is borderline and routes by length.

    Metrics at /metrics. Without --tokenizer, bytes per token are learned from the counts the engines report, by the
    request header x-fleetopt-category where it is sent. `x-fleetopt-compress: never` leaves a request alone.
    """
    from planner.compress.tokens import require

    for module in ("aiohttp", "prometheus_client", "sklearn", "sentencex"):
        require(module)
    from planner.compress.gateway import GatewaySettings, listening, serve

    asked = SimpleNamespace(**given)
    problems = [
        f"--{name}: {value!r} is not an http address"
        for name, value in (("short", asked.short_url), ("long", asked.long_url))
        if not value.startswith(("http://", "https://"))
    ]
    for name in ("boundary", "default_output_tokens", "max_in_flight", "workers"):
        if given[name] < 1:
            flag = name.removesuffix("_tokens").replace("_", "-")
            problems.append(f"--{flag}: must be at least 1, got {given[name]}")
    if asked.workers > MOST_WORKERS:
        problems.append(f"--workers: must be at most {MOST_WORKERS}, got {asked.workers:,}")
    if not 1.0 <= asked.gamma < math.inf:
        problems.append(f"--gamma: must be at least 1, got {asked.gamma:g}")
    if asked.retries < 0:
        problems.append(f"--retries: must not be negative, got {asked.retries}")
    refuse(problems)
    compressor = _settings(**{name: given.pop(name) for name in SHORTENING})
    given |= {
        "tokenizer": None if asked.tokenizer is None else str(asked.tokenizer),
        "max_body_bytes": int(parse_bytes(asked.max_body_bytes, "max-body")),
        "read_timeout_s": parse_duration(asked.read_timeout_s, "read-timeout"),
    }
    settings, sockets = GatewaySettings(compressor=compressor, **given), listening(host, port)
    told = f"up to {asked.boundary:,} tokens to {asked.short_url}, longer to {asked.long_url}"
    say([f"listening on http://{host}:{port}: {told}, compressed up to {asked.gamma:g} times"])
    serve(settings, sockets)
