"""Damaged files and absurd options for every command, and the rule they must keep: an exit code as documented, one clear line.

``python tests/fuzz/fuzzer.py --cases 20000 --seed 7`` runs many; each case is made from its own number alone, so that
``--only 1234`` repeats one. The cases run, a few dozen at a time, in copies of a process that has imported everything, each within
ten seconds of processor time; a traceback, a crash, a code that is not documented, a message of more than a page, a control
character in it, a hang, or a gigabyte of memory is a failure. What a case asks of a server is answered from its files, on loopback.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import gzip
import io
import json
import math
import os
import random
import resource
import select
import signal
import stat
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from inputs import COMMANDS, PAGES, QUICK, RESULTS, SOUND
from workload.test_formats import FILES

from planner.catalog.load import gpus
from planner.catalog.prices import offers

CODES = {0, 2, 3, 4, 5, 6}
LIMIT_S = 10
MOST_BYTES = 1 << 30
MOST_LINES, MOST_LETTERS = 60, 20_000
"""Of a message."""

EACH = 500
"""Cases after which it is said how many there were."""

TOGETHER = 25
"""Cases in one copy of the process: a copy costs as much as a case."""

AGAIN = {
    ("prices", "import"): ["prices", "show"],
    ("calibrate",): ["profile", "show", "made.yaml"],
    ("profile", "refit"): ["profile", "show", "made.yaml"],
}
"""What has to work after a command that wrote: its files are read by every later plan."""

SERVER = "SERVER"
"""Stands in arguments for the address of a server that answers with the files of the case."""

NASTY = (
    "nan", "inf", "-inf", "-1", "0", "1e999", "1e-999", "9" * 400, "0x10", "1_000", "١٢", "null", "~", "true", "yes", "[]", "{}",
    "[1, 2]", "2024-01-01", "2024-13-45T99:99:99", "''", '"', "'", "&a *a", "*b", "<<: *b", "!!python/object:os.system x",
    "!!binary aGk=", "\x00", "\x1b[2J", "\ud800", "\ufeff", "\u202e", "a\nb", "a\rb", "\t", "%", "12%", "1e5%", "5ms", "-5ms",
    "5 parsecs", "1Ki", "1KiKi", "h100=", "=3", "h100=3=4", "h100=1e9", ",", ",,", ";", "#", ": ", "- - - -", "{" * 70, "[" * 5000,
    "../../out/passwd", "/dev/null", "/dev/full", ".", "-", "--", "-o", "$HOME", "~root", "http://", "https://a:b@127.0.0.1:1/x",
    "a" * 5000, "Infinity", "-0", "1.7976931348623157e308", "4.9e-324", "99999999999999999999",
)  # fmt: skip
"""What people, programs and attackers write where something else is meant."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run: arguments, and files by name."""

    arguments: list[str]
    files: dict[str, bytes]


def damaged(text: str, dice: random.Random) -> bytes:
    """A file with up to three faults."""
    data = text
    for _ in range(dice.choice((0, 1, 1, 1, 2, 3))):
        lines = data.split("\n")
        place = dice.randrange(max(len(lines), 1))
        kind = dice.randrange(9)
        if kind == 0:
            lines[place] = dice.choice(NASTY)
        elif kind == 1:
            lines.insert(place, lines[dice.randrange(len(lines))])
        elif kind == 2:
            del lines[place]
        elif kind == 3:  # one value of a line
            marks = [i for i, c in enumerate(lines[place]) if c in ",:= ["]
            at = dice.choice(marks) + 1 if marks else 0
            end = next((i for i in marks if i > at), len(lines[place]))
            lines[place] = lines[place][:at] + dice.choice(NASTY) + lines[place][end:]
        elif kind == 4:
            cut = dice.randrange(len(data) + 1)
            lines = data[:cut].split("\n")
        elif kind == 5:
            lines = lines[: place + 1] + [lines[place]] * dice.choice((3, 2000)) + lines[place + 1 :]
        elif kind == 6 and lines[place]:
            at = dice.randrange(len(lines[place]))
            lines[place] = (
                lines[place][:at]
                + chr(dice.choice((0, 27, 34, 39, 44, 91, 123, 0xD800, 0x202E, 0x1F600)))
                + lines[place][at + 1 :]
            )
        elif kind == 7:
            lines[place] += dice.choice((" ", ",", ":", "\r")) + dice.choice(NASTY)
        else:
            lines = list(reversed(lines))
        data = "\n".join(lines)
    raw = data.encode("utf-8", "surrogatepass")
    packed = dice.randrange(30)
    if packed == 0:
        raw = gzip.compress(raw)
    elif packed == 1:
        raw = gzip.compress(raw)[:-9]
    elif packed == 2:
        raw = data.encode("utf-16", "surrogatepass")
    elif packed == 3:
        raw = bytes(dice.randrange(256) for _ in range(dice.randrange(400)))
    return raw


