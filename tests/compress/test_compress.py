"""The compressor: the budget holds, code and structure stay, what is kept is the author's own text."""

from __future__ import annotations

import ast
import importlib
import json
import os
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from planner.compress.extract import CompressorSettings, compress, compress_chat, prompt_tokens
from planner.compress.measure import TfidfCosine, measure, read_prompts, rouge_l_recall, wilson_interval
from planner.compress.scores import ScoreWeights, position, sentence_scores, textrank
from planner.compress.segments import content_type, units_of
from planner.compress.tokens import LearnedBytes, by_bytes, by_tokenizer, counter_from
from planner.errors import InputError

COUNT = by_bytes(4.0)


def tokens(text: str) -> int:
    return COUNT([text])[0]


ROUNDS = int(os.environ.get("FLEETOPT_COMPRESS_ROUNDS", "40"))
"""Random texts per script; the long checks take 2,000, which is 10,000 in all."""

LINES = {
    "latin": "fleet replica token latency boundary gateway prompt queue memory budget of the a and is was it for on",
    "cyrillic": "очередь запрос память сервер задержка предел ответ и в на не что это как для",
    "arabic": "طلب ذاكرة خادم زمن حد جواب في من على إلى هذا التي كان مع",
    "devanagari": "अनुरोध स्मृति सर्वर विलंब सीमा उत्तर है में से को यह पर और था",
}
WORDS = {script: line.split() for script, line in LINES.items()}
CJK = "容量规划集群请求延迟内存边界网关提示词队列服务器副本令牌预算一二三的是在有和不这"
ENDS = {"latin": ". ", "cyrillic": ". ", "arabic": "؟ ", "devanagari": "। ", "cjk": "。"}


def random_text(rng: random.Random, script: str, sentences: int) -> str:
    """Sentences of random words of one script, with paragraphs between some."""
    pieces = []
    for _ in range(sentences):
        length = rng.randint(3, 18)
        if script == "cjk":
            body = "".join(rng.choice(CJK) for _ in range(length))
        else:
            body = " ".join(rng.choice(WORDS[script]) for _ in range(length)).capitalize()
        pieces.append(body + ENDS[script] + ("\n\n" if rng.random() < 0.15 else ""))
    return "".join(pieces)


@pytest.mark.parametrize("script", [*WORDS, "cjk"])
def test_the_budget_is_never_exceeded(script: str) -> None:
    rng = random.Random(f"budget-{script}")
    for _ in range(ROUNDS):
        text = random_text(rng, script, rng.randint(1, 40))
        count = by_bytes(rng.uniform(1.5, 5.0))
        budget = rng.randint(0, count([text])[0] + 20)
        done = compress(text, budget, count, content="prose")
        assert count([done.prompt]) == [done.tokens_after]
        if done.compressed or done.tokens_before <= budget:
            assert done.tokens_after <= budget
        else:
            assert done.reason == "kept" and done.prompt == text
        if done.compressed:
            assert is_subsequence([u.text for u in units_of(done.prompt)], text)


def is_subsequence(pieces: list[str], text: str) -> bool:
    """Whether the pieces stand in `text` in this order."""
    place = 0
    for piece in pieces:
        place = text.find(piece.strip(), place)
        if place < 0:
            return False
        place += len(piece.strip())
    return True


@given(st.text(max_size=400), st.integers(0, 120))
@settings(max_examples=80, deadline=None)
def test_any_text_at_all(text: str, budget: int) -> None:
    assert "".join(u.text for u in units_of(text)) == text
    done = compress(text, budget, COUNT, content="prose")
    assert done.tokens_after <= budget or done.prompt == text
    assert done.tokens_after == tokens(done.prompt)


