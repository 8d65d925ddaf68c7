"""``fleetopt profile``: what profiles there are, what one says, how they differ."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.cli import options as opt

app = typer.Typer(
    name="profile",
    help="Iteration-time profiles: list yours and the shipped ones, show one, compare some.",
    no_args_is_help=True,
)


@app.command("list")
def list_profiles(
    gpu: Annotated[str | None, opt.told("Only this GPU.", "--gpu", "-g")] = None,
    model: Annotated[str | None, opt.told("Only this model.", "--model", "-m")] = None,
    output_format: opt.Format = None,
    output: opt.OutputFile = None,
) -> None:
    """The profiles `plan` can use: yours first, then the shipped ones."""
    from planner.catalog import gpu as find_gpu
    from planner.catalog import model as find_model
    from planner.catalog.profiles import profile, profile_names
    from planner.cli.output import writer
    from planner.report.listings.profiles import profile_list

    write = writer(output_format, output)

    found = [profile(name) for name in profile_names()]
    if gpu is not None:
        wanted = {gpu.lower(), find_gpu(gpu).name}
        found = [p for p in found if p.gpu.lower() in wanted]
    if model is not None:
        wanted = {model.lower(), find_model(model).name}
        found = [p for p in found if p.model.lower() in wanted]
    write(profile_list(found))


@app.command()
def show(
    name: Annotated[
        str | None, typer.Argument(help="Name or file. Without it: what --gpu, --model and --tp would use.")
    ] = None,
    gpu: Annotated[str | None, opt.told("GPU type.", "--gpu", "-g")] = None,
    model: Annotated[str | None, opt.told("Model.", "--model", "-m")] = None,
    tp: Annotated[int, opt.told("GPUs per replica.", "--tp")] = 1,
    papers: Annotated[
        bool, opt.told("Also the parameters of every paper's form (W, H, alpha, beta, d0, d1, ...).", "--papers")
    ] = False,
    context: Annotated[float, opt.told("Mean context for --papers, tokens.", "--context")] = 1024.0,
    output_format: opt.Format = None,
    output: opt.OutputFile = None,
) -> None:
    """One profile: its parameters, where they come from, and how far to trust them."""
    from planner.catalog.profiles import profile
    from planner.cli.output import writer
    from planner.iteration.derived import every_paper
    from planner.report.listings.profiles import profile_entry

    write = writer(output_format, output)
    found = profile(name) if name is not None else profile(gpu=gpu, model=model, tp=tp)
    write(profile_entry(found, every_paper(found.iteration, context) if papers else None))


@app.command()
def compare(
    names: Annotated[list[str], typer.Argument(help="Two or more names or files; the first is the base.")],
    output_format: opt.Format = None,
    output: opt.OutputFile = None,
) -> None:
    """Profiles side by side, with the time of typical batches."""
    from planner.catalog.profiles import profile
    from planner.cli.output import writer
    from planner.errors import InputError
    from planner.report.listings.profiles import profile_comparison

    write = writer(output_format, output)
    if len(names) < 2:
        raise InputError("nothing to compare with", "Give two or more profiles.")
    write(profile_comparison([profile(name) for name in names]))


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
    from planner.calibrate.raw import points_of, read_points
    from planner.calibrate.result import CalibrationSet
    from planner.calibrate.run import refit as fit_again
    from planner.catalog.profiles import profile, profile_file
    from planner.cli.output import say, writer
    from planner.errors import InputError

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
def share(
    name: Annotated[str, typer.Argument(help="Profile: name or file.")],
    output: opt.OutputFile = None,
) -> None:
    """Print one self-contained file, its points in it, without addresses, keys and folders: fit for a pull request."""
    from dataclasses import replace

    import yaml

    from planner.calibrate.making import shareable
    from planner.calibrate.raw import as_measurements, points_of
    from planner.catalog.profiles import profile, profile_file
    from planner.cli.output import emit, say
    from planner.errors import InputError

    found = profile(name)
    try:
        raw = points_of(found, profile_file(name))
        found = replace(found, measurements=as_measurements(raw))
    except InputError as error:
        say([f"warning: {error.message}"])
    emit(yaml.safe_dump(shareable(found).to_dict(), sort_keys=False, allow_unicode=True, width=120).rstrip(), output)
