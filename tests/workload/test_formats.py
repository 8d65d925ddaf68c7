"""Every format: the same few requests written the way each tool writes them, recognised by content."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from planner.errors import InputError
from planner.workload.formats.base import Clock, ReadOptions, parse_count
from planner.workload.formats.registry import format_names, formats
from planner.workload.importing import import_files, read_workload
from planner.workload.source import Source

REQUESTS = [(0.0, 374, 44), (4.25, 396, 109), (4.5, 91, 16), (7.0, 91, 16), (60.0, 1313, 142)]
START = 1_700_158_546  # 2023-11-16T18:15:46Z
INPUT, OUTPUT, SPAN = 2265, 327, 60.0


def iso(t: float) -> str:
    minute, second = divmod(46 + t, 60)
    return f"2023-11-16T18:{15 + int(minute):02d}:{second:09.6f}"


def lines(render: Callable[[float, int, int], object], *more: object) -> str:
    return "\n".join(json.dumps(r) for r in [*(render(*request) for request in REQUESTS), *more]) + "\n"


def table(header: str, row: str, *more: str) -> str:
    cells = [row.format(t=t, i=i, o=o, total=i + o, iso=iso(t), at=START + t) for t, i, o in REQUESTS]
    return "\n".join([header, *cells, *more]) + "\n"


def attributes(**values: object) -> list[dict[str, object]]:
    return [
        {"key": k.replace("__", "."), "value": {"intValue": str(v)} if isinstance(v, int) else {"stringValue": v}}
        for k, v in values.items()
    ]


def span(t: float, i: int, o: int) -> dict[str, object]:
    return {
        "name": "chat",
        "startTimeUnixNano": str(round((START + t) * 1e9)),
        "attributes": attributes(
            gen_ai__operation__name="chat", gen_ai__usage__input_tokens=i, gen_ai__usage__output_tokens=o
        ),
    }


TOOL_SPAN = {"name": "tool", "startTimeUnixNano": "1", "attributes": attributes(gen_ai__operation__name="execute_tool")}

FILES: dict[str, tuple[str, str, int]] = {
    "azure": (table("TIMESTAMP,ContextTokens,GeneratedTokens", "{iso},{i},{o}").replace("T1", " 1"), "azure", 0),
    "azure 2024": (table("TIMESTAMP,ContextTokens,GeneratedTokens", "{iso}+00:00,{i},{o}"), "azure", 0),
    "burstgpt": (
        table(
            "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
            "{t},ChatGPT,{i},{o},{total},Conversation log",
            "61,GPT-4,500,0,500,API log",
        ),
        "burstgpt",
        1,
    ),
    "vidur": (table("arrived_at,num_prefill_tokens,num_decode_tokens", "{t},{i},{o}"), "splitwise", 0),
    "splitwise": (
        table("request_id,arrival_timestamp,batch_size,prompt_size,token_size", "1,{t},1,{i},{o}"),
        "splitwise",
        0,
    ),
    "litellm csv": (
        table(
            "request_id,call_type,prompt_tokens,completion_tokens,startTime,cache_hit,status",
            'x,acompletion,{i},{o},{iso}Z,False,success',
            "x,acompletion,5,0,2023-11-16T18:16:00Z,False,failure",
            "x,aembedding,5,0,2023-11-16T18:16:00Z,False,success",
            "x,acompletion,5,9,2023-11-16T18:16:00Z,True,success",
        ),
        "litellm",
        3,
    ),
    "litellm json": (
        json.dumps([
            {"request_id": "x", "spend": 0.1, "call_type": "acompletion", "prompt_tokens": i, "completion_tokens": o,
             "startTime": iso(t) + "Z"}
            for t, i, o in REQUESTS
        ]),
        "litellm",
        0,
    ),
    "openai": (
        lines(lambda t, i, o: {
            "object": "chat.completion", "created": START + t, "usage": {"prompt_tokens": i, "completion_tokens": o}}),
        "openai",
        0,
    ),
    "openai responses": (
        lines(
            lambda t, i, o: {"object": "response", "created_at": START + t, "usage": {"input_tokens": i, "output_tokens": o}},
            {"object": "response", "created_at": START, "error": {"code": "x"}, "usage": None},
        ),
        "openai",
        1,
    ),
    "openai batch": (
        lines(lambda t, i, o: {"id": "x", "response": {"body": {
            "created": START + t, "usage": {"prompt_tokens": i, "completion_tokens": o}}}}),
        "openai",
        0,
    ),
    "otel lines": (lines(span, TOOL_SPAN), "otel", 1),
    "otel export": (
        json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span(*r) for r in REQUESTS]}]}]}, indent=1), "otel", 0,
    ),
    "langfuse": (
        lines(
            lambda t, i, o: {"type": "GENERATION", "traceId": "t", "startTime": iso(t) + "Z", "usageDetails": {
                "input": i - 10, "input_cached_tokens": 10, "output": o, "total": i + o}},
            {"type": "SPAN", "traceId": "t", "startTime": iso(1) + "Z"},
        ),
        "langfuse",
        1,
    ),
    "langfuse page": (
        json.dumps({"data": [
            {"type": "GENERATION", "traceId": "t", "startTime": iso(t) + "Z", "promptTokens": i, "completionTokens": o}
            for t, i, o in REQUESTS], "meta": {"page": 1}}),
        "langfuse",
        0,
    ),
    "langfuse csv": (table("id,type,startTime,inputUsage,outputUsage", "x,GENERATION,{iso}Z,{i},{o}"), "langfuse", 0),
    "vllm bench": (
        json.dumps({
            "backend": "vllm", "request_rate": 5.0, "completed": 5, "input_lens": [*(i for _, i, _ in REQUESTS), 9],
            "output_lens": [*(o for _, _, o in REQUESTS), 0], "start_times": [*(t for t, _, _ in REQUESTS), 3.0],
            "errors": ["", "", "", "", "", "timeout"]}),
        "vllm-bench",
        1,
    ),
    "guidellm": (
        json.dumps({"benchmarks": [{"type_": "generative_benchmark", "requests": {
            "successful": [{"request_start_time": START + t, "prompt_tokens": i, "output_tokens": o} for t, i, o in REQUESTS],
            "incomplete": [{}], "errored": [{}]}}]}),
        "guidellm",
        2,
    ),
    "inference-perf": (
        json.dumps([
            *({"start_time": 100 + t, "end_time": 101 + t, "request": "x", "info": {"input_tokens": i, "output_tokens": o},
               "error": None} for t, i, o in REQUESTS),
            {"start_time": 3, "end_time": 4, "info": {"input_tokens": 5, "output_tokens": 0}, "error": {"error_type": "x"}},
        ]),
        "inference-perf",
        1,
    ),
    "aiperf": (
        lines(
            lambda t, i, o: {
                "metadata": {"request_start_ns": round((START + t) * 1e9), "benchmark_phase": "profiling", "was_cancelled": False},
                "metrics": {"input_sequence_length": {"value": i}, "output_sequence_length": {"value": o}}, "error": None},
            {"metadata": {"benchmark_phase": "warmup"}, "metrics": {"input_sequence_length": {"value": 1}}},
            {"metadata": {"was_cancelled": True}, "metrics": {}},
            {"metadata": {}, "metrics": {}, "error": {"code": 503}},
        ),
        "aiperf",
        3,
    ),
    "mooncake": (
        lines(lambda t, i, o: {"timestamp": round(1000 * t), "input_length": i, "output_length": o, "hash_ids": [1, 2]}),
        "mooncake",
        0,
    ),
    "generic csv": (table("time;prompt_tokens;generated_tokens", "{t};{i};{o}"), "generic", 0),
    "generic lines": (lines(lambda t, i, o: {"timestamp": t, "prompt_tokens": i, "generated_tokens": o}), "generic", 0),
    "generic array": (
        json.dumps([{"ts": START + t, "isl": i, "osl": o} for t, i, o in REQUESTS], indent=2), "generic", 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FILES)
@pytest.mark.parametrize("zipped", [False, True], ids=["plain", "gzip"])
def test_the_same_requests_whatever_the_format(tmp_path: Path, case: str, zipped: bool) -> None:
    text, name, dropped = FILES[case]
    path = tmp_path / ("export.gz" if zipped else "export")
    path.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
    workload, report = read_workload(path)
    assert report.format == name
    assert report.requests == workload.provenance.requests == len(REQUESTS)
    assert sum(report.dropped.values()) == dropped
    assert report.rows_read == len(REQUESTS) + dropped
    assert report.unreadable == 0
    assert workload.mean_input * len(REQUESTS) == pytest.approx(INPUT)
    assert workload.mean_output * len(REQUESTS) == pytest.approx(OUTPUT)
    assert report.span_s == pytest.approx(SPAN, abs=1e-5)
    assert workload.arrivals.rate_per_s == pytest.approx(len(REQUESTS) / SPAN, rel=1e-6)
    # two requests are equal: one row
    assert workload.rows == len(REQUESTS) - 1


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_marks_and_line_ends_do_not_matter(tmp_path: Path, encoding: str, newline: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(FILES["azure"][0].replace("\n", newline).encode(encoding))
    workload, _ = read_workload(path)
    assert workload.mean_input * 5 == pytest.approx(INPUT)


def test_header_in_another_case(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        FILES["azure"][0].replace(
            "TIMESTAMP,ContextTokens,GeneratedTokens", " timestamp,CONTEXTTOKENS,generated tokens"
        )
    )
    assert read_workload(path)[1].format == "azure"


def test_own_names_and_categories(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("when,p,c,app\n0,10,1,chat\n1,20,2,code\n2,30,3,chat\n")
    columns = {"input": "p", "output": "c", "time": "when", "category": "app"}
    workload, report = read_workload(path, columns=columns, input_format="generic")
    workload = workload.with_compressible({"chat": 1.0, "code": 0.0})
    assert workload.categories == ("chat", "code")
    assert workload.compressible == (1.0, 0.0)
    assert workload.category_shares() == pytest.approx([2 / 3, 1 / 3])
    assert report.rate_per_s == pytest.approx(1.5)
    with pytest.raises(InputError, match="no column 'nope'"):
        read_workload(path, columns={"input": "nope"}, input_format="generic")


def test_output_from_a_total(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("p,sum\n10,15\n20,21\n")
    workload, _ = read_workload(path, columns={"input": "p", "total": "sum"}, input_format="generic")
    assert sorted(workload.output_tokens.tolist()) == [1.0, 5.0]


def test_conversations_need_a_figure_and_say_it(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    turns = [("human", "a" * 400), ("gpt", "b" * 80), ("human", "c" * 120), ("gpt", "d" * 40)]
    path.write_text(json.dumps([
        {"id": "x", "conversations": [{"from": who, "value": text} for who, text in turns]},
        {"id": "y", "conversations": [{"from": "human", "value": "nothing came back"}]},
    ]))  # fmt: skip
    workload, report = read_workload(path, tokens_per_character=0.5)
    # every reply is a request, its prompt all that was said before
    assert sorted(zip(workload.input_tokens, workload.output_tokens, strict=True)) == [(200.0, 40.0), (300.0, 20.0)]
    assert report.dropped == {"conversation without a reply": 1}
    assert any("0.5 tokens per character" in note for note in report.notes)
    assert any("assumed" in note for note in read_workload(path)[1].notes)


def test_several_traces_are_merged_in_time(tmp_path: Path) -> None:
    a, b = tmp_path / "a.csv", tmp_path / "b.csv"
    a.write_text("timestamp,input_tokens,output_tokens\n2024-01-01 00:00:00,10,1\n2024-01-01 00:01:00,20,1\n")
    b.write_text("timestamp,input_tokens,output_tokens\n2024-01-01 00:02:00,30,1\n")
    workload, reports = import_files([("x", a), ("y", b)], ReadOptions(), name="both")
    assert workload.name == "both"
    assert workload.categories == ("x", "y")
    assert workload.arrivals.rate_per_s == pytest.approx(3 / 120)
    assert [r.requests for r in reports] == [2, 1]


def test_benchmarks_without_single_requests_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_text(
        json.dumps({"request_rate": 1.0, "total_input_tokens": 5, "total_output_tokens": 5, "completed": 1})
    )
    with pytest.raises(InputError, match="save-detailed"):
        read_workload(path)
    path.write_text(json.dumps({"input_sequence_length": {"avg": 550.0}, "request_count": {"avg": 3}}))
    with pytest.raises(InputError, match=r"profile_export\.jsonl"):
        read_workload(path)
    path.write_text(json.dumps({"object": "page", "data": [
        {"object": "bucket", "start_time": 1, "results": [{"input_tokens": 5, "num_model_requests": 2}]}]}))  # fmt: skip
    with pytest.raises(InputError, match="buckets"):
        read_workload(path)


def test_fleetsim_distribution_needs_a_split(tmp_path: Path) -> None:
    path = tmp_path / "cdf.json"
    for document in ([[100, 0.5], [300, 1.0]], {"cdf": [[100, 0.5], [300, 1.0]], "source": "made up"}):
        path.write_text(json.dumps(document))
        with pytest.raises(InputError, match="how much of a request is output"):
            read_workload(path)
        assert read_workload(path, output_share=0.25)[0].mean_output == pytest.approx(0.25 * 125)
    path.write_text(json.dumps([[100, 0.5], [300, 0.4], [400, 1.0]]))
    with pytest.raises(InputError, match="does not decrease"):
        read_workload(path, output_share=0.25)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("2023-11-16 18:15:46.6805900", 1_700_158_546.68059),
        ("2023-11-16T18:15:46.680590Z", 1_700_158_546.68059),
        ("2023-11-16T19:15:46.680590+01:00", 1_700_158_546.68059),
        ("2023-11-16 13:15:46.680590-0500", 1_700_158_546.68059),
        ("2023-11-16 18:15:46.680590 UTC", 1_700_158_546.68059),
        ("1700158546680590000", 1_700_158_546.68059),
        (1_700_158_546_680, 1_700_158_546.68),
        (1_700_158_546_680_590, 1_700_158_546.68059),
        (1_700_158_546.68059, 1_700_158_546.68059),
        ("12.5", 12.5),
        ("2023-11-16", 1_700_092_800.0),
    ],
)
def test_times_as_people_write_them(value: object, seconds: float) -> None:
    assert Clock().read(value) == pytest.approx(seconds, abs=2e-6, rel=0)


@pytest.mark.parametrize(
    "value", ["yesterday", "", "nan", None, True, [], "2023-13-45 00:00:00", "2023-11-16 18:15:46+x"]
)
def test_what_is_no_time(value: object) -> None:
    with pytest.raises((ValueError, IndexError)):
        Clock().read(value)


def test_every_format_has_a_name_and_a_title() -> None:
    assert len(set(format_names())) == len(list(formats()))
    assert all(f.title for f in formats())


def test_docs_and_help_name_every_format() -> None:
    from planner.cli.workload import import_

    told = [
        Path(__file__).parents[2].joinpath("docs", "workloads.md").read_text(encoding="utf-8"),
        import_.__doc__ or "",
    ]
    for name in format_names():
        assert f"| `{name}` |" in told[0], name
        assert re.search(rf"\b{re.escape(name)}\b", told[1]), name


@pytest.mark.parametrize("case", FILES)
def test_only_one_particular_format_recognises_a_file(case: str, tmp_path: Path) -> None:
    """Formats are asked in no particular order, so no two of them may claim the same file."""
    path = tmp_path / "trace"
    path.write_text(FILES[case][0])
    head = Source(path)
    claims = [f.name for f in formats(head.kind) if f.recognise(head) and not f.last_resort]
    assert len(claims) <= 1, claims


@pytest.mark.parametrize("cut", [{"completionTokens": None}, {"usageDetails": {"input": 7}}])
def test_an_answer_never_begun_has_no_output(cut: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "langfuse.jsonl"
    base = {"type": "GENERATION", "traceId": "t", "startTime": "2024-05-01T00:00:00Z", "promptTokens": 7, "usage": {}}
    path.write_text(json.dumps({**base, "completionTokens": 3}) + "\n" + json.dumps({**base, **cut}) + "\n")
    w, report = read_workload(path)
    assert report.requests == 2 and w.mean_input == 7.0 and w.mean_output in (0.0, 1.5)


def test_spans_printed_over_several_lines(tmp_path: Path) -> None:
    path = tmp_path / "console.json"
    spans = [
        {
            "name": "chat",
            "start_time": iso(t) + "Z",
            "attributes": {"gen_ai.usage.input_tokens": i, "gen_ai.usage.output_tokens": o},
        }
        for t, i, o in REQUESTS
    ]
    path.write_text("\n".join(json.dumps(s, indent=4) for s in spans))
    workload, report = read_workload(path)
    assert (report.format, report.requests) == ("otel", 5)
    assert workload.arrivals.rate_per_s == pytest.approx(5 / SPAN)


def test_a_first_prompt_longer_than_the_first_look(tmp_path: Path) -> None:
    path = tmp_path / "long.json"
    records = [
        {
            "start_time": t,
            "request": '{\\"messages\\": \\"' + "word " * 60_000,
            "info": {"input_tokens": i, "output_tokens": o},
        }
        for t, i, o in REQUESTS
    ]
    for text in (json.dumps(records), "\n".join(map(json.dumps, records))):
        path.write_text(text)
        _, report = read_workload(path)
        assert (report.format, report.requests) == ("inference-perf", 5)


@pytest.mark.parametrize(
    ("column", "factor"), [("arrival_ms", 1000), ("timestamp_us", 10**6), ("time_s", 1), ("ts", 1)]
)
def test_the_unit_in_the_name_of_a_column(tmp_path: Path, column: str, factor: int) -> None:
    path = tmp_path / "t"
    path.write_text("\n".join([f"{column},isl,osl", *(f"{t * factor},{i},{o}" for t, i, o in REQUESTS)]))
    assert read_workload(path)[1].span_s == pytest.approx(SPAN)
    path.write_text("\n".join(json.dumps({column: t * factor, "isl": i, "osl": o}) for t, i, o in REQUESTS))
    assert read_workload(path)[1].span_s == pytest.approx(SPAN)


def test_records_without_a_time(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    first = {"isl": 5, "osl": 6}
    timed = [{"isl": i, "osl": o, "ts": t} for t, i, o in REQUESTS]
    path.write_text("\n".join(map(json.dumps, [first, *timed])))
    workload, report = read_workload(path)
    assert report.requests == 6
    assert any("first 1 records have no time" in note for note in report.notes)
    path.write_text("\n".join(map(json.dumps, [*timed, first])))
    with pytest.raises(InputError, match=r"t\.jsonl:6: no timestamp"):
        read_workload(path)
    path.write_text(json.dumps(first))
    workload, _ = read_workload(path)
    assert workload.arrivals.assumed == "Poisson assumed"


def test_unknown_format_is_named() -> None:
    with pytest.raises(InputError, match="did you mean 'azure'"):
        read_workload("azure", input_format="azur")


def test_fixtures_hold_the_same_requests(shared_data: Path) -> None:
    folder = shared_data / "workloads" / "formats"
    expected = json.loads((folder / "expected.json").read_text())
    for path in sorted(folder.iterdir()):
        if path.name in ("expected.json", "sharegpt.json", "vllm_metrics_t0.txt"):
            continue
        baseline = folder / "vllm_metrics_t0.txt" if path.name == "vllm_metrics_t1.txt" else None
        workload, report = read_workload(path, baseline=baseline and Source(baseline))
        assert workload.provenance.requests == expected["n"], path.name
        assert workload.mean_input * expected["n"] == pytest.approx(expected["input_sum"], rel=1e-9), path.name
        assert workload.mean_output * expected["n"] == pytest.approx(expected["output_sum"], rel=1e-9), path.name
        if report.span_s is not None:
            # exports with times in whole seconds lose up to one second of the span
            tolerance = 0.005 if path.name in ("burstgpt.csv", "openai_usage.jsonl") else 1e-5
            assert workload.arrivals.rate_per_s == pytest.approx(expected["rate_per_s_n_over_span"], rel=tolerance)


def test_requests_are_selected_by_a_column_or_a_path(tmp_path: Path) -> None:
    table_file, records, totals = tmp_path / "t.csv", tmp_path / "r.jsonl", tmp_path / "m.prom"
    table_file.write_text("model,input_tokens,output_tokens\na,10,1\nb,20,2\na,30,3\n", encoding="utf-8")
    rows = [("a", 10, 1), ("b", 20, 2), ("a", 30, 3)]
    records.write_text(
        "".join(json.dumps({"meta": {"model": m}, "input_tokens": i, "output_tokens": o}) + "\n" for m, i, o in rows),
        encoding="utf-8",
    )
    for file, name in ((table_file, "model"), (records, "meta.model")):
        workload, (report,) = import_files([(None, file)], ReadOptions(where={name: "a"}))
        assert (workload.mean_input, report.requests, report.dropped) == (20.0, 2, {f"not {name}=a": 1})
        with pytest.raises(InputError, match=f"no usable request \\(3 not {name}=c\\)"):
            import_files([(None, file)], ReadOptions(where={name: "c"}))
    with pytest.raises(InputError, match=r"no column 'modle' \(--where\) among model, input_tokens"):
        import_files([(None, table_file)], ReadOptions(where={"modle": "a"}))
    totals.write_text("# TYPE x counter\nx 1\n", encoding="utf-8")
    with pytest.raises(InputError):
        import_files([(None, totals)], ReadOptions(where={"model": "a"}))
    with pytest.raises(InputError, match="no columns to select requests by"):
        import_files([(None, "lmsys")], ReadOptions(where={"category": "code"}))


@pytest.mark.parametrize(
    ("name", "text", "columns"),
    [
        ("a.tsv", "ts\tin\tout\tteam\n10\t100\t20\tred\n11\t300\t25\tblue\n", {"input": "in", "output": "out", "category": "team"}),
        ("a.csv", "ts;Prompt Tokens;out\n10;\"1,100\";20\n11;300;25\n", {"output": "out"}),
        ("a.jsonl", '{"u": {"in": 100, "out": 20}}\n{"u": {"in": 300, "out": 25}}\n', {"input": "u.in", "output": "u.out"}),
    ],
)  # fmt: skip
def test_columns_that_are_named_need_no_format(name: str, text: str, columns: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    workload, report = read_workload(tmp_path / name, columns=columns)
    assert report.format == "generic" and report.requests == 2
    assert sorted(workload.input_tokens) == ([300.0, 1100.0] if name == "a.csv" else [100.0, 300.0])


def test_a_column_that_is_missing_is_told_with_those_there(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(
        pyarrow.table({"p": [1, 2], "c": [3, 4]}), tmp_path / "a.parquet"
    )
    with pytest.raises(InputError, match="among p, c"):
        read_workload(tmp_path / "a.parquet", columns={"input": "p", "output": "x"})


@pytest.mark.parametrize("text", ["1,20", "0,120", ",120", "1,204.5", "-1,204", "1,2045"])
def test_what_only_looks_like_thousands(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a count|could not convert"):
        parse_count(text)
