"""Tokens of images as the processors of Hugging Face transformers count them, into `image_tokens.csv`.

Run where transformers 4.57.1, numpy and pillow are installed (nothing of this project is used)::

    python tests/golden/make_image_tokens.py

Image processors are made with the numbers of each model's `preprocessor_config.json`. Llama 4's asks for PyTorch, of whose
operations its choice of a canvas uses four: numpy stands in for them, in single precision as PyTorch divides. Marks that a
chat template sets around an image (Qwen) are added; those that a processor sets are taken from its own text.
"""

import csv
import importlib.machinery
import sys
import types
from pathlib import Path

import numpy as np

SIZES = [
    (1, 1), (28, 28), (100, 100), (224, 224), (336, 336), (337, 336), (448, 448), (640, 480), (480, 640), (672, 336), (800, 600),
    (896, 896), (1024, 1024), (1280, 720), (1344, 1344), (1920, 1080), (1080, 1920), (2048, 1536), (3840, 2160), (4000, 250),
    (5000, 5000), (300, 3000), (1000, 999), (4096, 4096),
]  # fmt: skip
"""Width and height [pixels]."""


def _stand_in() -> None:
    """numpy where Llama 4's processor imports PyTorch."""
    torch = types.ModuleType("torch")
    torch.Tensor, torch.compiler = np.ndarray, types.SimpleNamespace(disable=lambda function: function)
    torch.where, torch.max, torch.min, torch.argmin = np.where, np.max, np.min, np.argmin
    parts = {"torch": torch, "torchvision": types.ModuleType("torchvision")}
    parts["torchvision.transforms"] = types.ModuleType("torchvision.transforms")
    parts["torchvision.transforms.v2"] = types.ModuleType("torchvision.transforms.v2")
    parts["torchvision.transforms.v2"].functional = None
    for name, part in parts.items():
        part.__spec__ = importlib.machinery.ModuleSpec(name, None)
    sys.modules.update(parts)
    # it would look for examples of a whole model
    importlib.import_module("transformers.utils").auto_docstring = lambda documented: documented


def qwen(patch: int, shortest: int, longest: int):
    """Of Qwen2.5-VL and Qwen3-VL: patches over four, and the two marks of the chat template."""
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor

    processor = Qwen2VLImageProcessor(patch_size=patch, merge_size=2, min_pixels=shortest, max_pixels=longest)
    return lambda width, height: processor.get_number_of_image_patches(height, width, {}) // 4 + 2


def internvl(width: int, height: int) -> int:
    """Of InternVL: 256 tokens a tile, two marks."""
    from transformers.models.got_ocr2.image_processing_got_ocr2 import GotOcr2ImageProcessor

    size = {"height": 448, "width": 448}
    processor = GotOcr2ImageProcessor(size=size, crop_to_patches=True, min_patches=1, max_patches=12)
    return 256 * processor.get_number_of_image_patches(height, width, {}) + 2


def gemma(width: int, height: int) -> int:
    """Of Gemma 3 without pan and scan: the sequence that its processor sets, two line ends being a token."""
    from transformers.models.gemma3.processing_gemma3 import Gemma3Processor

    class Bare(Gemma3Processor):
        """Without what its base class wants of a tokenizer."""

    Bare.__init__.__globals__["ProcessorMixin"].__init__ = lambda self, *args, **kwargs: None
    marks = types.SimpleNamespace(image_token_id=0, boi_token="<boi>", image_token="<img>", eoi_token="<eoi>")
    text = Bare(None, marks).full_image_sequence
    return sum(text.count(mark) for mark in ("<boi>", "<img>", "<eoi>", "\n\n"))


def llama(width: int, height: int) -> int:
    """Of Llama 4: the canvas of its image processor, the text of its processor."""
    images = importlib.import_module("transformers.models.llama4.image_processing_llama4_fast")
    from transformers.models.llama4.processing_llama4 import Llama4Processor

    known = np.array(images.find_supported_resolutions(16, images.SizeDict(336, 336)), dtype=np.float32)
    rows, columns = (int(side) // 336 for side in images.get_best_fit((height, width), known))
    marks = types.SimpleNamespace(
        img_patch_token="<|patch|>", tile_token="<|tile_x_separator|>", tile_global_token="<|tile_y_separator|>"
    )
    text = Llama4Processor._prompt_split_image(marks, (rows, columns), (336 // 14) ** 2 // 4)
    return text.count("<|")


def main() -> None:
    """Write the table."""
    families = {
        "qwen2_5_vl": qwen(14, 56 * 56, 28 * 28 * 16384),
        "qwen3_vl": qwen(16, 65536, 16777216),
        "internvl_chat": internvl,
        "gemma3": gemma,
    }
    rows = {size: [families[name](*size) for name in families] for size in SIZES}
    _stand_in()
    with Path(__file__).with_name("image_tokens.csv").open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["width", "height", *families, "llama4"])
        table.writerows([*size, *tokens, llama(*size)] for size, tokens in rows.items())


if __name__ == "__main__":
    main()
