"""``fleetopt gpu``, ``model`` and ``prices``: what the catalog holds, every number with its source, and the user's own prices."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from planner.cli import options as opt
from planner.cli.output import emit, say, writer
from planner.errors import InputError, unknown

gpu = opt.group("GPUs: list the catalog, show one with the source of every number.")
model = opt.group("Models: list those of the catalog, show one, or a config.json, with its source.")
prices = opt.group("GPU prices: show the offers with vendor, term and day; import your own lists.")


@gpu.command("list")
@opt.verb()
def list_gpus() -> Any:
    """The GPUs a plan can be asked for, with memory, speed and the price a plan takes."""
    from planner.catalog.load import gpus
    from planner.report.listings import gpu_list

    return gpu_list(tuple(gpus().values()))


@gpu.command("show")
@opt.verb()
def show_gpu(name: str) -> Any:
    """Every number of a GPU with its source; the price with vendor, term and day.

    Example: fleetopt gpu show h100

    Arguments
    ---------
    name
        Name, or any alias: h100, H200 SXM, l40s.
    """
    from planner.catalog.load import gpu, price_offers
    from planner.catalog.prices import reference_offer
    from planner.report.listings import gpu_entry

    spec = gpu(name)
    return gpu_entry(spec, reference_offer(price_offers(), spec.name))


@model.command("list")
@opt.verb()
def list_models() -> Any:
    """The models known by name, with size, context and the dtype they are served in."""
    from planner.catalog.load import models
    from planner.report.listings import model_list

    return model_list(tuple(models().values()))


@model.command("show")
@opt.verb()
def show_model(name: str, like: str | None) -> Any:
    """What a model is understood as: its shape, where that is from, and the KV cache of a token.

    Example: fleetopt model show llama-3.1-8b

    Arguments
    ---------
    name
        Name, alias, Hugging Face id, or the path of a config.json.

    Parameters
    ----------
    like
        Family whose arithmetic to take for an unknown architecture.
    """
    from planner.catalog.kv import kv_bytes_per_token
    from planner.catalog.load import model
    from planner.report.listings import model_entry

    spec = model(name, like=like)
    return model_entry(spec, kv_bytes_per_token(spec))


@prices.command("show")
@opt.verb()
def show_prices(gpu: list[str] | None, vendor: str | None, term: str | None) -> Any:
    """Offers of the shipped lists and of yours, the cheapest first; a star marks what a plan takes.

    Parameters
    ----------
    gpu, -g
        Only this GPU.
    vendor
        Only this vendor.
    term
        Only this term: on-demand, spot, reserved-1y, ...
    """
    from planner.catalog.load import gpu as find_gpu
    from planner.catalog.load import price_offers
    from planner.catalog.prices import reference_offer
    from planner.report.listings import offer_list

    known = price_offers()
    wanted = {find_gpu(name).name for name in gpu or ()} or {o.gpu for o in known}
    for option, value in {"vendor": vendor, "term": term}.items():
        values = {getattr(o, option) for o in known}
        if value is not None and value not in values:
            raise unknown(f"--{option}: no offer has {value!r}", value, sorted(values), "There are")
    found = [o for o in known if o.gpu in wanted and vendor in (None, o.vendor) and term in (None, o.term)]
    found.sort(key=lambda o: (o.gpu, o.term != "on-demand", o.term, o.usd_per_gpu_hour))
    references = (reference_offer(known, name) for name in {o.gpu for o in found})
    return offer_list(found, frozenset(o for o in references if o is not None))


@prices.command("import")
@opt.asks()
def import_list(file: Path, vendor: str | None, day: str | None, name: str | None) -> None:
    """Take a price list in: plans use its offers before the shipped ones. Importing again replaces it.

    Arguments
    ---------
    file
        A price list: SkyPilot's vms.csv, gpuhunt's CSV, or one of our own form.

    Parameters
    ----------
    vendor
        Whose prices; default: the folder (SkyPilot) or the file's name.
    day, --date
        Day the prices were seen, 2026-10-01; default: the file's own.
    name
        Name of the list; default: the vendor's.
    """
    from planner.catalog.price_files import read_price_file
    from planner.catalog.prices import save_offers

    found, skipped = read_price_file(file, vendor=vendor, seen=day)
    vendors = sorted({offer.vendor for offer in found})
    stem = name or (vendors[0] if len(vendors) == 1 else file.stem)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", stem):
        raise InputError(f"--name: {stem!r} cannot name a file", "Use letters, digits, '.', '_' and '-'.")
    path = save_offers(found, stem)
    gpus = sorted({offer.gpu for offer in found})
    say([f"{len(found)} offers of {', '.join(vendors)} for {', '.join(gpus)} -> {path}"])
    if skipped:
        names = sorted(skipped, key=lambda k: (-skipped[k], k))
        more = f" and {len(names) - 12} more" if len(names) > 12 else ""
        say([f"not in the catalog, left out: {', '.join(names[:12])}{more}"])
    if old := sorted({offer.date for offer in found if offer.is_stale()}):
        say([f"warning: prices seen {old[0]} are more than 180 days old: plans will call them stale"])


profile = opt.group("Iteration-time profiles: list yours and the shipped ones, show one, compare some.")


@profile.command("list")
@opt.verb()
def list_profiles(gpu: str | None, model: str | None) -> Any:
    """The profiles `plan` can use: yours first, then the shipped ones.

    Parameters
    ----------
    gpu, -g
        Only this GPU.
    model, -m
        Only this model.
    """
    from planner.catalog import gpu as find_gpu
    from planner.catalog import model as find_model
    from planner.catalog.profiles import profile, profile_names
    from planner.report.listings import profile_list

    gpus = None if gpu is None else {gpu.lower(), find_gpu(gpu).name}
    models = None if model is None else {model.lower(), find_model(model).name}
    found = [profile(name) for name in profile_names()]
    kept = [
        p for p in found if (gpus is None or p.gpu.lower() in gpus) and (models is None or p.model.lower() in models)
    ]
    return profile_list(kept)


@profile.command()
@opt.verb()
def show(
    name: str | None, *, gpu: str | None, model: str | None, tp: int = 1, papers: bool = False, context: float = 1024.0
) -> Any:
    """One profile: its parameters, where they come from, and how far to trust them.

    Arguments
    ---------
    name
        Name or file. Without it: what --gpu, --model and --tp would use.

    Parameters
    ----------
    gpu, -g
        GPU type.
    model, -m
        Model.
    tp
        GPUs per replica.
    papers
        Also the parameters of every paper's form (W, H, alpha, beta, d0, d1, ...).
    context
        Mean context for --papers, tokens.
    """
    from planner.catalog.profiles import profile
    from planner.machine.derived import every_paper
    from planner.report.listings import profile_entry

    found = profile(name) if name is not None else profile(gpu=gpu, model=model, tp=tp)
    return profile_entry(found, every_paper(found.iteration, context) if papers else None)


@profile.command()
@opt.verb()
def compare(names: list[str]) -> Any:
    """Profiles side by side, with the time of typical batches.

    Arguments
    ---------
    names
        Two or more names or files; the first is the base.
    """
    from planner.catalog.profiles import profile
    from planner.report.listings import profile_comparison

    if len(names) < 2:
        raise InputError("nothing to compare with", "Give two or more profiles.")
    return profile_comparison([profile(name) for name in names])


@profile.command()
@opt.asks()
def refit(name: str, output: Path | None, force: bool = False, output_format: opt.Format = "table") -> None:
    """Fit the raw points of a profile again, with the method of this version.

    Arguments
    ---------
    name
        Profile (name or file) with its points, or a .points.jsonl file.

    Parameters
    ----------
    output, -o, --output
        Profile file. Default: beside the points; the one before is kept.
    force
        Write a profile that fails its checks.
    """
    from planner.calibrate.points import points_of, read_points
    from planner.calibrate.result import CalibrationSet
    from planner.calibrate.run import refit as fit_again
    from planner.catalog.profiles import profile, profile_file

    write = writer(output_format, None)
    if name.endswith(".jsonl"):
        raw, beside = read_points(Path(name)), Path(name.removesuffix(".jsonl").removesuffix(".points") + ".yaml")
    else:
        beside = profile_file(name)
        raw = points_of(profile(name), beside)
    found = fit_again(raw, force=force)
    target = output or beside
    if not target.parent.is_dir():
        raise InputError(f"{target}: folder {target.parent} does not exist")
    written = found.save(target)
    write(CalibrationSet((found,)))
    say([f"wrote {written[0]}", *(f"kept {p.name}" for p in written[1:])])
    say(f"warning: {line}" for line in found.warnings)


@profile.command()
@opt.asks()
def share(name: str, output: opt.OutputFile = None) -> None:
    """Print one self-contained file, its points in it, without addresses, keys and folders: fit for a pull request.

    Arguments
    ---------
    name
        Profile: name or file.
    """
    from dataclasses import replace

    import yaml

    from planner.calibrate.points import as_measurements, points_of
    from planner.calibrate.result import shareable
    from planner.catalog.profiles import profile, profile_file

    found = profile(name)
    try:
        raw = points_of(found, profile_file(name))
        found = replace(found, measurements=as_measurements(raw))
    except InputError as error:
        say([f"warning: {error.message}"])
    emit(yaml.safe_dump(shareable(found).to_dict(), sort_keys=False, allow_unicode=True, width=120).rstrip(), output)
