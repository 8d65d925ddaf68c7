"""What an image is to a vision model: tokens of the prompt, and patches that its encoder works on."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner.errors import InputError
from planner.machine.hardware import GpuSpec, ModelSpec
from planner.shared.documents import shipped

FAMILIES: Mapping[str, Mapping[str, Any]] = shipped(Path(__file__).with_suffix(".yaml"))
"""How each family cuts images, by the model_type of its config.json."""

MOST_PIXELS, MOST_RATIO = 65_536, 200.0
"""Longest side of an image [pixels]; sides further apart than this the processors refuse."""


@dataclass(frozen=True, slots=True)
class ImageWork:
    """An image as a model takes it.

    Parameters
    ----------
    tokens
        Of the prompt, marks around it and between its tiles included [tokens].
    sequences, patches
        Pieces that the encoder looks at one by one, and patches of each [1].
    """

    tokens: int
    sequences: int
    patches: int


def parse_size(text: str) -> tuple[int, int]:
    """Width and height of an image [pixels], from ``1024x768``.

    Raises
    ------
    InputError
        It is none.

    >>> parse_size("1024x768")
    (1024, 768)
    """
    found = re.fullmatch(r"([1-9]\d{0,5})\s*[xX]\s*([1-9]\d{0,5})", text.strip(), re.ASCII)
    sides = [int(side) for side in found.groups()] if found else [0]
    if not 1 <= max(sides) <= MOST_PIXELS:
        raise InputError(f"image_size: {text!r} is no size of an image: width x height in pixels, such as 1024x768")
    if max(sides) > MOST_RATIO * min(sides):
        raise InputError(
            f"image_size: {text!r}: one side is over {MOST_RATIO:g} times the other, which processors refuse"
        )
    return sides[0], sides[1]


def image_work(model: ModelSpec, width: int, height: int) -> ImageWork:
    """What an image of that size is to a model, by the public formula of its processor.

    Parameters
    ----------
    model
        The model, its encoder described.
    width, height
        Of the image [pixels].

    Raises
    ------
    InputError
        The model has no image encoder that is known here.

    References
    ----------
    Processors of Hugging Face transformers 4.57.1: Qwen2-VL (`smart_resize`), Llama 4 (`get_best_fit`), Gemma 3, and InternVL's
    (`get_optimal_tiled_canvas`).

    Examples
    --------
    >>> from planner.catalog import model
    >>> image_work(model("qwen3-vl-8b"), 1024, 1024), image_work(model("llama-4-scout"), 672, 336)
    (ImageWork(tokens=1026, sequences=1, patches=4096), ImageWork(tokens=437, sequences=3, patches=577))
    """
    if model.vision is None:
        raise InputError(
            f"images: no image encoder of {model.name} is known",
            f"Take a model of the families {', '.join(FAMILIES)}, its vision_config in its config.json.",
        )
    row = FAMILIES[model.image_family]
    if row["rule"] == "resize":
        side = row["patch"] * row["merge"]
        tokens = math.prod(length // side for length in _resized(width, height, side, row))
        return ImageWork(tokens + row["around"], 1, tokens * row["merge"] ** 2)
    tiles = {"fixed": lambda *_: 1, "canvas": _canvas, "aspect": _aspect}[row["rule"]](width, height, row)
    pieces = tiles + 1 if tiles > 1 else 1
    tokens = pieces * row["tile_tokens"] + (tiles * row.get("separator", 0) if tiles > 1 else 0)
    patches = (row["tile"] // row["patch"]) ** 2 + row.get("extra", 0)
    return ImageWork(tokens + row["around"], pieces, patches)


def _resized(width: int, height: int, side: int, row: Mapping[str, Any]) -> tuple[int, int]:
    """Sides rounded to whole tokens, the whole between the least and the most pixels."""
    near = [max(side * round(length / side), side) for length in (width, height)]
    least, most = row["least_pixels"], row["most_pixels"]
    if math.prod(near) > most:
        scale = math.sqrt(width * height / most)
        near = [max(side, side * math.floor(length / scale / side)) for length in (width, height)]
    elif math.prod(near) < least:
        scale = math.sqrt(least / (width * height))
        near = [side * math.ceil(length * scale / side) for length in (width, height)]
    return near[0], near[1]


def _grids(most: int) -> list[tuple[int, int]]:
    """Columns and rows of all canvases of so many tiles at most, the smallest first."""
    grids = [(x, y) for x in range(1, most + 1) for y in range(1, most + 1) if x * y <= most]
    return sorted(grids, key=math.prod)


def _canvas(width: int, height: int, row: Mapping[str, Any]) -> int:
    """Tiles of the smallest canvas that holds the image whole and enlarges it least; where none does, that shrinks it least."""
    scales = {(x, y): min(x * row["tile"] / width, y * row["tile"] / height) for x, y in _grids(row["most_tiles"])}
    larger = [scale for scale in scales.values() if scale >= 1.0]
    best = min(larger) if larger else max(scales.values())
    return min(math.prod(grid) for grid, scale in scales.items() if scale == best)


def _aspect(width: int, height: int, row: Mapping[str, Any]) -> int:
    """Tiles of the canvas whose shape is nearest to the image's; of several the largest that it fills by half."""
    best, tiles = math.inf, 1
    for x, y in _grids(row["most_tiles"]):
        apart = abs(width / height - x / y)
        if apart < best or (apart == best and width * height > 0.5 * row["tile"] ** 2 * x * y):
            best, tiles = apart, x * y
    return tiles


