"""Which models take several rows in a line, and what that costs them."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel

from posttrain.model.attention import kinds_of
from posttrain.model.batch import SequenceBatch, accepts, collate, forward
from posttrain.model.layers import trunk_of
from posttrain.model.packing import Packing, Row

# How much longer attention takes, with a mask and without one, than a matrix product of as many operations as full
# attention has. Measured forward and backward in float32 on one CPU thread, on lines of 64 and 1024 columns, hidden
# sizes 256 and 576; eager's is the larger of two figures that lie far apart (1.3, 2.7). Other devices differ.
SLOWNESS = {"sdpa": (1.3, 0.7), "eager": (2.7, 2.7)}
TREES: list[Row] = [([1, 2, 3], [4, 5]), ([1, 2, 3], [3, 2, 1]), ([2, 4], [1, 5, 3, 2])]
KINDS = {"full_attention", "sliding_attention", "chunked_attention"}

_known: WeakKeyDictionary[PreTrainedModel, Packing | None] = WeakKeyDictionary()


def packing_of(module: nn.Module) -> Packing | None:
    """How lines of several rows suit a language model, reward or value module; None where it must get a row a line.

    They need a kernel that takes a mask for each pair of tokens, position ids, and layers that do nothing else from
    token to token. Whether a model has all that, a small batch shows; the answer is kept as long as the model.
    """
    trunk = trunk_of(module)
    if trunk not in _known:
        _known[trunk] = _packing(trunk)
    return _known[trunk]


def _packing(trunk: PreTrainedModel) -> Packing | None:
    slowness = SLOWNESS.get(trunk.config._attn_implementation)
    if slowness is None or not accepts(trunk, "position_ids") or not KINDS.issuperset(kinds_of(trunk.config)):
        return None
    if not _same_in_trees(trunk):
        return None
    hidden = trunk.config.hidden_size
    embeddings = sum(p.numel() for m in trunk.modules() if isinstance(m, nn.Embedding) for p in m.parameters())
    weights = (sum(p.numel() for p in trunk.parameters()) - embeddings) / trunk.config.num_hidden_layers
    # Of one token: 2 operations per weight, and 4 per column and hidden number (scores, and the sum of values).
    masked, causal = (4 * hidden * factor / (2 * weights) for factor in slowness)
    return Packing(masked, causal, _widest(trunk))


def _widest(trunk: PreTrainedModel) -> int | None:
    """The widest line in which no layer of the model adds a limit by columns to the mask that it gets."""
    names = ["attention_chunk_size", "window_size"]  # of Llama 4, of GPT-Neo
    if transformers.__version__.startswith("4."):
        names.append("sliding_window")
    found = [getattr(trunk.config, name, None) for name in names]
    return min((value for value in found if isinstance(value, int)), default=None)


@torch.no_grad()
def _same_in_trees(trunk: PreTrainedModel) -> bool:
    """Whether a few rows give the same hidden states side by side in one line as each in a line of its own."""
    training = [module for module in trunk.modules() if module.training]
    trunk.eval()
    try:
        alone, together = (_states(trunk, collate(TREES, 0, packing)) for packing in (None, Packing(0, 0)))
    except Exception:  # an architecture that does not know such masks may do anything with one
        return False
    finally:
        for module in training:
            module.training = True
    error = (together - alone).norm(dim=-1) / alone.norm(dim=-1)
    return bool(error.max() < torch.finfo(trunk.dtype).eps ** 0.5)


def _states(trunk: PreTrainedModel, batch: SequenceBatch) -> Tensor:
    """The hidden states that predict the rows' tokens, and the last ones, [M + b, H]."""
    batch = batch.to(trunk.device)
    hidden: Tensor = forward(trunk, batch).last_hidden_state
    return hidden.flatten(0, 1)[torch.cat([batch.before, batch.last])].float()
