"""What is said of a mistake on the command line: the option as it was typed, and the same line with what would be right."""

from __future__ import annotations

import contextlib
import math
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from planner.errors import FleetOptError, InfeasibleError, did_you_mean
from planner.shared.documents import printable

PLANNED = ("plan", "--cdf", "azure", "--slo", "0.5")
"""The shortest question."""

EXAMPLES = {
    "hours": "servegen-m-small", "startup": "4min", "monthly_growth": "8%", "output_format": "json", "rates": "6,10",
    "output": "plan.yaml", "have": "h100=24", "think_time": "60s", "plot": "plan.svg", "policies": "eb", "requests": "20000",
    "schedule start": "2027-01-31", "autoscale to": "hpa", "report output": "report.html", "reserved": "h100=1.79@1y",
    "rate": "20", "cdf": "azure", "workload": "azure", "model": "llama-3.1-8b", "confidence": "90%", "change": "rate=40",
    "dialect": "postgres", "max_model_len": "128k",
}  # fmt: skip
"""Values of options, or of a command's, which have no default and whose kind says too little."""

BESIDE = (
    ("users: not together with rate", "---rate +--think-time 60s"),
    ("without osl", "+--osl 300 +--rate 20"), ("without isl", "+--isl 2000 +--rate 20"), ("states no arrival rate", "+--rate 20"),
    ("beside cdf", "---cdf +--rate 20"), ("has at most", "---drop-longer-than"), ("does not fit on", "---gpu +--gpu h200"),
    ("nothing to change", "+--set rate=40"), ("--zip needs", "---zip"), ("no rates by hour", "+--hours servegen-m-small"),
    ("a plan file and --config", "---config"), ("nothing to simulate", "+plan.yaml"), ("--rates is needed", "+--rates 6,10"),
    ("of which file", "---scenario"), ("no metrics to look at", "+--emit-rules rules"), ("fixed by the plan", "=what-if"),
    ("promise --e2e, which", "---tpot +--e2e 1s"), ("beside inventory", "---inventory"),
    ("says itself how many images", "---images"), ("answered says how often", "---rate ---throughput"),
    ("no image encoder of", "---model +--model qwen3-vl-8b"), ("how often does each ask", "+--think-time 60s"),
    ("no latency promise", "+--slo 0.5"), ("capacity: of what fleet", "+--have h100=24"),
)  # fmt: skip
"""What is said of options that do not go together, and what to add (+), leave out (-) or call instead (=)."""

ELSEWHERE = {
    "--cdf": "trace trace-file dataset dataset-path input-file",
    "--isl": "input inputs input-len input-length input-tokens prompt-len prompt-length prompt-tokens random-input-len",
    "--osl": "outputs output-len output-length output-tokens completion-tokens random-output-len max-tokens",
    "--rate": "qps rps request-rate requests-per-second arrival-rate",
    "--concurrency": "max-concurrency num-concurrent-requests", "--ttft": "slo-ttft ttft-slo", "--tpot": "slo-tpot tpot-slo itl",
    "--gpu": "gpu-type system hardware accelerator", "--engine": "backend", "--tp": "tensor-parallel-size tp-size",
    "--pp": "pipeline-parallel-size pp-size", "--dp": "data-parallel-size dp-size", "--set ep=": "expert-parallel-size ep-size",
    "--token-budget": "max-num-batched-tokens max-num-tokens chunked-prefill-size", "--weights": "quantization dtype precision",
    "--max-num-seqs": "max-batch-size batch-size max-running-requests", "--max-model-len": "context-length max-seq-len",
    "--memory-utilization": "gpu-memory-utilization mem-fraction-static", "--set kv_dtype=": "kv-cache-dtype",
}  # fmt: skip
"""What engines and load generators call an option: vLLM, SGLang, TensorRT-LLM, their benchmarks, genai-perf, AIConfigurator."""

ITEMS = re.compile(r"[,=+]")


class Given(NamedTuple):
    """An option as it was typed: its flag, its value, which follows it, and its place among the words."""

    flag: str
    value: str | None
    at: int

    def replaced(self, words: Sequence[str], *by: str) -> list[str]:
        """The words with others in its place, or without it."""
        return [*words[: self.at], *by, *words[self.at + (1 if self.value is None else 2) :]]