def options_of(command: str) -> list[str]:
    """Flags of a command that take a value or none, as its help lists them."""
    import typer

    from planner.cli.main import app

    found = typer.main.get_command(app)
    context = typer.Context(found)  # type: ignore[arg-type]
    for name in command.split():
        found = found.get_command(context, name)  # type: ignore[attr-defined]
    return sorted({flag for p in found.params for flag in p.opts if flag.startswith("--")} - {"--help"})


SLOW = frozenset(
    (
        "--server",
        "--verify",
        "--requests",
        "--max-requests",
        "--seeds",
        "--max-seconds",
        "--launch",
        "--host",
        "--port",
        "--workers",
    )
)
"""What would wait for a server, a device or hours, or would serve, is left alone."""

DEAR = frozenset(
    (
        ("autoscale", "scaler.yaml"),
        ("plan", "hashes.jsonl"),
        ("plan", "trace.csv"),
        ("profile refit", "profile.points.jsonl"),
    )
)
SHARES = [0.25 if targets and (command, targets[0]) in DEAR else 1.0 for command, _, targets in COMMANDS]
"""How often each command is drawn: what computes for a second after it has read its files would take half of all time."""


class Maker:
    """Makes cases by number."""

    def __init__(self) -> None:
        self._flags: dict[str, list[str]] = {}
        self.sound = dict(SOUND)
        # a file as any other tool may write it
        self._others = {"workload import": [text for text, _, _ in FILES.values()], "calibrate": list(RESULTS)}
        made = (
            "plan.yaml",
            "profile.yaml",
            "profile.points.jsonl",
            "measured.json",
            "points.jsonl",
            "served.points.jsonl",
        )
        with in_folder(self.sound) as folder:
            invoke(["plan", "--cdf", "mine.csv", *QUICK, "-o", "plan.yaml"])
            invoke(["calibrate", "--from", "points.csv", "-o", "profile.yaml", "--force"])
            served = ["--gpu", "h100", "--model", "llama-3.1-8b", "-o", "served.yaml", "--force"]
            invoke(["calibrate", "--from", "servers.csv", *served])
            band = ["--prompts", "prompts.jsonl", "--boundary", "150", "--gamma", "2"]
            invoke(["compress", "measure", *band, "-o", "measured.json"])
            invoke(["what-if", "plan.yaml", "--set", "rate=10,20", "--resume", "points.jsonl"])
            self.sound |= {name: (folder / name).read_text() for name in made}
        self.sound["../own/mine.yaml"] = self.sound["profile.yaml"]

    def case(self, seed: int, number: int) -> Case:
        """The case of that number."""
        dice = random.Random(seed * 1_000_003 + number)
        ((command, arguments, targets),) = dice.choices(COMMANDS, SHARES)
        arguments = list(arguments)
        files = found(self.sound, targets)
        if command == "plan" and "--no-options" not in arguments and dice.random() < 0.7:
            # what else it could be costs ten times the plan, and reads nothing that the plan has not
            arguments += ["--no-options"]
        if command in self._others and SERVER not in " ".join(arguments) and dice.random() < 0.5:
            files[targets[0]] = damaged(dice.choice(self._others[command]), dice)
        elif targets and dice.random() < 0.7:
            victim = targets[0] if dice.random() < 0.8 else dice.choice(targets)
            files[victim] = damaged(self.sound[victim], dice)
            if dice.random() < 0.1:
                arguments += self._option(command, dice)
        elif dice.random() < 0.2:
            places = [k for k, a in enumerate(arguments) if not a.startswith("-") and k >= len(command.split())]
            if places:
                arguments[dice.choice(places)] = dice.choice(NASTY).replace("\x00", "0")
        else:
            for _ in range(dice.choice((1, 1, 2))):
                arguments += self._option(command, dice)
        return Case(arguments, files)

    def _option(self, command: str, dice: random.Random) -> list[str]:
        if command not in self._flags:
            try:
                self._flags[command] = options_of(command)
            except (AttributeError, KeyError):
                self._flags[command] = []
        flags = self._flags[command] or ["--format"]
        value = dice.choice(NASTY)
        value = value.replace("\x00", "0")  # no argument can hold one
        if dice.random() < 0.3:
            value = (
                dice.choice(("h100", "1", "2", "0.5", "azure", "mixed", "10%", "4096", "json"))
                + dice.choice(("", ",", "="))
                + value
            )
        flag = dice.choice(flags)
        return [] if flag in SLOW else [flag, value] if dice.random() < 0.9 else [flag]


