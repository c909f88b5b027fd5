"""What `dtype: auto` becomes, by the processor's own list of what it can."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from posttrain.config.load import load_config, parse_config
from posttrain.config.schema import Config
from posttrain.platforms.precision import crawls, has_bfloat16_units, with_precision

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("processor : 0\nflags\t\t: fpu avx512f avx512_bf16 amx_tile\n", True),
        ("flags\t\t: fpu amx_bf16\n", True),
        ("Features\t: fp asimd bf16\n", True),
        ("flags\t\t: fpu avx avx2 fma\n", False),
        ("flags\t\t: fpu avx512f xbf16y\n", False),
        ("nothing", False),
    ],
)
def test_units_are_read_from_the_flags(text: str, wanted: bool, tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(text)
    assert has_bfloat16_units(path) is wanted
    assert has_bfloat16_units(tmp_path / "none") is False


def config(dtype: str, device: str = "cpu", **model: str) -> Config:
    content = yaml.safe_load((ROOT / "configs" / "quick.yaml").read_text())
    content["model"].update(dtype=dtype, **model)
    content["resources"]["device"] = device
    return parse_config(content, "here")


@pytest.mark.parametrize(
    ("dtype", "device", "units", "wanted"),
    [
        ("auto", "cpu", True, "bfloat16"),
        ("auto", "cpu", False, "float32"),
        ("auto", "cuda", False, "bfloat16"),
        ("float32", "cpu", True, "float32"),
        ("bfloat16", "cpu", False, "bfloat16"),
    ],
)
def test_auto_is_decided_and_what_is_named_stays(dtype: str, device: str, units: bool, wanted: str) -> None:
    assert with_precision(config(dtype, device), units).model.dtype == wanted


def test_bfloat16_on_a_cpu_without_units_is_told() -> None:
    assert crawls(config("bfloat16"), units=False)
    assert crawls(config("float32", generation_dtype="bfloat16"), units=False)
    assert not crawls(config("bfloat16"), units=True)
    assert not crawls(config("bfloat16", "cuda"), units=False)
    assert not crawls(config("float32"), units=False)


def test_the_default_experiment_suits_both() -> None:
    assert not crawls(with_precision(load_config(ROOT / "config.yaml"), units=False), units=False)
