"""Tables 4 and 7 of the FleetOpt paper on text that is public: p_c, reduction, fidelity and latency of the compressor.

The paper's prompts (LMSYS-Chat-1M, Azure) are not public as text. Here: documentation that ships inside installed Python
packages (README texts in their metadata, reStructuredText and Markdown files, long docstrings) and of this project, cut into
prompts that lie in the paper's bands. Licences of the packages used are listed with the result.

About two minutes.
"""

from __future__ import annotations

import importlib.metadata as metadata
import os
import random
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

from planner.compress.measure import Prompt, measure
from planner.compress.segments import content_type
from planner.compress.tokens import by_bytes

BANDS = {"Azure": (4096, 2.0), "LMSYS": (1536, 2.0), "Agent-heavy": (8192, 1.5)}
"""B_short and the band's width: gamma* of Algorithm 1 for the first two, the paper's fidelity band for the last."""

PRINTED_P50_MS = {"Azure": 1.8, "LMSYS": 1.2, "Agent-heavy": 3.4}
PERMISSIVE = ("MIT", "BSD", "Apache", "PSF", "Python Software Foundation", "ISC")
PROMPTS = 300
OUTPUT_TOKENS = 256
COUNT = by_bytes(4.5)


def documents() -> tuple[list[str], list[str]]:
    """Prose texts of installed packages, and the packages with their licences."""
    texts, used = [], []
    for package in metadata.distributions():
        licence = package.metadata.get("License-Expression") or package.metadata.get("License") or ""
        licence += " ".join(c for c in package.metadata.get_all("Classifier") or [] if c.startswith("License"))
        if not any(word in licence for word in PERMISSIVE):
            continue
        found = [package.metadata.get_payload() or ""] if isinstance(package.metadata.get_payload(), str) else []
        for file in package.files or []:
            if file.suffix in (".rst", ".md", ".txt") and "licen" not in file.name.lower():
                place = Path(str(package.locate_file(file)))
                if place.is_file() and place.stat().st_size > 3_000:
                    found.append(place.read_text(encoding="utf-8", errors="replace"))
        found = [t for t in found if len(t) > 3_000]
        if found:
            texts += found
            used.append(
                f"{package.metadata['Name']} ({(package.metadata.get('License-Expression') or 'see its metadata')[:20]})"
            )
    for file in sorted((Path(__file__).parents[2] / "docs").rglob("*.md")):
        texts.append(file.read_text(encoding="utf-8"))
    return texts, sorted(used)


def prompts(texts: list[str], boundary: int, gamma: float, rng: random.Random) -> list[Prompt]:
    """Prompts of the band: paragraphs of one or more documents put together, as retrieval does."""
    paragraphs = [p for t in texts for p in t.split("\n\n") if len(p) > 80 and content_type(p) == "prose"]
    made = []
    for _ in range(PROMPTS):
        wanted = rng.uniform(1.02, gamma) * boundary - OUTPUT_TOKENS
        start = rng.randrange(len(paragraphs))
        text = ""
        while sum(COUNT([text])) < wanted:
            text += paragraphs[start % len(paragraphs)] + "\n\n"
            start += 1
        text = text.encode()[: int(wanted * COUNT.bytes_per_token)].decode(errors="ignore")
        made.append(Prompt(text, output_tokens=OUTPUT_TOKENS))
    return made


def main() -> None:
    """Print what each band comes to."""
    texts, used = documents()
    print(f"{len(texts)} documents of {len(used)} packages: {', '.join(used)}\n")
    rng = random.Random(1)
    for name, (boundary, gamma) in BANDS.items():
        found = measure(
            prompts(texts, boundary, gamma, rng), boundary, gamma, COUNT, "4.5 bytes per token", OUTPUT_TOKENS
        )
        total = found.total
        low, high = (100 * v for v in (total.to_dict()["p_c_low"], total.to_dict()["p_c_high"]))
        print(
            f"{name}: B {boundary}, gamma {gamma}: {total.requests} prompts, p_c {100 * total.p_c:.1f}% ({low:.1f}-{high:.1f})"
        )
        for label, spread in (
            ("token reduction", total.reduction),
            ("ROUGE-L recall", total.rouge_l_recall),
            ("TF-IDF cosine", total.tfidf_cosine),
        ):
            print(f"  {label:16s} " + "  ".join(f"{k} {v:.3f}" for k, v in spread.items()))
        times = "  ".join(f"{k} {1e3 * v:.1f} ms" for k, v in total.latency_s.items())
        ratio = 1e3 * total.latency_s["p50"] / PRINTED_P50_MS[name]
        print(f"  {'latency':16s} {times}  (p50 {ratio:.1f} times the paper's {PRINTED_P50_MS[name]} ms)")
        print(f"  left alone: {dict(total.reasons)}")
