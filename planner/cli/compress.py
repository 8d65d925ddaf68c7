"""``fleetopt compress``: shorten borderline prompts, measure how many can be, run the gateway that does it."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

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


def _settings(
    weights: str | None, keep_first: int = 3, keep_last: int = 2, content: str = "prose", language: str | None = None
) -> Any:
    """Settings of the compressor from its options, all problems at once.

    Parameters
    ----------
    weights
        Parts of a sentence's score, e.g. textrank=0.2,position=0.4,tfidf=0.35,novelty=0.05.
    keep_first
        Sentences kept at the beginning.
    keep_last
        Sentences kept at the end.
    content
        What may be compressed, of prose, code, structured; separated by commas.
    language
        Rules for sentences (ISO 639-1). Default: by script.
    """
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


def _counter(tokenizer: Path | None, bytes_per_token: float | None) -> Any:
    """What counts tokens.

    Parameters
    ----------
    tokenizer
        tokenizer.json of the served model: exact counts instead of bytes.
    bytes_per_token
        Bytes of one token. Default: 3, which counts high.
    """
    from planner.compress.tokens import counter_from

    return counter_from(tokenizer, bytes_per_token)


@app.command()
@opt.verb(_counter, _settings)
def measure(
    prompts: Path,
    boundary: int,
    tokenizer: Path | None,
    bytes_per_token: float | None,
    gamma: float = 1.5,
    output_tokens: int = 256,
    **given: Any,
) -> Any:
    """How many borderline prompts can be compressed (p_c, by category), what is kept of them, and how long it takes here.

    Parameters
    ----------
    prompts
        JSON lines with prompt, text, messages or conversations.
    boundary, -B
        Longest request of the short pool, input + output [tokens].
    gamma
        Width of the band: prompts up to gamma times the boundary.
    output_tokens
        Output length of prompts that state none [tokens].
    """
    from planner.compress.measure import measure as measured
    from planner.compress.measure import read_prompts

    count = _counter(tokenizer, bytes_per_token)
    words = f"tokenizer {tokenizer.name}" if tokenizer is not None else f"{bytes_per_token or 3:g} bytes per token"
    settings = _settings(**given)
    return measured(read_prompts(prompts), boundary, gamma, count, words, output_tokens, settings)


@app.command()
@opt.asks(_counter, _settings)
def text(
    file: Path | None,
    tokenizer: Path | None,
    bytes_per_token: float | None,
    budget: int = 4096,
    output: opt.OutputFile = None,
    **given: Any,
) -> None:
    """Compress one prompt to a budget; what was done is said on stderr.

    Arguments
    ---------
    file
        The prompt; standard input without it.

    Parameters
    ----------
    budget, -b
        Tokens the prompt may have.
    """
    from planner.compress.extract import compress

    if budget < 0:
        raise InputError(f"budget: must not be negative, got {budget}")
    try:
        prompt = sys.stdin.read() if file is None else read_text(file)
    except UnicodeDecodeError as error:
        raise InputError(f"standard input: cannot be read as text ({error})") from None
    done = compress(prompt, budget, _counter(tokenizer, bytes_per_token), _settings(**given))
    emit(done.prompt, output)
    sentences = f"{done.sentences_kept:,} of {done.sentences:,} sentences kept"
    why = {
        "gate": f"left alone: {done.content} is not compressed (--content)",
        "kept": "left alone: what has to be kept is more than the budget",
        None: sentences if done.compressed else "within the budget",
    }[done.reason]
    say([f"{done.tokens_before:,} -> {done.tokens_after:,} tokens, {done.content}; {why}"])


@app.command()
@opt.asks(_settings)
def serve(
    short_url: str,
    long_url: str,
    boundary: int,
    tokenizer: Path | None,
    host: str = "127.0.0.1",
    port: int = 8080,
    gamma: float = 1.5,
    default_output_tokens: int = 512,
    retries: int = 1,
    fall_back: bool = True,
    max_body_bytes: str = "16MB",
    max_in_flight: int = 1024,
    read_timeout_s: str = "300s",
    workers: int = 1,
    **given: Any,
) -> None:
    """Run the paper's gateway: an OpenAI-compatible proxy that compresses what is borderline and routes by length.

    Metrics at /metrics. Without --tokenizer, bytes per token are learned from the counts the engines report, by the
    request header x-fleetopt-category where it is sent. `x-fleetopt-compress: never` leaves a request alone.

    Parameters
    ----------
    short_url, --short
        Base address of the short pool, e.g. http://127.0.0.1:8001.
    long_url, --long
        Base address of the long pool.
    boundary, -B
        Longest request of the short pool, input + output [tokens].
    tokenizer
        tokenizer.json of the served model: exact counts instead of bytes.
    host
        Address to listen on.
    port
        Port to listen on.
    gamma
        Requests up to gamma times the boundary are compressed.
    default_output_tokens, --default-output
        Output length of requests without max_tokens [tokens].
    retries
        Further tries at a pool that cannot be reached.
    fall_back, --fall-back/--no-fall-back
        The long pool takes over for the short one.
    max_body_bytes, --max-body
        Largest body and answer held in memory.
    max_in_flight
        Requests at once; more get a 503.
    read_timeout_s, --read-timeout
        Longest silence of an upstream.
    workers
        Processes that compress.
    """
    from planner.compress.tokens import require

    for module in ("aiohttp", "prometheus_client", "sklearn", "sentencex"):
        require(module)
    from planner.compress.gateway import GatewaySettings, listening, serve

    problems = [
        f"--{name}: {value!r} is not an http address"
        for name, value in (("short", short_url), ("long", long_url))
        if not value.startswith(("http://", "https://"))
    ]
    counts = {
        "boundary": boundary,
        "default-output": default_output_tokens,
        "max-in-flight": max_in_flight,
        "workers": workers,
    }
    problems += [f"--{name}: must be at least 1, got {value}" for name, value in counts.items() if value < 1]
    if workers > MOST_WORKERS:
        problems.append(f"--workers: must be at most {MOST_WORKERS}, got {workers:,}")
    if not 1.0 <= gamma < math.inf:
        problems.append(f"--gamma: must be at least 1, got {gamma:g}")
    if retries < 0:
        problems.append(f"--retries: must not be negative, got {retries}")
    refuse(problems)
    settings = GatewaySettings(
        short_url,
        long_url,
        boundary,
        gamma,
        default_output_tokens,
        tokenizer=None if tokenizer is None else str(tokenizer),
        compressor=_settings(**given),
        retries=retries,
        fall_back=fall_back,
        max_body_bytes=int(parse_bytes(max_body_bytes, "max-body")),
        max_in_flight=max_in_flight,
        read_timeout_s=parse_duration(read_timeout_s, "read-timeout"),
        workers=workers,
    )
    sockets = listening(host, port)
    told = f"up to {boundary:,} tokens to {short_url}, longer to {long_url}"
    say([f"listening on http://{host}:{port}: {told}, compressed up to {gamma:g} times"])
    serve(settings, sockets)
