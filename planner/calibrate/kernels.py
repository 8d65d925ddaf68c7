"""Kernels of a transformer's layers as engines have them, where torch has them: matrix products by dtype, attention, in between.

What a kernel computes is checked against the plain form on the device before it is timed; what does not agree or is not there is
said, and nothing stands in for it unsaid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from planner.calibrate.device import NOT_THERE, Device, refuse_full, why_not
from planner.errors import CalibrationError
from planner.shared.documents import load_document
from planner.units import LEAST

_KIND = load_document(Path(__file__).with_suffix(".yaml"))
BLOCK, ROWS = _KIND["block"], _KIND["rows"]
INT4_LARGEST, INNER_TILES = _KIND["int4"]["largest"], _KIND["int4"]["inner_tiles"]
FP4_SIZES, FP4_BLOCK, SCALE_TILE = _KIND["fp4"]["sizes"], _KIND["fp4"]["block"], _KIND["fp4"]["scale_tile"]

AGREES = {"atol": 3e-2, "rtol": 3e-2}
"""How far outputs of half precision may be from those of the plain form: eight bits of mantissa, summed up [1]."""

CHECKED_PRODUCT = (20, 256, 512)
"""Rows of activations, of weights, and columns that a product is checked with."""
CHECKED_ATTENTION = (8, 32, 9)
"""New tokens, context and window that attention is checked with [tokens]."""

Product = Callable[[Any], Any]
"""From activations, shape (rows, columns), to products with one weight matrix."""


def wide_product(torch: Any, weight: Any, dtype: Any) -> Product:
    """bf16, or what the device computes in."""
    kept = weight.to(dtype)
    return lambda x: x @ kept.t()


def fp8_product(torch: Any, weight: Any, dtype: Any) -> Product:
    """fp8 with one scale a matrix and fast accumulation; activations are narrowed before."""
    largest, fp8 = float(weight.abs().max()), torch.float8_e4m3fn
    most = torch.finfo(fp8).max
    kept = (weight * (most / largest)).to(fp8)
    scale = torch.full((), largest / most, device=weight.device, dtype=torch.float32)
    one = torch.ones((), device=weight.device, dtype=torch.float32)
    return _scaled(torch, (kept, scale), lambda x: (x.to(fp8), one), dtype, use_fast_accum=True)


def fp8_block_product(torch: Any, weight: Any, dtype: Any) -> Product:
    """fp8 with a scale for every 128 x 128 weights and every 128 values of a row of activations, as DeepSeek and Qwen ship it."""
    rows, columns = weight.shape
    if columns % BLOCK or rows % ROWS:
        raise ValueError
    fp8 = torch.float8_e4m3fn
    most = torch.finfo(fp8).max
    blocks = torch.nn.functional.pad(weight.abs(), (0, 0, 0, -rows % BLOCK))
    largest = blocks.view(-1, BLOCK, columns // BLOCK, BLOCK).amax((1, -1)).clamp_min(LEAST) / most
    spread = largest.repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)
    kept = (weight / spread).to(fp8)
    # the kernel wants them column by column, each column's length a multiple of four
    scale = torch.nn.functional.pad(largest, (0, -largest.shape[1] % 4)).contiguous().t()

    def narrowed(x: Any) -> tuple[Any, Any]:
        parts = x.float().view(x.shape[0], -1, BLOCK)
        top = parts.abs().amax(-1, keepdim=True).clamp_min(LEAST) / most
        return (parts / top).to(fp8).view(x.shape), top.squeeze(-1)

    quantize = torch.compile(narrowed, dynamic=True) if weight.is_cuda else narrowed

    def by_columns(x: Any) -> tuple[Any, Any]:
        narrow, top = quantize(x)
        return narrow, top.t().contiguous().t()

    return _scaled(torch, (kept, scale), by_columns, dtype)


def int4_product(torch: Any, weight: Any, dtype: Any) -> Product:
    """Weights of 4 bits, a scale and zero for every 128 of a row, activations as they are: torch's own kernel."""
    rows, columns = weight.shape
    if columns % BLOCK:
        raise ValueError
    groups = weight.view(rows, -1, BLOCK)
    low, high = groups.amin(-1), groups.amax(-1)
    step = ((high - low) / INT4_LARGEST).clamp_min(LEAST)
    codes = ((groups - low[..., None]) / step[..., None]).round().clamp(0, INT4_LARGEST).to(torch.int32)
    codes = codes.view(rows, columns)
    # the kernel takes the value in the middle of a group's range
    middle = low + (INT4_LARGEST + 1) // 2 * step
    scales = torch.stack([step, middle], -1).transpose(0, 1).contiguous().to(dtype)
    own = "" if weight.is_cuda else "_for_cpu"
    if weight.is_cuda:
        codes = (codes[:, ::2] * (INT4_LARGEST + 1) + codes[:, 1::2]).to(torch.uint8)
    packed = getattr(torch.ops.aten, f"_convert_weight_to_int4pack{own}")(codes, INNER_TILES)
    multiply = getattr(torch.ops.aten, f"_weight_int4pack_mm{own}")
    return lambda x: multiply(x, packed, BLOCK, scales)