def found(sound: dict[str, str], targets: Iterable[str]) -> dict[str, bytes]:
    """The files of a case: the user's own prices and profiles, which every command reads, only where they are what is tried."""
    return {name: text.encode() for name, text in sound.items() if not name.startswith("../own/") or name in targets}


@contextlib.contextmanager
def in_folder(files: dict[str, str] | dict[str, bytes]) -> Iterator[Path]:
    """An empty folder with these files, and the way back."""
    before, named = Path.cwd(), {name: os.environ.get(name) for name in ("FLEETOPT_PRICES", "FLEETOPT_PROFILES")}
    with tempfile.TemporaryDirectory() as name:
        # nothing of the user's own is read or changed: names that climb two folders stay inside
        folder, own = Path(name) / "at" / "work", Path(name) / "at" / "own"
        (Path(name) / "out").mkdir()
        for new in (folder, own):
            new.mkdir(parents=True)
        os.environ |= {"FLEETOPT_PRICES": str(own), "FLEETOPT_PROFILES": str(own)}
        for file, content in files.items():
            (folder / file).write_bytes(content.encode() if isinstance(content, str) else content)
        os.chdir(folder)
        try:
            yield folder
        finally:
            os.chdir(before)
            # what was read of this folder is nobody else's
            offers.cache_clear()
            gpus.cache_clear()
            for variable, value in named.items():
                os.environ.pop(variable)
                if value is not None:
                    os.environ[variable] = value


class Hang(BaseException):
    """A case took too long."""


@contextlib.contextmanager
def served(case: Case) -> Iterator[list[str]]:
    """The arguments of a case, with the address of a server in them where they ask for one."""
    if not any(SERVER in a for a in case.arguments):
        yield case.arguments
        return

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            body = case.files.get(PAGES.get(path, path.strip("/")))
            self.send_response(200 if body is not None else 404)
            self.end_headers()
            # a stream comes piece by piece, as it would from an engine
            for piece in (body or b"").split(b"\n\n") if path == "/v1/completions" else (body or b"",):
                self.wfile.write(piece + b"\n\n" * (path == "/v1/completions"))
                self.wfile.flush()
                time.sleep(0.001)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that hangs up is no fault of the server's."""

    with Quiet(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.005,), daemon=True).start()
        try:
            yield [a.replace(SERVER, f"http://127.0.0.1:{server.server_port}") for a in case.arguments]
        finally:
            server.shutdown()