def apart(words: Sequence[str]) -> list[str]:
    """The words, with the value of an option always one of its own."""
    pairs = [word.partition("=") if re.match(r"--[A-Za-z][\w-]*=", word) else (word, "", "") for word in words]
    return [word for flag, joined, value in pairs for word in ((flag, value) if joined else (flag,))]


def given(words: Sequence[str]) -> list[Given]:
    """The options among the words of a command."""
    alone = {f for p in _parameters(words) if getattr(p, "is_flag", False) for f in _spellings(p)}
    found = []
    for at, (word, behind) in enumerate(zip(words, [*words[1:], "-x"], strict=True)):
        if re.match(r"--?[A-Za-z]", word):
            valued = word not in alone and not re.match(r"--?[A-Za-z]", behind)
            found.append(Given(word, behind if valued else None, at))
    return found


def explained(error: FleetOptError, words: Sequence[str]) -> list[str]:
    """The lines of an error for who typed these words: options as typed, and a command that would do."""
    words = apart(words)
    typed = given(words)
    places = getattr(error, "problems", ()) or (error.message,)
    command: Sequence[str] | None = list(words)
    for place in places:
        command = None if command is None else _mended(place, command, error)
    lines = str(error).split("\n")
    told = [("error: " if k == 0 else "") + _as_typed(line, typed) for k, line in enumerate(lines)]
    if command is None or list(command) == list(words):
        command = _instead(error, words)
    if (ready := re.search(r": fleetopt (workload import .*)\.$", error.hint or "")) and "COLUMN" not in ready[1]:
        command = shlex.split(ready[1])
    return told if command is None else [*told, f"try: {_spelled(_promised(command))}"]


def misused(error: Any, words: Sequence[str]) -> list[str]:
    """The same of words that are no command: a wrong option, a word too many or one too few."""
    message, command = _usage(error, apart(words))
    lines = [f"error: {printable(message, 1000)}"]
    return lines if command is None else [*lines, f"try: {_spelled(_promised(command))}"]


def _promised(words: Sequence[str]) -> Sequence[str]:
    """The words, with a promise where a plan has none."""
    enough = {"--slo", "--ttft", "--tpot", "--e2e", "--goodput", "--throughput", "--config", "--services", "--help"}
    bare = [*words[:1]] == ["plan"] and not enough & {word.partition("=")[0] for word in words}
    return [*words, "--slo", "0.5"] if bare else words


def _spelled(words: Sequence[str]) -> str:
    return "fleetopt " + " ".join(word if word == "--help" else shlex.quote(printable(word, 1000)) for word in words)


def _command(words: Sequence[str]) -> Any:
    """The command that the words begin with, or ``None``."""
    from planner.cli.commands import Built

    group: Any = None
    for word in words:
        known = Built() if group is None else getattr(group, "commands", {})
        if word not in known:
            break
        group = known[word]
    return group


def _parameters(words: Sequence[str]) -> Sequence[Any]:
    """Options and arguments of the command that the words begin with."""
    return getattr(_command(words), "params", ())


def _spellings(parameter: Any) -> list[str]:
    """Flags of an option."""
    return [s for s in (*parameter.opts, *parameter.secondary_opts) if s.startswith("-")]


def _option_of(line: str, typed: Sequence[Given]) -> tuple[Given, str, str] | None:
    """The option that a line is about: as typed, the entry of its value (``h100`` of ``price.h100``) and the rest of the line."""
    from planner.question.options import OPTIONS, canonical

    found = re.match(
        r"(?:scenario |unknown )?(--?[A-Za-z][\w-]*|[a-z][a-z0-9_]*)((?:\.[\w.-]+)?)(?:: | (?=['\"\d]))", line
    )
    if found is not None:
        name, entry = found[1], found[2].lstrip(".")
        own = ("--" + name.replace("_", "-"),)
        known = OPTIONS.get(canonical(name))
        spellings = (name,) if name.startswith("-") else own if known is None else known.spellings
        rest = line[found.end() :] if ": " in found[0] else line
        # a file may be called as an option is
        for option in [o for o in typed if not (o.value and line.startswith(f"{o.value}:"))]:
            if option.flag in spellings or (option.flag == "--set" and (option.value or "").startswith(f"{name}=")):
                return option, entry, rest
    quoted = re.findall(r"'([^']*)'", line)
    for option in typed:
        if option.value and any(q in (option.value, *ITEMS.split(option.value)) for q in quoted):
            return option, "", line
    for option in typed:
        if option.value and line.startswith(f"{option.value}:"):
            return option, "", line
    return None


