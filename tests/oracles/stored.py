"""The stored vectors of a peer, and equality with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

both_precisions = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])


def vectors(name: str) -> dict[str, Any]:
    return json.loads((Path(__file__).parent / "vectors" / f"{name}.json").read_text())


def same(ours: Tensor, theirs: Any) -> None:
    """Within 1e-9 in float64, 1e-5 in float32."""
    rtol, atol = (1e-9, 1e-12) if ours.dtype == torch.float64 else (1e-5, 1e-6)
    torch.testing.assert_close(ours.detach(), torch.tensor(theirs, dtype=ours.dtype), rtol=rtol, atol=atol)


def tokens(case: dict[str, Any], name: str, mask: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Values per token with NaN where masked, so that nothing may read them, and the mask."""
    unmasked = torch.tensor(case[mask]).bool()
    values = torch.tensor(case[name], dtype=dtype).masked_fill(~unmasked, torch.nan)
    return values.requires_grad_(), unmasked