def invoke(arguments: list[str], piped: bytes = b"") -> tuple[int, str, str]:
    """Exit code, output and errors of a run in this process, with what is piped into it."""
    from planner.cli.main import run

    out, errors = io.TextIOWrapper(io.BytesIO(), "utf-8", "surrogateescape"), io.StringIO()
    code = 0
    before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(piped), "utf-8")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            run(arguments)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        finally:
            sys.stdin = before
    with contextlib.suppress(ValueError, OSError):
        out.flush()
    written = out.buffer.getvalue() if isinstance(out.buffer, io.BytesIO) and not out.closed else b""
    return code, written.decode("utf-8", "replace"), errors.getvalue()


def fault(case: Case) -> str | None:
    """What is wrong with a run; ``None`` = nothing."""

    def ring(*_: object) -> None:
        raise Hang

    held = forget_peak()
    with in_folder(case.files) as folder:
        old = {number: signal.signal(number, ring) for number in (signal.SIGPROF, signal.SIGALRM)}
        # processor time, as others may use the machine too; the clock only for what waits without working
        signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
        left_s, _ = signal.setitimer(signal.ITIMER_REAL, 12 * LIMIT_S)
        try:
            with served(case) as arguments:
                code, _, errors = invoke(arguments, case.files.get("stdin", b""))
            after = next(
                (words for first, words in AGAIN.items() if tuple(case.arguments[: len(first)]) == first), None
            )
            unread = (
                invoke(after)
                if after and not code and (after[-1] == "show" or Path(after[-1]).exists())
                else (0, "", "")
            )
        except Hang:
            return f"took more than {LIMIT_S} s"
        except BaseException:
            return "traceback: " + traceback.format_exc().strip().splitlines()[-1] + " | " + where()
        finally:
            for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
                signal.setitimer(timer, 0.0)
            for number, handler in old.items():
                signal.signal(number, handler)
            # the test runner's own limit
            signal.setitimer(signal.ITIMER_REAL, left_s)
        left = [p.name for p in folder.iterdir() if p.name not in case.files and p.name.startswith((".", "tmp"))]
    if unread[0]:
        return f"what it wrote cannot be read: {unread[2][-300:]!r}"
    if code not in CODES:
        return f"exit code {code}: {errors[-300:]!r}"
    if "Traceback (most recent call last)" in errors:
        begin = errors.index("Traceback (most recent call last)")
        return f"traceback printed: {errors[max(begin - 200, 0) : begin + 1000]!r}"
    if any(not (c.isprintable() or c in "\n\r") for c in errors):
        return f"control characters in the message: {errors[:300]!r}"
    if code and (errors.count("\n") > MOST_LINES or len(errors) > MOST_LETTERS):
        return f"{errors.count(chr(10))} lines, {len(errors)} letters said: {errors[:200]!r}"
    if code and not errors.strip():
        return f"exit code {code} without a word"
    if left:
        return f"left behind: {left}"
    if not all(stat.S_ISCHR(os.stat(device).st_mode) for device in ("/dev/null", "/dev/full")):
        return "a device is gone"
    if (taken := peak_bytes() - held) > MOST_BYTES:
        return f"took {taken >> 20} MiB"
    return None


def faults_apart(cases: Iterable[Case]) -> Iterator[str | None]:
    """The same of each of many, in copies of this process: what a fault leaves in memory is not the next one's, and a crash is
    seen."""
    todo = iter(cases)
    while some := list(islice(todo, TOGETHER)):
        while some:
            for why in _judged(some):
                yield why
                del some[0]


