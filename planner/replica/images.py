"""What images cost a replica: the time that their encoder takes from the iterations."""

from __future__ import annotations

from planner.catalog.images import image_work, spread_encoder
from planner.iteration.roofline import roofline
from planner.machine.hardware import GpuSpec, ModelSpec


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
    work, encoder = image_work(model, *size), model.vision
    assert encoder is not None
    patches, pairs = work.sequences * work.patches, 0.5 * work.sequences * work.patches * (work.patches + 1)
    return roofline(gpu, spread_encoder(encoder, tp), tp).time(0.0, 0.0, patches, pairs)