def _as_typed(line: str, typed: Sequence[Given]) -> str:
    """A line of an error that begins with the option as it was typed, and its value where the line does not say it."""
    indent = line[: len(line) - len(line.lstrip())]
    found = _option_of(line.strip(), typed)
    if found is None:
        return line
    option, entry, rest = found
    if option.value is not None and rest.startswith(f"{option.value}:"):
        return f"{indent}{option.flag} {rest}"
    rest = re.sub(r"^[a-z_0-9]+: (?=')", "", rest)
    value = "" if option.value is None or option.value in rest else f" {option.value}"
    return f"{indent}{option.flag}{value}{f' {entry}' if entry and not value else ''}: {rest}"


def _mended(line: str, words: Sequence[str], error: FleetOptError) -> Sequence[str] | None:
    """The words with what a line of an error says would be right; ``None`` where nothing of them is to be changed."""
    typed = given(words)
    for said, change in BESIDE:
        if said in line:
            return _changed(words, change, typed)
    found = _option_of(line, typed)
    meant = re.search(r"(?:did you mean|sized like it:) (?:--)?'?([^'?\s]+)'?", line)
    if found is not None and found[0].value is not None:
        return _for_option(line, words, found, None if meant is None else meant[1])
    if meant is not None and (wrong := re.search(r"'([^']*)'|^(\S+): ", line)):
        bad = wrong[1] or wrong[2]
        return [meant[1] if word == bad else word.replace(f"{bad}=", f"{meant[1]}=") for word in words] if bad else None
    return _for_argument(line, words)


def _changed(words: Sequence[str], change: str, typed: Sequence[Given]) -> list[str]:
    """The words with what :data:`BESIDE` says."""
    result = [*words]
    for part in re.split(r" (?=[+-])", change):
        if part.startswith("="):
            result[0] = part[1:]
        elif part.startswith("+"):
            result += [] if part[1:].split()[0] in result else part[1:].split()
        else:
            names = part[1:], *{"---gpu": ("-g",), "---cdf": ("-w", "--workload"), "---model": ("-m",)}.get(part, ())
            for option in reversed([o for o in typed if o.flag in names]):
                result = option.replaced(result)
    return result


def _for_option(
    line: str, words: Sequence[str], found: tuple[Given, str, str], meant: str | None
) -> Sequence[str] | None:
    """The words with what a line says about the value of an option."""
    from planner.question.options import OPTIONS

    option, entry, rest = found
    assert option.value is not None
    if (flag := re.search(r"given as (--[\w-]+) ", line)) is not None:
        return option.replaced(words, flag[1], option.value)
    if (more := re.search(r"; write ((?:--[\w-]+ [^\s-]\S* ?)+)$", line)) is not None:
        return [*words, *more[1].split()]
    if meant is not None:
        bad = next((q for q in re.findall(r"'([^']*)'", rest) if q in option.value), None)
        if bad is not None:
            return option.replaced(words, option.flag, option.value.replace(bad, meant))
        beside = str(Path(option.value).with_name(meant))
        return option.replaced(words, option.flag, beside) if "no such file" in line else None
    if (said := re.search(r"\bwrite (\S+?)[;,]?(?: |$)", line)) is not None:
        return option.replaced(words, option.flag, option.value.replace(entry_value(option.value, entry), said[1]))
    if option.flag == "--prometheus":
        return [*option.replaced(words), "--emit-rules", "rules"]
    if option.flag == "--set" and (known := OPTIONS.get(option.value.partition("=")[0])) is not None:
        return option.replaced(words, option.flag, f"{known.name}={known.example}")
    return None if option.flag in ("--config", "--services", "--prompts") else _with_example(words, option)


def _for_argument(line: str, words: Sequence[str]) -> Sequence[str] | None:
    """The words with another argument than the one a line is about."""
    known = re.search(r"'([^']+)' is none of ([^,]+)", line)
    name = known[1] if known is not None else next(iter(re.findall(r"^(\S+): |'([^']*)'", line)), ("", ""))
    bad = name if isinstance(name, str) else name[0] or name[1]
    if known is not None and bad in words:
        return [known[2] if word == bad else word for word in words]
    if bad in words and "shipped workload" in line:
        return ["azure" if word == bad else word for word in words]
    if words[0] in ("profile", "prices", "gpu", "model") and bad in words:
        return [words[0], "show" if words[0] == "prices" else "list"]
    return None


