"""What adapters do under the transformers of the Python that runs this: `PYTHON -m tests.model.lora_check FOLDER ...`.

Prints one JSON line per architecture, and then what is read back from each folder. Imports no config, as the older
environment has no pydantic.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import torch
import transformers

from posttrain.model.lora import adapters_off, add_adapters, merged_parameters, without_adapters
from tests.model.read_back import IDS, read
from tests.model.tiny import ARCHITECTURES, tiny_model


@torch.no_grad()
def check(arch: str) -> dict[str, Any]:
    """Whether logits are equal where they must be, and how far the merged model's are from the adapted one's."""
    model, ids = tiny_model(arch), torch.tensor([IDS])
    names = [name for name, _ in model.named_parameters()]
    before = model(ids).logits
    settings: Any = SimpleNamespace(rank=4, alpha=8.0, targets="all-linear")
    add_adapters(model, settings, seed=1)
    fresh = model(ids).logits
    for parameter in (p for p in model.parameters() if p.requires_grad):
        parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)) / 10)
    on = model(ids).logits
    with adapters_off(model):
        off = model(ids).logits
    merged = without_adapters(model)
    return {
        "arch": arch,
        "transformers": transformers.__version__,
        "fresh": torch.equal(fresh, before),
        "off": torch.equal(off, before),
        "moved": float((on - before).abs().max()),
        "merged": float((merged(ids).logits - on).abs().max()),
        "names": [name for name, _ in merged_parameters(model)] == names == [n for n, _ in merged.named_parameters()],
    }


if __name__ == "__main__":
    for name in ARCHITECTURES:
        print(json.dumps(check(name)))
    for path in sys.argv[1:]:
        print(json.dumps(read(path)))