def fp4_product(torch: Any, weight: Any, dtype: Any) -> Product:
    """fp4 (E2M1) with an fp8 scale for every 16 values of a row, weights and activations (NVFP4), two values a byte.

    The scale of a whole matrix, which engines multiply the product by inside their kernel, is a power of two that is divided
    out of the activations' scales.
    """
    rows, columns = weight.shape
    if columns % (2 * FP4_BLOCK) or rows % ROWS:
        raise ValueError
    if weight.is_cuda and torch.cuda.get_device_capability(weight.device)[0] < 10:
        raise NotImplementedError("4-bit matrix units came with compute capability 10")
    sizes, fp8, fp4 = torch.tensor(FP4_SIZES, device=weight.device), torch.float8_e4m3fn, torch.float4_e2m1fn_x2
    bounds, held = 0.5 * (sizes[1:] + sizes[:-1]), torch.finfo(fp8)
    least, most = held.tiny * held.eps, held.max

    def narrowed(x: Any, factor: float) -> tuple[Any, Any]:
        parts = x.float().view(x.shape[0], -1, FP4_BLOCK) * factor
        scale = (parts.abs().amax(-1) / FP4_SIZES[-1]).clamp(least, most).to(fp8)
        values = parts / scale.float()[..., None]
        codes = torch.bucketize(values.abs(), bounds) + len(FP4_SIZES) * (values < 0)
        codes = codes.to(torch.uint8).view(x.shape)
        return codes[:, ::2] + codes[:, 1::2] * 2 * len(FP4_SIZES), tiled_scales(torch, scale)

    # scales of both sides end up about as large for activations of size one
    factor = 2.0 ** round(0.5 * math.log2(1.0 / float(weight.abs().mean().clamp_min(LEAST))))
    kept, weight_scale = narrowed(weight, factor)
    quantize = torch.compile(narrowed, dynamic=True) if weight.is_cuda else narrowed

    def as_fp4(x: Any) -> tuple[Any, Any]:
        codes, scale = quantize(x, 1.0 / factor)
        return codes.view(fp4), scale

    return _scaled(torch, (kept.contiguous().view(fp4), weight_scale), as_fp4, dtype)


