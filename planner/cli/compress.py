"""``fleetopt compress``: shorten borderline prompts, measure how many can be, run the gateway that does it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli import options as opt

if TYPE_CHECKING:
    from planner.compress.extract import CompressorSettings

app = typer.Typer(
    name="compress",
    help="Compress-and-route: shorten prompts just above a pool boundary, measure how many can be, run the gateway.",
    no_args_is_help=True,
)

MOST_WORKERS = 256
"""All of them are started at once."""

Boundary = Annotated[int, opt.told("Longest request of the short pool, input + output [tokens].", "--boundary", "-B")]
Tokenizer = Annotated[
    Path | None, opt.told("tokenizer.json of the served model: exact counts instead of bytes.", "--tokenizer")
]
BytesPerToken = Annotated[
    float | None, opt.told("Bytes of one token [default: 3, which counts high].", "--bytes-per-token")
]
Weights = Annotated[
    str | None,
    opt.told("Parts of a sentence's score, e.g. textrank=0.2,position=0.4,tfidf=0.35,novelty=0.05.", "--weights"),
]
KeepFirst = Annotated[int, opt.told("Sentences kept at the beginning.", "--keep-first")]
KeepLast = Annotated[int, opt.told("Sentences kept at the end.", "--keep-last")]
ContentTypes = Annotated[
    str, opt.told("What may be compressed, of prose, code, structured; separated by commas.", "--content")
]
Language = Annotated[str | None, opt.told("Rules for sentences (ISO 639-1) [default: by script].", "--language")]


@app.command()
def measure(
    prompts: Annotated[Path, opt.told("JSON lines with prompt, text, messages or conversations.", "--prompts")],
    boundary: Boundary,
    gamma: Annotated[float, opt.told("Width of the band: prompts up to gamma times the boundary.", "--gamma")] = 1.5,
    output_tokens: Annotated[
        int, opt.told("Output length of prompts that state none [tokens].", "--output-tokens")
    ] = 256,
    tokenizer: Tokenizer = None,
    bytes_per_token: BytesPerToken = None,
    weights: Weights = None,
    keep_first: KeepFirst = 3,
    keep_last: KeepLast = 2,
    content: ContentTypes = "prose",
    language: Language = None,
    output_format: opt.Format = None,
    output: opt.OutputFile = None,
) -> None:
    """How many borderline prompts can be compressed (p_c, by category), what is kept of them, and how long it takes here."""
    from planner.cli.output import writer
    from planner.compress.measure import measure as measured
    from planner.compress.measure import read_prompts
    from planner.compress.tokens import counter_from

    write = writer(output_format, output)
    count = counter_from(tokenizer, bytes_per_token)
    words = f"tokenizer {tokenizer.name}" if tokenizer is not None else f"{bytes_per_token or 3:g} bytes per token"
    settings = _settings(weights, keep_first, keep_last, content, language)
    found = measured(read_prompts(prompts), boundary, gamma, count, words, output_tokens, settings)
    write(found)


@app.command()
def text(
    file: Annotated[Path | None, typer.Argument(help="The prompt; standard input without it.")] = None,
    budget: Annotated[int, opt.told("Tokens the prompt may have.", "--budget", "-b")] = 4096,
    tokenizer: Tokenizer = None,
    bytes_per_token: BytesPerToken = None,
    weights: Weights = None,
    keep_first: KeepFirst = 3,
    keep_last: KeepLast = 2,
    content: ContentTypes = "prose",
    language: Language = None,
    output: opt.OutputFile = None,
) -> None:
    """Compress one prompt to a budget; what was done is said on stderr."""
    import sys

    from planner.cli.output import emit, say
    from planner.compress.extract import compress
    from planner.compress.tokens import counter_from
    from planner.errors import InputError
    from planner.shared.documents import read_text

    if budget < 0:
        raise InputError(f"budget: must not be negative, got {budget}")
    try:
        prompt = sys.stdin.read() if file is None else read_text(file)
    except UnicodeDecodeError as error:
        raise InputError(f"standard input: cannot be read as text ({error})") from None
    settings = _settings(weights, keep_first, keep_last, content, language)
    done = compress(prompt, budget, counter_from(tokenizer, bytes_per_token), settings)
    emit(done.prompt, output)
    why = {
        "gate": f"left alone: {done.content} is not compressed (--content)",
        "kept": "left alone: what has to be kept is more than the budget",
        None: f"{done.sentences_kept:,} of {done.sentences:,} sentences kept"
        if done.compressed
        else "within the budget",
    }[done.reason]
    say([f"{done.tokens_before:,} -> {done.tokens_after:,} tokens, {done.content}; {why}"])


@app.command()
def serve(
    short: Annotated[str, opt.told("Base address of the short pool, e.g. http://127.0.0.1:8001.", "--short")],
    long: Annotated[str, opt.told("Base address of the long pool.", "--long")],
    boundary: Boundary,
    gamma: Annotated[float, opt.told("Requests up to gamma times the boundary are compressed.", "--gamma")] = 1.5,
    host: Annotated[str, opt.told("Address to listen on.", "--host")] = "127.0.0.1",
    port: Annotated[int, opt.told("Port to listen on.", "--port")] = 8080,
    default_output: Annotated[
        int, opt.told("Output length of requests without max_tokens [tokens].", "--default-output")
    ] = 512,
    tokenizer: Tokenizer = None,
    weights: Weights = None,
    keep_first: KeepFirst = 3,
    keep_last: KeepLast = 2,
    content: ContentTypes = "prose",
    language: Language = None,
    retries: Annotated[int, opt.told("Further tries at a pool that cannot be reached.", "--retries")] = 1,
    fall_back: Annotated[
        bool, opt.told("The long pool takes over for the short one.", "--fall-back/--no-fall-back")
    ] = True,
    max_body: Annotated[str, opt.told("Largest body and answer held in memory.", "--max-body")] = "16MB",
    max_in_flight: Annotated[int, opt.told("Requests at once; more get a 503.", "--max-in-flight")] = 1024,
    read_timeout: Annotated[str, opt.told("Longest silence of an upstream.", "--read-timeout")] = "300s",
    workers: Annotated[int, opt.told("Processes that compress.", "--workers")] = 1,
) -> None:
    """Run the paper's gateway: an OpenAI-compatible proxy that compresses what is borderline and routes by length.

    Metrics at /metrics. Without --tokenizer, bytes per token are learned from the counts the engines report, by the
    request header x-fleetopt-category where it is sent. `x-fleetopt-compress: never` leaves a request alone.
    """
    from planner.cli.output import say
    from planner.compress.tokens import require
    from planner.errors import InputError
    from planner.units import parse_bytes, parse_duration

    for module in ("aiohttp", "prometheus_client", "sklearn", "sentencex"):
        require(module)
    from planner.compress.gateway import GatewaySettings, listening, serve

    problems = [
        f"--{name}: {value!r} is not an http address"
        for name, value in (("short", short), ("long", long))
        if not value.startswith(("http://", "https://"))
    ]
    counts = {
        "boundary": boundary,
        "default-output": default_output,
        "max-in-flight": max_in_flight,
        "workers": workers,
    }
    problems += [f"--{name}: must be at least 1, got {value}" for name, value in counts.items() if value < 1]
    problems += [f"--workers: must be at most {MOST_WORKERS}, got {workers:,}"] if workers > MOST_WORKERS else []
    problems += [f"--gamma: must be at least 1, got {gamma:g}"] if not 1.0 <= gamma < math.inf else []
    problems += [f"--retries: must not be negative, got {retries}"] if retries < 0 else []
    if problems:
        raise InputError.from_problems(problems)
    settings = GatewaySettings(
        short_url=short,
        long_url=long,
        boundary=boundary,
        gamma=gamma,
        default_output_tokens=default_output,
        tokenizer=None if tokenizer is None else str(tokenizer),
        compressor=_settings(weights, keep_first, keep_last, content, language),
        retries=retries,
        fall_back=fall_back,
        max_body_bytes=int(parse_bytes(max_body, "max-body")),
        max_in_flight=max_in_flight,
        read_timeout_s=parse_duration(read_timeout, "read-timeout"),
        workers=workers,
    )
    sockets = listening(host, port)
    say(
        [
            f"listening on http://{host}:{port}: up to {boundary:,} tokens to {short}, longer to {long}, "
            f"compressed up to {gamma:g} times"
        ]
    )
    serve(settings, sockets)


def _settings(
    weights: str | None, keep_first: int, keep_last: int, content: str, language: str | None
) -> CompressorSettings:
    """Settings of the compressor from its options, all problems at once."""
    from planner.compress.extract import CompressorSettings
    from planner.compress.gate import CONTENT_TYPES
    from planner.compress.scores import ScoreWeights
    from planner.errors import InputError, did_you_mean

    kinds = tuple(k.strip() for k in content.split(","))
    problems = [
        f"--content: {k!r} is none of {', '.join(CONTENT_TYPES)}{did_you_mean(k, CONTENT_TYPES)}"
        for k in kinds
        if k not in CONTENT_TYPES
    ]
    for name, value in (("keep-first", keep_first), ("keep-last", keep_last)):
        if value < 0:
            problems.append(f"--{name}: must not be negative, got {value}")
    if problems:
        raise InputError.from_problems(problems)
    parsed = ScoreWeights() if weights is None else ScoreWeights.parse(weights)
    return CompressorSettings(parsed, keep_first, keep_last, kinds, language)
