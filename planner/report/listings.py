"""What is looked up: GPUs, models, offers, profiles and workloads one line each, and one of them number by number."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from planner.report.blocks import Block, Table, Text
from planner.report.pages import Listing, listed, pages, rows_of, told_beside, written
from planner.units import format_bytes, format_count, format_percent

if TYPE_CHECKING:
    from planner.catalog.prices import Offer
    from planner.catalog.profiles import Profile
    from planner.machine.derived import Derived
    from planner.machine.hardware import GpuSpec, ModelSpec
    from planner.workload.arrivals import Arrivals
    from planner.workload.combine import Drift
    from planner.workload.workload import Workload

_page = pages(__file__)

COUNTED = "arithmetic of the shape, or as published with it"
DERIVED = "computed from the numbers above"


def gpu_list(gpus: Sequence[GpuSpec]) -> Listing:
    """GPUs as rows, and where to see more."""
    rows = rows_of(
        told_beside(__file__)["gpu_row"], gpus, aliases=lambda g: " ".join(a.replace(" ", "-") for a in g.aliases)
    )
    offered = {g.name: g.sources.get("price_usd_per_hour", "no offer known: --price") for g in gpus}
    return listed(rows, _page("gpus", None, gpus=gpus, price_of=lambda g: offered[g.name]), gpus=rows)


def model_list(models: Sequence[ModelSpec]) -> Listing:
    """Models as rows, and where to see more."""
    rows = rows_of(told_beside(__file__)["model_row"], models, aliases=lambda m: " ".join(m.aliases))
    return listed(rows, _page("models", None, models=models, attention=_attention), models=rows)


def _attention(m: ModelSpec) -> str:
    """What of a context a token looks back at."""
    kinds = ["latent" if m.kv_lora_rank else f"{m.q_heads} heads on {m.kv_heads}"]
    if m.sliding_window:
        kinds.append(f"window {m.sliding_window:,} in {m.sliding_layers} of {m.layers} layers")
    if m.state_layers:
        kinds.append(f"state in {m.state_layers} of {m.layers} layers")
    if m.index_topk:
        kinds.append(f"sparse, {m.index_topk:,} tokens")
    return ", ".join(kinds)


def offer_list(offers: Sequence[Offer], used: Collection[Offer] = ()) -> Listing:
    """Offers as rows; ``*`` marks those of `used`, which a plan takes without a price, ``stale`` one too old to rely on."""
    rows = [{**offer.to_dict(), "used": offer in used} for offer in offers]
    return listed(rows, _page("offers", None, offers=offers, used=lambda offer: offer in used), offers=rows)


def gpu_entry(spec: GpuSpec, offer: Offer | None) -> Listing:
    """A GPU with the source of every number and the offer a plan takes."""
    sheet = spec.sources.get("flops_per_s", "")
    bought = "no offer known: give --price" if offer is None else f"{offer.describe()}; {offer.source}"
    facts = [
        _fact(
            name,
            getattr(spec, name),
            written(told, spec, {}),
            source.format(sheet=sheet, bought=bought) or spec.sources.get(name, ""),
        )
        for name, told, source in told_beside(__file__)["gpu_facts"]
    ]
    if spec.node_link_bytes_per_s is None:
        facts[3] |= {"shown": "50 GB/s", "source": "assumed: 400 Gbit/s per GPU"}
    rates = spec.flops_per_s.items()
    facts[2:2] = [_fact(f"{of}_flops_per_s", v, f"{v / 1e12:,.4g} TFLOPS dense", sheet) for of, v in rates]
    return _entry("gpu", spec, facts)


def model_entry(spec: ModelSpec, kv_bytes_per_token: float) -> Listing:
    """A model's shape with its source; what a model does not have is left out."""
    facts = []
    for f in fields(spec):
        value = getattr(spec, f.name)
        if f.name in ("name", "aliases", "source") or (not value and f.name not in ("experts", "tied_embeddings")):
            continue
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        billions = f.name.startswith("parameters_")
        shown = f"{value / 1e9:,.4g} B" if billions else format_count(value) if number else str(value)
        if (encoder := spec.vision) is not None and f.name == "vision":
            shown = f"{encoder.layers} layers of {encoder.hidden_size:,}, {encoder.q_heads} heads"
            value = {name: one for name, one in asdict(encoder).items() if one}
        facts.append(_fact(f.name, value, shown, COUNTED if billions else spec.source or "the config.json given"))
    facts.append(_fact("kv_bytes_per_token", kv_bytes_per_token, format_bytes(kv_bytes_per_token), DERIVED))
    return _entry("model", spec, facts)