def tiled_scales(torch: Any, scale: Any) -> Any:
    """Block scales, shape (rows, blocks), in the order in which cuBLAS reads them: tiles of 128 rows by 4 blocks.

    Within a tile rows 0, 32, 64 and 96 stand side by side, then 1, 33, ... (cuBLAS documentation, "1D block scaling factors
    layout"); missing rows and blocks are filled.
    """
    rows, blocks = scale.shape
    beside, below, wide = SCALE_TILE
    filled = torch.nn.functional.pad(scale.view(torch.uint8), (0, -blocks % wide, 0, -rows % (beside * below)))
    tiles = filled.view(-1, beside, below, filled.shape[1] // wide, wide).permute(0, -2, 2, 1, -1)
    return tiles.reshape(-1).view(torch.float8_e4m3fn)


def _scaled(
    torch: Any, weight: tuple[Any, Any], narrowed: Callable[[Any], tuple[Any, Any]], dtype: Any, **how: Any
) -> Product:
    """Products with a narrow weight, shape (rows, columns), and its scale; `narrowed` gives activations the same form."""
    kept, scale = weight

    def product(x: Any) -> Any:
        short = -x.shape[0] % ROWS
        narrow, own = narrowed(torch.nn.functional.pad(x, (0, 0, 0, short)) if short else x)
        return torch._scaled_mm(narrow, kept.t(), scale_a=own, scale_b=scale, out_dtype=dtype, **how)[: x.shape[0]]

    return product


PRODUCTS = {
    "bf16": (wide_product, "bf16"),
    "fp16": (wide_product, "bf16"),
    "fp8": (fp8_product, "fp8 with one scale a matrix"),
    "fp8 blocks": (fp8_block_product, "fp8 with a scale for every 128 x 128 weights"),
    "fp4": (fp4_product, "fp4 with a scale for every 16 values (NVFP4)"),
    "int4": (
        int4_product,
        "int4 by torch's own kernel; engines have Marlin or Machete, which are faster for many tokens",
    ),
}
"""Kind of weights -> what makes a product of them, and how a note calls it."""


ROUNDING = dict.fromkeys(PRODUCTS, 0.08) | {"int4": 0.15, "fp4": 0.2}
"""How far rounding may move a product, over its size [1]."""


def moved(got: Any, wanted: Any) -> float:
    """How far a product is from the plain one, over its size [1]: rounding of weights and activations takes some per cent."""
    return float((got.float() - wanted).norm() / wanted.norm())


def matrix_kernel(machine: Device, kind: str) -> tuple[Callable[[Any], Product], str]:
    """What turns a weight matrix, shape (rows, columns) of float32, into a product, and what to call it.

    Parameters
    ----------
    machine
        What it is to run on.
    kind
        One of :data:`PRODUCTS`.

    Raises
    ------
    CalibrationError
        When this torch or device has no such kernel, or it does not compute the product; :class:`DeviceFull` when there
        was no memory to try.
    """
    make, called = PRODUCTS[kind]
    torch, dtype = machine.torch, machine.dtype
    drawn = {"generator": torch.Generator(device=machine.kind).manual_seed(0), "device": machine.kind}
    tokens, rows, columns = CHECKED_PRODUCT
    weight = torch.randn(rows, columns, dtype=torch.float32, **drawn) / math.sqrt(columns)
    x = torch.randn(tokens, columns, dtype=torch.float32, **drawn).to(dtype)
    try:
        off = moved(make(torch, weight, dtype)(x), x.float() @ weight.t())
    except NOT_THERE as error:
        refuse_full(torch, error, f"a matrix product of {kind} weights")
        raise CalibrationError(
            f"torch {torch.__version__} has no matrix product of {kind} weights on {machine}{why_not(error)}",
            "Measure the model with bf16 weights, another GPU, or a running server: fleetopt calibrate --server URL.",
        ) from None
    if not off < ROUNDING[kind]:
        raise CalibrationError(
            f"torch's product of {kind} weights is {100 * off:.0f}% off the plain one on {machine}",
            "Measure a running server instead: fleetopt calibrate --server URL.",
        )

    def product_of(weight: Any) -> Product:
        try:
            return make(torch, weight, dtype)
        except ValueError:
            raise CalibrationError(
                f"the kernel for {kind} weights takes no matrix of {weight.shape[0]} x {weight.shape[1]}",
                "Give another --tp, or measure a running server: fleetopt calibrate --server URL.",
            ) from None

    return product_of, called


def plain_attention(torch: Any, q: Any, k: Any, v: Any, window: int = 0) -> Any:
    """Attention of new tokens over past and new ones, causal from the lower right corner; shapes (batch, heads, tokens, size).

    With a `window` each sees itself and the `window` - 1 tokens before it.
    """
    functional = torch.nn.functional
    new, total = q.shape[2], k.shape[2]
    group = q.shape[1] // k.shape[1]
    if 0 < window < total:
        ahead = (
            torch.arange(total, device=q.device)[None, :] - torch.arange(total - new, total, device=q.device)[:, None]
        )
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=(ahead <= 0) & (ahead > -window))
    if new == total and group > 1 and q.is_cuda:
        try:
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        except TypeError:  # torch 2.4 does not know grouped heads
            pass
    if group > 1:
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    if new == total:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    from torch.nn.attention.bias import causal_lower_right

    return functional.scaled_dot_product_attention(q, k, v, attn_mask=causal_lower_right(new, total))


