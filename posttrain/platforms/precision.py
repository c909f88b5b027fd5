"""What `auto` is on this machine: bfloat16 is fast where the processor has units for it, and a crawl where not."""

from __future__ import annotations

from pathlib import Path

from posttrain.config.schema import Config

CPU_INFO = Path("/proc/cpuinfo")
# As Linux lists them: Intel's and AMD's, then Arm's.
UNITS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})


def has_bfloat16_units(cpu_info: Path = CPU_INFO) -> bool:
    """Whether the processor multiplies in bfloat16 itself; where nothing says so, it does not."""
    try:
        lines = cpu_info.read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return not UNITS.isdisjoint(flags.split())


def with_precision(config: Config, units: bool | None = None) -> Config:
    """The config with `model.dtype: auto` decided: it decides bytes, so stages are given a name.

    On a CPU float32 where it has no units for bfloat16, else bfloat16. `units`: whether it has; None looks.
    """
    if config.model.dtype != "auto":
        return config
    slow = config.resources.device == "cpu" and not (has_bfloat16_units() if units is None else units)
    model = config.model.model_copy(update={"dtype": "float32" if slow else "bfloat16"})
    return config.model_copy(update={"model": model})


def crawls(config: Config, units: bool | None = None) -> bool:
    """Whether the config names bfloat16 for a CPU without units for it."""
    named = "bfloat16" in (config.model.dtype, config.model.generation_dtype)
    return named and config.resources.device == "cpu" and not (has_bfloat16_units() if units is None else units)