def encoder_of(family: str, config: Mapping[str, Any]) -> ModelSpec | None:
    """The image encoder that a ``vision_config`` describes, its patches for tokens; ``None`` where it does not, or nobody knows how
    its family cuts images. Left out is what joins it to the text model: one to four products, up to a tenth of its work."""
    row = FAMILIES.get(family)
    layers, heads = (config.get(new, config.get(old)) for new, old in
                     (("depth", "num_hidden_layers"), ("num_heads", "num_attention_heads")))  # fmt: skip
    sizes = layers, heads, config.get("hidden_size"), config.get("intermediate_size")
    if row is None or not all(isinstance(n, int) and n >= 1 for n in sizes):
        return None
    depth, heads, hidden, width = (int(n or 1) for n in sizes)
    window = row.get("window", 0)
    return ModelSpec(
        "image encoder", depth, hidden, width, heads, heads, hidden // heads, 0, MOST_PIXELS**2,
        tied_embeddings=True, mlp_matrices=row.get("mlp_matrices", 2), pooling="encoder", sliding_window=window,
        full_attention_layers=row["full"] if window else depth,
    )  # fmt: skip


def spread_encoder(encoder: ModelSpec, tp: int) -> ModelSpec:
    """The encoder with as many heads more as `tp` GPUs share evenly: engines fill up with heads of zeros."""
    heads = tp * math.ceil(encoder.q_heads / tp)
    return encoder if heads == encoder.q_heads else replace(encoder, q_heads=heads, kv_heads=heads)


def image_s(gpu: GpuSpec, model: ModelSpec, tp: int, size: tuple[int, int]) -> float:
    """Time of the image encoder for one image, by the estimate that text models have.

    The encoder runs in the iteration that admits the prompt, before the text model and not beside it; tensor-parallel groups share
    it as they share the text model. One image at a time: engines put images of an iteration together, which saves some of the
    launches. What joins the encoder to the text model is left out.

    Parameters
    ----------
    gpu, model
        What runs on what; the model's encoder is known.
    tp
        GPUs of the group [GPUs].
    size
        Width and height of the image [pixels].

    Returns
    -------
    float
        [s].

    Raises
    ------
    InputError
        The model has no image encoder that is known.
    """
    from planner.machine.roofline import roofline

    work, encoder = image_work(model, *size), model.vision
    assert encoder is not None
    patches, pairs = work.sequences * work.patches, 0.5 * work.sequences * work.patches * (work.patches + 1)
    return roofline(gpu, spread_encoder(encoder, tp), tp).time(0.0, 0.0, patches, pairs)
