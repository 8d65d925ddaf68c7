"""Images against the processors of Hugging Face transformers (`tests/golden/image_tokens.csv`), and encoders by hand."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from planner.catalog import model
from planner.catalog.hf import model_from_mapping
from planner.catalog.images import encoder_of, image_work, parse_size, spread_encoder
from planner.catalog.kv import parameter_counts, weight_bytes
from planner.errors import InputError

GOLDEN = Path(__file__).parents[1] / "golden" / "image_tokens.csv"
WITH = ["qwen3-vl-8b", "qwen3-vl-30b-a3b", "llama-4-scout", "gemma-3-27b", "internvl3-8b"]


def _config(family, text, **vision):
    return {"model_type": family, **text, "vision_config": vision}


def _known():
    """A model of each family by its outer type."""
    found = {model(name).image_family: model(name) for name in WITH}
    text = {
        "num_hidden_layers": 28, "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28,
        "num_key_value_heads": 4, "vocab_size": 152064, "max_position_embeddings": 128000,
    }  # fmt: skip
    config = _config("qwen2_5_vl", text, depth=32, hidden_size=1280, intermediate_size=3420, num_heads=16)
    return found | {"qwen2_5_vl": model_from_mapping(config, "config.json", "qwen2.5-vl-7b")}


def test_tokens_are_those_of_the_processors():
    known = _known()
    rows = list(csv.DictReader(GOLDEN.read_text().splitlines()))
    assert len(rows) >= 20
    for row in rows:
        width, height = int(row.pop("width")), int(row.pop("height"))
        found = {family: image_work(known[family], width, height).tokens for family in row}
        assert found == {family: int(tokens) for family, tokens in row.items()}, (width, height)


def test_mixtures_of_qwen3_vl_cut_images_as_the_dense_ones_do():
    assert image_work(model("qwen3-vl-30b-a3b"), 800, 600) == image_work(model("qwen3-vl-8b"), 800, 600)


@pytest.mark.parametrize(
    ("name", "billions"),
    # SigLIP So400m's own card says 0.43 with its embeddings and head; InternVL2.5's report 5.54 and 0.30 of InternViT
    [("gemma-3-27b", 0.41), ("internvl3-8b", 0.30), ("internvl3-78b", 5.53)],
)
def test_encoders_have_the_parameters_that_are_published(name, billions):
    assert parameter_counts(model(name).vision)[0] / 1e9 == pytest.approx(billions, abs=0.01)


def test_an_encoder_takes_memory_divided_over_the_group():
    seen = model("qwen3-vl-8b")
    blind = replace(seen, vision=None, image_family="")
    # 27 layers of 4 x 1152^2 + 2 x 1152 x 4304 weights of two bytes
    expected = 27 * (4 * 1152**2 + 2 * 1152 * 4304) * 2
    assert weight_bytes(seen) - weight_bytes(blind) == pytest.approx(expected, rel=1e-9)
    assert weight_bytes(seen, 2) - weight_bytes(blind, 2) == pytest.approx(expected / 2, rel=1e-9)


def test_heads_are_filled_up_where_a_group_does_not_divide_them():
    encoder = model("internvl3-78b").vision
    assert [spread_encoder(encoder, tp).q_heads for tp in (1, 2, 8)] == [25, 26, 32]


def test_windows_of_an_encoder_are_few_layers_whole():
    encoder = _known()["qwen2_5_vl"].vision
    assert (encoder.full_layers, encoder.sliding_layers, encoder.sliding_window) == (4, 28, 64)


@pytest.mark.parametrize("text", ["", "1024", "0x10", "10x", "-5x5", "1e3x5", "70000x70000", "1024x768x3"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(InputError, match="image_size"):
        parse_size(text)


def test_a_strip_is_refused_as_processors_refuse_it():
    with pytest.raises(InputError, match="200 times"):
        parse_size("5000x20")


@pytest.mark.parametrize("name", ["llama-3.1-8b", "mistral-small-24b"])
def test_a_model_whose_encoder_nobody_knows_is_named(name):
    with pytest.raises(InputError, match=f"no image encoder of {name} is known"):
        image_work(model(name), 100, 100)


@pytest.mark.parametrize("config", [{}, {"depth": 0}, {"depth": 3, "hidden_size": "x"}])
def test_half_a_description_is_none(config):
    assert encoder_of("qwen3_vl", config) is None