def _fact(name: str, value: object, shown: str | None, source: str) -> dict[str, Any]:
    """A number in SI units and as people read it, and where it is from."""
    return {"field": name, "value": value, "shown": shown, "source": source}


def _entry(kind: str, spec: GpuSpec | ModelSpec, facts: Sequence[dict[str, Any]]) -> Listing:
    """The name, the facts, and the other names."""
    page = _page("entry", spec, facts=facts, also=", ".join(spec.aliases))
    numbers = {f["field"]: {"value": f["value"], "source": f["source"]} for f in facts}
    named = {"kind": kind, "name": spec.name, "aliases": spec.aliases}
    return listed(rows_of(("field", "value", "source"), facts), page, **named, facts=numbers)


_SCALES = (("s", 1.0), ("ms", 1e3), ("us", 1e6), ("ns", 1e9), ("ps", 1e12))


def _profile_rows(profiles: Sequence[Profile]) -> list[dict[str, Any]]:
    """Profiles as flat rows."""
    rows = zip(rows_of(told_beside(__file__)["profile_row"], profiles), profiles, strict=True)
    return [{**row, **{f"iteration_{k}": v for k, v in p.iteration.to_dict().items()}} for row, p in rows]


def profile_list(profiles: Sequence[Profile]) -> Listing:
    """One line per profile."""
    return listed(_profile_rows(profiles), _page("profiles", None, profiles=profiles), profiles=profiles)


def profile_comparison(profiles: Sequence[Profile]) -> Listing:
    """Parameters beside those of the first, and what they mean: W, H, knee, time of a typical decode batch and of a prompt."""
    from planner.machine.iteration import PARAMETER_UNITS

    names = list(dict.fromkeys(k for p in profiles for k in p.iteration.to_dict()))
    first = profiles[0].iteration

    def cell(amount: float, base: float, unit: str, place: int) -> str:
        ratio = f" (x{amount / base:.2f})" if place and base > 0.0 else ""
        return value(amount, unit) + ratio

    rows = [
        [name, *(cell(getattr(p.iteration, name), getattr(first, name), PARAMETER_UNITS[name], i) for i, p in enumerate(profiles))]
        for name in names
    ]  # fmt: skip
    batches = (
        ("64 decodes at 1,024", (64.0, 65536.0, 0.0, 0.0, 1024.0)),
        ("256 decodes at 1,024", (256.0, 262144.0, 0.0, 0.0, 1024.0)),
        ("prompt of 2,048", (0.0, 0.0, 2048.0, 2048.0 * 2049.0 / 2.0, 0.0)),
        ("64 decodes + 512 new", (64.0, 65536.0, 512.0, 512.0 * 513.0 / 2.0, 1024.0)),
    )
    for label, batch in batches:
        base = first.time(*batch)
        rows.append([label, *(cell(p.iteration.time(*batch), base, "s", i) for i, p in enumerate(profiles))])
    rows.append(["trust", *(p.trust for p in profiles)])
    # names are longer than numbers: two of them would leave no room for a second column
    named = [f"{k}: {p.name}" for k, p in enumerate(profiles, start=1)]
    page: list[Block] = [Text(named), Table(["", *map(str, range(1, len(profiles) + 1))], rows, {""})]
    return listed(_profile_rows(profiles), page, profiles=profiles)


def value(amount: float | None, unit: str) -> str:
    """Three digits with a prefix of the second: 5.08 ms, 23.5 us/token."""
    if amount is None:
        return "-"
    if amount == 0.0:
        return "0"
    if unit != "s" and not unit.startswith("s/"):
        return f"{amount:.4g}" if unit == "1" else f"{amount:.4g} {unit}"
    for name, scale in _SCALES:
        if abs(amount) * scale >= 0.9995:
            return f"{amount * scale:.3g} {name}{unit[1:]}"
    return f"{amount:.3g} {unit}"