Joined = Callable[[Any, Any, Any, Any, Any, int, int, int], Any]
"""(queries, keys, values, ends of the queries, ends of the keys, longest of each, window or 0) -> attention of sequences of
any lengths."""


def joined_attention(machine: Device, heads: tuple[int, int, int]) -> tuple[Joined | None, Any, str]:
    """One kernel for decodes and prompts together, one for decodes alone, and what they are called.

    FlashAttention 3 where its package is installed and the GPU is a Hopper, else torch's variable-length attention, else
    FlashAttention 2's; each only where it agrees with the plain form. ``None`` = torch's dense attention for each kind apart.

    Parameters
    ----------
    machine
        What it is to run on.
    heads
        Query heads, KV heads and size of a head on this GPU.
    """
    for find, called in (
        (partial(_flash, "flash_attn_interface"), FLASH_3),
        (_torch_varlen, "torch varlen_attn"),
        (partial(_flash, "flash_attn"), "FlashAttention 2"),
    ):
        try:
            joined, decode = find(machine, heads)
            if _agrees(machine, heads, joined, decode):
                return joined, decode, called
        except NOT_THERE as error:
            refuse_full(machine.torch, error, called)
    return None, None, "scaled_dot_product_attention"


FLASH_3 = "FlashAttention 3"
OF_ENGINES: Mapping[int, tuple[str, str]] = {
    9: (FLASH_3, "flash_attn_interface, not installed here"),
    10: ("TensorRT-LLM's kernels, by FlashInfer", "faster, not timed here: measure a server"),
}
"""What vLLM and SGLang take on Hopper and on Blackwell's modules, by compute capability, and what to say of it."""


def other_attention(capability: int, used: str) -> str:
    """What to add where engines have another kernel on this GPU than the one that is timed; nothing where they have not.

    >>> other_attention(8, "FlashAttention 2"), other_attention(9, "torch varlen_attn")
    ('', '; engines have FlashAttention 3 on this GPU (flash_attn_interface, not installed here)')
    """
    wanted, told = OF_ENGINES.get(capability, (used, ""))
    return "" if wanted == used else f"; engines have {wanted} on this GPU ({told})"


def _flash(module: str, machine: Device, heads: tuple[int, int, int]) -> tuple[Joined, Any]:
    """FlashAttention 2, or 3, which is for Hopper alone."""
    if module.endswith("interface") and machine.cuda and machine.torch.cuda.get_device_capability(0)[0] != 9:
        raise NotImplementedError
    flash = import_module(module)

    def joined(q: Any, k: Any, v: Any, ends_q: Any, ends_k: Any, longest_q: int, longest_k: int, window: int) -> Any:
        options = {"window_size": (window - 1, 0)} if window else {}
        return _first(
            flash.flash_attn_varlen_func(q, k, v, ends_q, ends_k, longest_q, longest_k, causal=True, **options)
        )

    def decode(q: Any, k: Any, v: Any, lengths: Any) -> Any:
        return _first(flash.flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths, causal=True))

    return joined, decode


def _torch_varlen(machine: Device, heads: tuple[int, int, int]) -> tuple[Joined, Any]:
    from torch.nn.attention.varlen import varlen_attn

    grouped = heads[0] != heads[1]

    def joined(q: Any, k: Any, v: Any, ends_q: Any, ends_k: Any, longest_q: int, longest_k: int, window: int) -> Any:
        return varlen_attn(
            q, k, v, ends_q, ends_k, longest_q, longest_k, window_size=(window - 1, 0), enable_gqa=grouped
        )  # fmt: skip

    return joined, None


def _first(found: Any) -> Any:
    """The output of a call that may return its log-sum-exp with it."""
    return found[0] if isinstance(found, tuple) else found


