"""From steps to figures: medians, and ratios of steps that were done in the same turn."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from bench.work import Work

Rounds = Sequence[dict[str, dict[str, Any]]]


def rates(work: Work, result: dict[str, Any], tokens: Sequence[float]) -> list[float]:
    """Tokens per CPU second of each step. A reference's pass over all data is spread over the epochs that it serves."""
    once = sum(result["once"].values()) / work.total_steps / work.epochs
    return [count / (spent + once) for count, spent in zip(tokens, result["seconds"], strict=True)]


def side_rates(work: Work, found: Rounds, side: str) -> list[float]:
    """Of all steps of all rounds; nothing where the side failed in one."""
    results = [each.get(side, {"failed": "left out"}) for each in found]
    if any("failed" in result for result in results):
        return []
    mean = [mean_tokens(each) for each in found]
    rated = [
        rates(work, result, [count] * len(result["seconds"]) if side == "floor" else result["tokens"])
        for result, count in zip(results, mean, strict=True)
    ]
    return [rate for each in rated for rate in each]


def mean_tokens(found: dict[str, dict[str, Any]]) -> float:
    """Tokens of a step, for the floor, which works on the mean step: those of our side, or of any other."""
    counts = [result["tokens"] for side, result in found.items() if side != "floor" and "failed" not in result]
    return statistics.mean(counts[0]) if counts else float("nan")


def ratio(one: Sequence[float], other: Sequence[float]) -> float | None:
    """The median of step-by-step ratios."""
    if not one or not other:
        return None
    return statistics.median(a / b for a, b in zip(one, other, strict=True))


def summarise(work: Work, found: Rounds) -> dict[str, Any]:
    """The row's figures."""
    sides = {side for each in found for side in each}
    rated = {side: side_rates(work, found, side) for side in sides}
    peers = [side for side in sides if side.startswith("trl") and rated[side]]
    best = max(peers, key=lambda side: statistics.median(rated[side]), default="trl")
    ours, trl, floor = rated.get("ours", []), rated.get(best, []), rated.get("floor", [])
    figures: dict[str, Any] = {
        "row": work.name,
        "trl_settings": best.partition(":")[2],
        "ours_to_trl": ratio(ours, trl),
        "ceiling": ratio(floor, trl),
        "ours_to_floor": ratio(ours, floor),
        "failed": {side: each[side]["failed"] for each in found for side in each if "failed" in each[side]},
    }
    for name, side in (("ours", "ours"), ("trl", best), ("floor", "floor")):
        if rated.get(side):
            figures[name] = side_figures(rated[side], [each[side] for each in found])
    if floor:
        add_utilisation(figures, work, found)
    return figures


def side_figures(rated: Sequence[float], results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of one side."""
    return {
        "tokens_per_cpu_second": statistics.median(rated),
        "quartiles": statistics.quantiles(rated, n=4) if len(rated) > 1 else rated,
        "seconds": statistics.median(second for result in results for second in result["seconds"]),
        "once_seconds": statistics.median(sum(result["once"].values()) for result in results),
        "peak_mib": max(result["peak_mib"] for result in results),
        "imports_mib": max(result["imports_mib"] for result in results),
    }


def add_utilisation(figures: dict[str, Any], work: Work, found: Rounds) -> None:
    """Model FLOPs utilisation: the floor's operations at each side's rate, as a share of the measured matmul rate."""
    floors = [each["floor"] for each in found]
    rate = max(result["matmul_rate"] for result in floors)
    tokens = statistics.mean(mean_tokens(each) for each in found)
    flops = sum(part["flops"] for part in floors[0]["parts"])
    figures.update(matmul_rate=rate, flops_per_step=flops)
    for name in ("ours", "trl", "floor"):
        if name in figures:
            figures[name]["utilisation"] = figures[name]["tokens_per_cpu_second"] / tokens * flops / rate