def test_first_and_last_sentences_are_kept() -> None:
    sentences = [f"Sentence number {k} speaks of subject {k * k}. " for k in range(40)]
    text = "".join(sentences)
    done = compress(text, tokens(text) // 2, COUNT)
    assert done.compressed
    assert done.prompt.startswith("".join(sentences[:3]))
    assert done.prompt.endswith("".join(sentences[-2:]))
    # half the budget is used: sentences are of nearly one length, so at most one does not fit
    assert done.tokens_after > tokens(text) // 2 - 2 * tokens(sentences[0])


def test_a_smaller_budget_keeps_no_more() -> None:
    rng = random.Random(5)
    text = random_text(rng, "latin", 80)
    sizes = [compress(text, b, COUNT, content="prose").tokens_after for b in range(200, tokens(text), 60)]
    assert all(b <= a for a, b in zip(sizes[1:], sizes, strict=False))


def test_code_and_tables_inside_prose_stay_whole() -> None:
    code = "```python\ndef f(x):\n    return x + 1\n```\n"
    table = "| gpu | price |\n|:--|--:|\n| H100 | 2.9 |\n"
    prose = "".join(f"This is remark {k} about the function above and its callers. " for k in range(40))
    text = f"Look at this.\n\n{code}\n{prose}\n\n{table}\nWhat would you change? Say why.\n"
    done = compress(text, int(0.6 * tokens(text)), COUNT, content="prose")
    assert done.compressed and code in done.prompt and table in done.prompt
    blocks = [u.text for u in units_of(text) if u.protected]
    assert any(code.strip() in b for b in blocks) and any("H100" in b for b in blocks)


def test_code_is_left_alone() -> None:
    """Functions and classes of the standard library, and other languages by hand: never compressed."""
    names = "argparse ast collections csv dataclasses heapq inspect logging queue random string subprocess tarfile typing zipfile"
    snippets = []
    for name in names.split():
        source = Path(importlib.import_module(name).__file__ or "").read_text(encoding="utf-8")
        lines = source.splitlines(keepends=True)
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                continue
            snippet = "".join(lines[node.lineno - 1 : node.end_lineno])
            # what is mostly docstring is prose with a name
            if len(snippet) > 200 and len(ast.get_docstring(node) or "") < 0.3 * len(snippet):
                snippets.append(snippet)
    assert not [s for s in snippets if content_type(s) == "prose"]
    snippets = [*random.Random(7).sample(snippets, 200), *OTHER_LANGUAGES]
    wrong = [s for s in snippets if compress(s, tokens(s) // 2, COUNT).compressed]
    assert not wrong, wrong[:2]


OTHER_LANGUAGES = [
    'package main\n\nimport "fmt"\n\nfunc main() {\n\tfor i := 0; i < 3; i++ {\n\t\tfmt.Println(i)\n\t}\n}\n' * 3,
    "SELECT pool, count(*) AS n\nFROM requests\nWHERE status = 200\nGROUP BY pool\nORDER BY n DESC;\n" * 4,
    "const add = (a, b) => {\n  return a + b;\n};\nexport default add;\n" * 4,
    '#include <stdio.h>\nint main(void) {\n  printf("hi\\n");\n  return 0;\n}\n' * 4,
    '<html>\n<body>\n<div class="a">x</div>\n</body>\n</html>\n' * 4,
    "replicas: 3\nimage: engine:1\nport: 8000\nname: short\nmemory: 80Gi\n" * 6,
    json.dumps({"tool_calls": [{"name": "search", "arguments": {"q": f"item {k}"}} for k in range(40)]}),
    "time,input,output,model\n" + "1.5,100,20,llama\n" * 50,
]


def test_prose_passes_the_gate() -> None:
    rng = random.Random(8)
    for script in [*WORDS, "cjk"]:
        assert content_type(random_text(rng, script, 30)) == "prose"
    assert content_type("Retrieved documents:\n\n[1] " + random_text(rng, "latin", 20)) == "prose"
    assert content_type("") == "prose"


def test_textrank_is_the_stationary_law_of_the_walk() -> None:
    """Against the dominant eigenvector of the Google matrix, by numpy's dense eigensolver."""
    rng = np.random.default_rng(3)
    s = rng.random((12, 12)) * (rng.random((12, 12)) < 0.4)
    s = s + s.T
    s[5, :] = s[:, 5] = 0.0
    np.fill_diagonal(s, 1.0)
    links = s - np.diag(np.diag(s))
    out = links.sum(axis=1)
    walk = np.where(out[:, None] > 0.0, links / np.where(out > 0.0, out, 1.0)[:, None], 1.0 / 12)
    values, vectors = np.linalg.eig((0.15 / 12 + 0.85 * walk).T)
    exact = np.real(vectors[:, np.argmax(np.real(values))])
    # 0.85^30 = 0.8% is what the start leaves after 30 rounds, less in the norm of the difference
    assert np.abs(textrank(s) - exact / exact.sum()).max() < 2e-3


def test_scores() -> None:
    assert position(5).tolist() == [1.0, 0.625, 0.5, 0.625, 1.0]
    repeated = ["The pool holds eight replicas.", "Boundaries move with traffic.", "The pool holds eight replicas."]
    only_new = sentence_scores(repeated, ScoreWeights(0.0, 0.0, 0.0, 1.0))
    assert only_new[2] == pytest.approx(0.0, abs=1e-12) and only_new[0] == 1.0
    rare = sentence_scores(["It is it.", "It is so.", "Quasi-stationary occupancy."], ScoreWeights(0.0, 0.0, 1.0, 0.0))
    assert rare.argmax() == 2
    assert sentence_scores([]).shape == (0,)
    with pytest.raises(InputError, match="none of"):
        ScoreWeights.parse("rank=1")
    with pytest.raises(InputError, match="not all zero"):
        ScoreWeights.parse("textrank=0,position=0,tfidf=0,novelty=0")


def test_rouge_l_against_a_table() -> None:
    """The bit-parallel length against the plain dynamic programme."""

    def plain(a: list[str], b: list[str]) -> int:
        row = [0] * (len(b) + 1)
        for x in a:
            before = 0
            for k, y in enumerate(b):
                row[k + 1], before = (before + 1 if x == y else max(row[k], row[k + 1])), row[k + 1]
        return row[-1]

    rng = random.Random(4)
    for _ in range(60):
        a = [rng.choice("abcd") for _ in range(rng.randint(1, 90))]
        b = [rng.choice("abcd") for _ in range(rng.randint(0, 90))]
        assert rouge_l_recall(" ".join(a), " ".join(b)) == plain(a, b) / len(a)
    cosine = TfidfCosine(["a b c d", "c d e"])
    assert cosine("a b c d", "a b c d") == pytest.approx(1.0)
    assert cosine("a b", "c d") == 0.0


def test_learned_bytes_err_low() -> None:
    learned = LearnedBytes()
    rng = random.Random(1)
    before = learned.bytes_per_token("prose")
    for _ in range(400):
        tokens = rng.randint(500, 5000)
        learned.observe("prose", int(tokens * rng.uniform(4.0, 4.6)), tokens)
    assert before == 3.0
    assert 3.6 < learned.bytes_per_token("prose") < 4.3
    assert learned.bytes_per_token("code") == 3.0


def test_an_exact_tokenizer(tmp_path: Path) -> None:
    words = {w: k for k, w in enumerate(["[UNK]", *sorted({w for ws in WORDS.values() for w in ws})])}
    made = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    count = counter_from(tmp_path, None)
    assert count(["fleet replica, token"]) == [4]
    text = random_text(random.Random(2), "latin", 50)
    half = count([text])[0] // 2
    done = compress(text, half, count, content="prose")
    assert done.compressed and count([done.prompt])[0] <= half
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(InputError, match=r"not a tokenizer\.json"):
        by_tokenizer(tmp_path / "bad.json")
    with pytest.raises(InputError, match="two ways"):
        counter_from(tmp_path, 4.0)


def chat(text: str) -> list[dict[str, object]]:
    return [
        {"role": "system", "content": "You answer from the documents."},
        {"role": "user", "content": [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": "x"}}]},
        {"role": "user", "content": "Which boundary is cheapest?"},
    ]


def test_chats() -> None:
    text = random_text(random.Random(11), "latin", 60)
    messages = chat(text)
    before = json.dumps(messages)
    tokens = prompt_tokens(messages, COUNT)
    done = compress_chat(messages, int(0.7 * tokens), COUNT)
    assert json.dumps(messages) == before  # the caller's objects are as they were
    assert done.compressed and prompt_tokens(done.prompt, COUNT) <= int(0.7 * tokens)
    assert done.prompt[0] == messages[0] and done.prompt[2] == messages[2]
    assert done.prompt[1]["content"][1] == messages[1]["content"][1]
    assert compress_chat(messages, 60, COUNT).reason == "kept"
    tools = [*messages, {"role": "tool", "content": "42", "tool_call_id": "1"}]
    assert compress_chat(tools, int(0.7 * tokens), COUNT).reason == "gate"


def test_measure(tmp_path: Path) -> None:
    rng = random.Random(21)
    lines = []
    for _ in range(30):
        lines.append(json.dumps({"prompt": random_text(rng, "latin", rng.randint(80, 130)), "category": "rag"}))
    for k in range(10):
        lines.append(json.dumps({"prompt": (OTHER_LANGUAGES[k % 4] * 40)[:6000], "category": "code"}))
    lines.append(json.dumps({"messages": chat(random_text(rng, "latin", 100)), "max_tokens": 10}))
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(lines) + "\n")
    found = measure(read_prompts(file), 1_200, 2.0, COUNT, "4 bytes per token", output_tokens=50)
    assert found.prompts == 41
    rag, code = found.categories["rag"], found.categories["code"]
    assert rag.p_c == 1.0 and rag.requests > 10 and code.p_c == 0.0 and code.reasons == {"gate": code.requests}
    assert found.total.requests == sum(c.requests for c in found.categories.values())
    assert 0.0 < rag.reduction["p10"] <= rag.reduction["p90"] < 0.5
    # what is left out is at least the share of words that is missing
    assert rag.rouge_l_recall["mean"] == pytest.approx(1.0 - rag.reduction["mean"], abs=0.03)
    json.dumps(found.to_dict())
    low, high = wilson_interval(7, 20)
    assert (low, high) == pytest.approx((0.1812, 0.5671), abs=1e-3)  # Newcombe (1998), table I's method on 7/20


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", ":1: not JSON"),
        ("[1]", "expected an object"),
        ('{"a": 1}', "no prompt"),
        ('{"text": "x", "max_tokens": -1}', "whole"),
    ],
)
def test_bad_prompts(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(line)
    with pytest.raises(InputError, match=message):
        list(read_prompts(file))


def test_bad_settings() -> None:
    with pytest.raises(InputError, match="gamma"):
        measure([], 100, 1.0, COUNT, "")
    with pytest.raises(ValueError, match="keep_first"):
        CompressorSettings(keep_first=-1)