def entry_value(value: str, entry: str) -> str:
    """What of an option's value a problem is about: all of it, the number of a promise, or the entry of a mapping."""
    parts = {k: v for k, _, v in (item.partition("=") for item in value.split(",")) if v}
    return parts.get(entry) or (value.rpartition("=")[2] if "=" in value else value)


def _example(words: Sequence[str], flag: str) -> str:
    """A value that an option of the command takes; empty where none is known."""
    from planner.question.options import FLAGS

    found = next((p for p in _parameters(words) if flag in _spellings(p)), None)
    name, default = ("", None) if found is None else (str(found.name), found.default)
    of_kind = "" if (known := FLAGS.get(flag)) is None else known.example
    return (
        EXAMPLES.get(f"{words[0]} {name}")
        or EXAMPLES.get(name)
        or of_kind
        or (default if isinstance(default, str) else "")
    )


def _with_example(words: Sequence[str], option: Given) -> list[str]:
    """The words with a value that the option takes; without it where none is known, or where the value was one already."""
    value = _example(words, option.flag)
    return option.replaced(words, option.flag, value) if value and value != option.value else option.replaced(words)


def _instead(error: FleetOptError, words: Sequence[str]) -> Sequence[str] | None:
    """A command to begin with where the words as such are fine: no promise, a file that is not there, a promise nobody keeps."""
    from planner.units import format_duration, round_up

    text = str(error)
    if isinstance(error, InfeasibleError):
        typed = given(words)
        if error.promise is not None and error.best_s and math.isfinite(error.best_s):
            told = re.search(r"relax .* to ([\d.]+ \w+)", " ".join(error.relaxations))
            reachable = (told[1] if told else format_duration(round_up(1.5 * error.best_s))).replace(" ", "")
            for option in typed:
                if option.value and option.flag.lstrip("-") in ("slo", "ttft", "tpot", "e2e"):
                    name = "ttft_s" if option.flag == "--slo" else f"{option.flag[2:]}_s"
                    if error.promise.metric == name:
                        level = option.value.rpartition("=")[0]
                        return option.replaced(words, option.flag, f"{level}={reachable}" if level else reachable)
        stock = next((o for o in typed if o.flag == "--inventory"), None)
        return None if stock is None else stock.replaced(words)
    if "--services" in words:
        return None
    beside = re.search(r"fleetopt ([a-z][\w-]*(?: [^\s;`]+)+?)(?=[;.,]?\s*$|[;,] |\. )", text, re.MULTILINE)
    if beside is not None and not re.search(r"\b[A-Z]{4,}\b|\.\.\.", beside[1]):
        with contextlib.suppress(ValueError):  # a quote of somebody's own
            return shlex.split(beside[1])
    if (more := re.search(r"(--[a-z][\w-]+) ([\w.=:%]*\w)\.$", text)) is not None and more[1] not in words:
        return [*words, *more.groups()]
    if "no latency promise given" in text:
        return words
    no_plan = re.search(r"holds no fleet|expected options|no such file|not YAML", text)
    return [*PLANNED, "-o", "plan.yaml"] if no_plan else None


# --- words that are no command ----------------------------------------------------------------------------------------


def _usage(error: Any, words: Sequence[str]) -> tuple[str, Sequence[str] | None]:
    """What is wrong with words that the framework refuses, and the words that were meant."""
    message = error.format_message()
    typed = given(words)
    if (unknown := getattr(error, "option_name", None)) is not None and "requires" not in message:
        return _no_such_option(str(unknown), words, typed)
    if (lacking := re.search(r"Option '([^']+)' requires an argument", message)) is not None:
        bare, value = next(o for o in typed if o.flag == lacking[1]), _example(words, lacking[1])
        filled = bare.replaced(words, bare.flag, value) if value else None
        return f"{lacking[1]}: takes a value" + (f", for example {value}" if value else ""), filled
    if (extra := re.search(r"unexpected extra argument\S* \((.*)\)", message)) is not None:
        return _one_too_many(extra[1].split()[0], words)
    if "No such command" in message and (name := re.search(r"'([^']*)'", message)) is not None:
        return _no_such_command(name[1], words)
    if (repeated := re.match(r"(\S+) is given \d+ times", message)) is not None:
        first = next((o for o in typed if o.flag == repeated[1]), None)
        return message.rstrip("."), None if first is None else first.replaced(words)
    if "Missing argument" in message:
        hint = f"A plan file is written by: {_spelled((*PLANNED, '-o', 'plan.yaml'))}"
        return f"{message.rstrip('.')}: {words[-1]} takes a file. {hint}", [*words, "plan.yaml"]
    return message, None


