"""``fleetopt profile``: what profiles there are, what one says, how they differ."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from planner.cli import options as opt
from planner.cli.output import emit, say, writer
from planner.errors import InputError

app = typer.Typer(
    name="profile",
    help="Iteration-time profiles: list yours and the shipped ones, show one, compare some.",
    no_args_is_help=True,
)


@app.command("list")
@opt.verb(table={"": {"gpu -g": "Only this GPU.", "model -m": "Only this model."}})
def list_profiles(gpu: str | None, model: str | None) -> Any:
    """The profiles `plan` can use: yours first, then the shipped ones."""
    from planner.catalog import gpu as find_gpu
    from planner.catalog import model as find_model
    from planner.catalog.profiles import profile, profile_names
    from planner.report.listings.profiles import profile_list

    gpus = None if gpu is None else {gpu.lower(), find_gpu(gpu).name}
    models = None if model is None else {model.lower(), find_model(model).name}
    found = [profile(name) for name in profile_names()]
    kept = [
        p for p in found if (gpus is None or p.gpu.lower() in gpus) and (models is None or p.model.lower() in models)
    ]
    return profile_list(kept)


SHOWN: opt.Table = {
    "": {
        "gpu -g": "GPU type.",
        "model -m": "Model.",
        "tp": (1, "GPUs per replica."),
        "papers": (False, "Also the parameters of every paper's form (W, H, alpha, beta, d0, d1, ...)."),
        "context": (1024.0, "Mean context for --papers, tokens."),
    },
}


@app.command()
@opt.verb(table=SHOWN)
def show(
    name: Annotated[
        str | None, typer.Argument(help="Name or file. Without it: what --gpu, --model and --tp would use.")
    ] = None,
    *,
    papers: bool,
    context: float,
    **given: Any,
) -> Any:
    """One profile: its parameters, where they come from, and how far to trust them."""
    from planner.catalog.profiles import profile
    from planner.iteration.derived import every_paper
    from planner.report.listings.profiles import profile_entry

    found = profile(name) if name is not None else profile(**given)
    return profile_entry(found, every_paper(found.iteration, context) if papers else None)


@app.command()
@opt.verb()
def compare(
    names: Annotated[list[str], typer.Argument(help="Two or more names or files; the first is the base.")],
) -> Any:
    """Profiles side by side, with the time of typical batches."""
    from planner.catalog.profiles import profile
    from planner.report.listings.profiles import profile_comparison

    if len(names) < 2:
        raise InputError("nothing to compare with", "Give two or more profiles.")
    return profile_comparison([profile(name) for name in names])


@app.command()
def refit(
    name: Annotated[str, typer.Argument(help="Profile (name or file) with its points, or a .points.jsonl file.")],
    output: Annotated[
        Path | None, opt.told("Profile file. Default: beside the points; the one before is kept.", "-o", "--output")
    ] = None,
    force: Annotated[bool, opt.told("Write a profile that fails its checks.", "--force")] = False,
    output_format: opt.Format = "table",
) -> None:
    """Fit the raw points of a profile again, with the method of this version."""
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


@app.command()
def share(name: Annotated[str, typer.Argument(help="Profile: name or file.")], output: opt.OutputFile = None) -> None:
    """Print one self-contained file, its points in it, without addresses, keys and folders: fit for a pull request."""
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