def _agrees(machine: Device, heads: tuple[int, int, int], joined: Joined, decode: Any) -> bool:
    """Whether both compute what the plain form does: a few new tokens after others, in a window and without, and a decode."""
    q_heads, kv_heads, size = heads
    new, context, most = CHECKED_ATTENTION
    torch, make = machine.torch, {"device": machine.kind, "dtype": machine.dtype}
    q = torch.randn(new, q_heads, size, **make)
    k, v = torch.randn(context, kv_heads, size, **make), torch.randn(context, kv_heads, size, **make)
    ends_q, ends_k = (torch.tensor([0, n], device=machine.kind, dtype=torch.int32) for n in (new, context))
    wide_q, wide_k, wide_v = (t.transpose(0, 1)[None] for t in (q, k, v))
    for window in (most, 0):
        wanted = plain_attention(torch, wide_q, wide_k, wide_v, window)[0].transpose(0, 1)
        if not torch.allclose(joined(q, k, v, ends_q, ends_k, new, context, window).float(), wanted.float(), **AGREES):
            return False
    if decode is None:
        return True
    last = decode(q[None, -1:], k[None], v[None], ends_k[1:])[0]
    return bool(torch.allclose(last.float(), wanted[-1:].float(), **AGREES))


class Between:
    """What stands between the products of a layer: RMSNorm with the residual's sum, rotary positions, SiLU times its gate.

    One kernel each on a GPU where torch can compile them (Triton is there) and they compute the same (`fused`); as torch has them
    otherwise.

    Parameters
    ----------
    machine
        What they run on.
    hidden, head, inner
        Width of the residual, size of a head, and width of the gate.
    """

    def __init__(self, machine: Device, hidden: int, head: int, inner: int) -> None:
        torch = machine.torch

        def norm(x: Any, residual: Any, weight: Any) -> Any:
            total = x + residual
            wide = total.float()
            return (wide * (wide.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt()).to(x.dtype) * weight, total

        def rotary(x: Any, cosine: Any, sine: Any) -> Any:
            first, second = x.chunk(2, dim=-1)
            return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)

        def gated(x: Any) -> Any:
            gate, value = x.chunk(2, dim=-1)
            return torch.nn.functional.silu(gate) * value

        self.norm, self.rotary, self.gated = plain = norm, rotary, gated
        self.fused = False
        try:
            if machine.cuda:
                fast = [torch.compile(f, dynamic=True) for f in plain]
                self.fused = all(_same(machine, fast, plain, rows, (hidden, head, inner)) for rows in (16, 48))
                self.norm, self.rotary, self.gated = fast if self.fused else plain
        except Exception as error:  # whatever a compiler that does not work here raises: the plain ones do
            refuse_full(torch, error, "what stands between the products")


def _same(machine: Device, fast: Sequence[Any], plain: Sequence[Any], rows: int, sizes: tuple[int, int, int]) -> bool:
    """Whether both compute the same of so many rows."""
    torch, (hidden, head, inner) = machine.torch, sizes
    make = {"device": machine.kind, "dtype": machine.dtype}
    x, ones = torch.randn(rows, hidden, **make), torch.ones(hidden, **make)
    heads, turn = torch.randn(rows, 4, head, **make), torch.randn(rows, 1, head // 2, **make)
    given = ((x, x, ones), (heads, turn, turn), (torch.randn(rows, 2 * inner, **make),))
    for one, other, arguments in zip(fast, plain, given, strict=True):
        got, wanted = one(*arguments), other(*arguments)
        pairs = zip(got, wanted, strict=True) if isinstance(got, tuple) else ((got, wanted),)
        if not all(torch.allclose(a.float(), b.float(), **AGREES) for a, b in pairs):
            return False
    return True


def rotations(machine: Device, contexts: int, size: int) -> list[Any]:
    """Cosines and sines by place in a context: positions turn pairs of a head's values; shapes (contexts, size/2)."""
    torch = machine.torch
    angles = torch.outer(torch.arange(contexts), 1e4 ** (-torch.arange(0, size, 2) / size))
    return [f(angles).to(machine.dtype).to(machine.kind) for f in (torch.cos, torch.sin)]