def _judged(cases: list[Case]) -> Iterator[str | None]:
    """Verdicts of the first of these cases, from one copy of this process: up to one that failed, or took much memory."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            for case in cases:
                why = fault(case)
                os.write(writing, json.dumps(why).encode() + b"\n")
                if why is not None or peak_bytes() > MOST_BYTES // 2:
                    break
        finally:
            os._exit(0)
    os.close(writing)
    told = 0
    with open(reading, "rb") as answers:
        # a hang that no signal ends inside
        while not (hung := not select.select([answers], [], [], 15 * LIMIT_S)[0]) and (line := answers.readline()):
            told += 1
            yield json.loads(line)
        if hung:
            os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        yield f"ended by signal {os.WTERMSIG(status)}"
    elif not told:
        yield "ended without a word"


def forget_peak() -> int:
    """Let the kernel measure this process's memory anew, where it can; what it holds already, of other tests too [B]."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return peak_bytes()


def peak_bytes() -> int:
    """Most memory of this process since then [B]."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    except OSError:
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def where() -> str:
    """File and line of the exception being handled."""
    frames = traceback.extract_tb(sys.exc_info()[2])
    ours = [f for f in frames if "/planner/" in f.filename] or list(frames)
    return f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"


def failures(
    seed: int,
    numbers: Iterable[int],
    show: Callable[[str], None] = print,
    judge: Callable[[Iterable[Case]], Iterable[str | None]] = lambda cases: map(fault, cases),
) -> list[int]:
    """Numbers of the cases that break the rule, each shown with what is wrong."""
    maker, found = Maker(), []
    made: list[tuple[int, Case]] = []

    def cases() -> Iterator[Case]:
        for number in numbers:
            made.append((number, maker.case(seed, number)))
            yield made[-1][1]

    for why in judge(cases()):
        number, case = made.pop(0)
        if why is not None:
            found.append(number)
            show(f"{seed}/{number}: {' '.join(case.arguments)[:160]!r}: {why}")
    return found


def warm(commands: Iterable[list[str]], sound: dict[str, str]) -> None:
    """Import what the commands import, so that no copy of this process does it again."""
    for arguments in commands:
        with in_folder(sound), served(Case(arguments, found(sound, sound))) as told:
            invoke(told)
    # what no copy will throw away need not be looked through, which would copy its pages
    gc.collect()
    gc.freeze()


def stopping(tried: Callable[[], int]) -> Callable[..., None]:
    """What says how far a run came that is asked to stop; a copy of this process stops without a word."""
    mine = os.getpid()

    def stop(*_: object) -> None:
        if os.getpid() == mine:
            sys.stdout.write(f"stopped after {tried():,} cases\n")
            sys.stdout.flush()
        os._exit(1)

    return stop


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after so long")
    parser.add_argument("--only", type=int, help="repeat one case and show what it does")
    given = parser.parse_args()
    if given.only is not None:
        case = Maker().case(given.seed, given.only)
        for name, content in case.files.items():
            if content != SOUND.get(name, "").encode():
                sys.stdout.write(f"--- {name}\n{content[:3000]!r}\n")
        sys.stdout.write(f"{case.arguments}\n{fault(case)}\n")
        with in_folder(case.files), served(case) as arguments:
            sys.stdout.write(f"{invoke(arguments, case.files['stdin'])}\n")
        return
    begun, numbers = time.monotonic(), []

    def in_time() -> Iterator[int]:
        for number in range(given.cases):
            if time.monotonic() - begun > given.seconds:
                return
            if number % EACH == 0 and number:
                sys.stderr.write(f"{number:,} cases after {time.monotonic() - begun:.0f} s\n")
            numbers.append(number)
            yield number

    def show(text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    signal.signal(signal.SIGTERM, stopping(lambda: len(numbers)))
    warm((arguments for _, arguments, _ in COMMANDS), Maker().sound)
    wrong = failures(given.seed, in_time(), show, faults_apart)
    show(f"{len(numbers):,} cases, {len(wrong)} failures")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