def _no_such_option(unknown: str, words: Sequence[str], typed: Sequence[Given]) -> tuple[str, Sequence[str] | None]:
    """An option that the command has not: an old name, one misspelled, or one of other commands."""
    from planner.cli.commands import COMMANDS
    from planner.question.options import RENAMED

    option = next((o for o in typed if o.flag == unknown), None)
    own = [flag for p in _parameters(words) for flag in _spellings(p)]
    called = {
        f"--{name}": flag for flag, names in ELSEWHERE.items() if flag.split()[0] in own for name in names.split()
    }
    if unknown in (called := {**called, **RENAMED}):
        value = None if option is None else option.value
        joined = called[unknown].split()
        if joined[-1].endswith("="):
            joined[-1] += value or "VALUE"
        else:
            joined += [] if value is None else [value]
        meant = None if option is None else option.replaced(words, *joined)
        if joined[0] == "--isl" and meant is not None:
            # the length that goes with it, no file
            lengths = {o.at for o in given(meant) if o.flag == "--output" and (o.value or "").isdigit()}
            meant = ["--osl" if k in lengths else word for k, word in enumerate(meant)]
        return f"{unknown}: is written {' '.join(joined)}", meant
    others = [name for name in COMMANDS if any(unknown in _spellings(p) for p in _parameters([name]))]
    here = " ".join(w for w in words[:2] if not w.startswith("-") and _command([*words[:1], w]) is not None) or words[0]
    bare = None if option is None else option.replaced(words)
    if others:
        told = ", ".join(others[:4])
        return f"{unknown}: no option of {words[0]}, but of {told}", bare
    near = did_you_mean(unknown, own)
    message = f"{unknown}: no such option of {here}{near}"
    if near and option is not None:
        return message, [*words[: option.at], near.split("'")[1], *words[option.at + 1 :]]
    return f"{message}; all of them: fleetopt {here} --help", bare


def _one_too_many(word: str, words: Sequence[str]) -> tuple[str, Sequence[str] | None]:
    """A word that belongs to an option, by what it looks like."""
    at = words.index(word) if word in words else len(words) - 1
    before, after = words[:at], words[at + 1 :]
    if at and re.fullmatch(r"[A-Za-zµ%]{1,7}", word) and re.search(r"\d$", before[-1]):
        joined = before[-1] + word
        return f"{word}: a number and its unit are one word: {joined}", [*before[:-1], joined, *after]
    flag = _belongs_to(word)
    if flag is None or not any(flag in _spellings(p) for p in _parameters(words)):
        return f"{word}: what is it? Every value stands behind its option", [*before, *after]
    return f"{word}: is given as {flag} {word}", [*before, flag, word, *after]


def _belongs_to(word: str) -> str | None:
    """The option that a word alone is meant for."""
    from planner.catalog import load
    from planner.errors import InputError
    from planner.workload.resolve import shipped_names

    if word in shipped_names() or Path(word).suffix.lower() in (".csv", ".jsonl", ".parquet", ".gz"):
        return "--cdf"
    if Path(word).suffix.lower() in (".yaml", ".yml"):
        return "--config"
    if re.fullmatch(r"[\d.]+(ms|s)?", word):
        return "--slo"
    for flag, known in (("--gpu", load.gpu), ("--model", load.model)):
        try:
            known(word)
        except InputError:
            continue
        return flag
    return None


def _no_such_command(name: str, words: Sequence[str]) -> tuple[str, Sequence[str] | None]:
    """A command that is none."""
    at = words.index(name) if name in words else 0
    group = _command(words[:at])
    from planner.cli.commands import COMMANDS

    known = [*getattr(group, "commands", {})] if group is not None else [*COMMANDS]
    near = did_you_mean(name, known)
    if not near and at == 0 and (flag := _belongs_to(name)) is not None:
        return f"{name}: no command; plan takes it as {flag} {name}", ["plan", flag, name, *words[1:]]
    message = f"{name}: no such command{near}" + ("" if near else f"; there are {', '.join(known)}")
    return message, [*words[:at], near.split("'")[1], *words[at + 1 :]] if near else None