def profile_entry(profile: Profile, papers: Mapping[str, Derived] | None = None) -> Listing:
    """Everything a profile says, and the parameters of every paper's form."""
    from planner.machine.iteration import PARAMETER_UNITS

    numbers = profile.iteration.to_dict().items()
    page = _page(
        "profile",
        profile,
        parameters=[{"name": k, "value": value(v, PARAMETER_UNITS[k])} for k, v in numbers],
        engine_told=" ".join(x for x in (profile.engine, profile.engine_version) if x),
        overhead=value(profile.api_overhead_s, "s") if profile.api_overhead_s else None,
        covered_told=[f"measured {k}: {low:g} .. {high:g}" for k, (low, high) in profile.covered.items()],
        settings_told=[f"setting {k}: {v}" for k, v in profile.settings.items() if v],
        notes_told=[f"note: {note}" for note in profile.notes],
        untested_told="; ".join(profile.untested),
        papers=_papers(papers) if papers else [],
    )
    return Listing(_profile_rows([profile]), page, profile.to_dict())


def _papers(derived: Mapping[str, Derived]) -> Table:
    """Every paper's parameters with the range they were taken over and how far the paper's form strays there."""
    rows = []
    for paper, d in derived.items():
        over = ", ".join(
            f"{name} {low:g}" if low == high else f"{name} {low:.4g}..{high:.4g}"
            for name, (low, high) in d.covers.items()
        )
        for i, (name, number) in enumerate(d.values.items()):
            flag = " (assumed)" if name in d.not_identified else ""
            head, *tail = ["", "", ""] if i else [paper, over, f"up to {format_percent(d.form_error)}"]
            rows.append([head, name, value(number, d.units[name]) + flag, *tail])
    columns = ["paper", "parameter", "value", "taken over", "form off by"]
    return Table(columns, rows, set(columns) - {"value"})


def workload_list(workloads: Sequence[Workload], profiles: Mapping[str, Arrivals]) -> Listing:
    """Workloads and hourly profiles as rows."""
    told: dict[str, Callable[[Workload], object]] = {
        "categories": lambda w: " ".join(c for c in w.categories if c),
        "median": lambda w: w.quantile(0.5),
        "longest": lambda w: w.quantile(0.99),
        "note": _note,
    }
    page = _page("workloads", None, workloads=workloads, **told)
    if profiles:
        page += _page("hourly_profiles", None, items=[_hours(name, arrivals) for name, arrivals in profiles.items()])
    rows = rows_of(told_beside(__file__)["workload_row"], workloads, **told)
    return listed(rows, page, workloads=workloads, profiles=profiles)


def _note(w: Workload) -> str:
    notes = [w.provenance.length_split.split(":")[0]] if w.provenance.length_split else []
    notes += ["hourly profile"] if w.arrivals.hourly_profile else []
    notes += [w.arrivals.assumed] if w.arrivals.assumed and w.arrivals.rate_per_s is not None else []
    return "; ".join(notes)


def _hours(name: str, arrivals: Arrivals) -> dict[str, object]:
    """The rate of a service, and its busiest and quietest hour."""
    hours = arrivals.hourly_profile
    ends = (f"{of:.2f} at {hours.index(of)}h" for of in (max(hours), min(hours)))
    rate, peak = arrivals.rate_per_s or 0.0, arrivals.peak_over_mean or 0.0
    return {"name": name, "rate": rate, "peak": peak, **dict(zip(("busiest", "quietest"), ends, strict=True))}


def drift_listing(found: Drift, names: tuple[str, str]) -> Listing:
    """What changed from the first workload to the second."""
    title = f"{names[0]} -> {names[1]}"
    rows = [[written(text, found, {}) or "-" for text in told] for told in told_beside(__file__)["drift"]]
    page = [Table([title, "value", "meaning"], rows, {title, "meaning"})]
    return Listing(found.to_rows(), page, found.to_dict())
