"""Whether a base can go through all stages: asked before the first of them trains."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from posttrain.errors import UserError
from posttrain.model.export import classifier_of


def check_base(model: PreTrainedModel) -> None:
    """Refuses a base whose reward model could not be saved, and one that sees the tokens it is to predict.

    transformers loads encoders (BERT and its kin) as causal language models too, and only warns.

    Raises:
        UserError: with the reason.
    """
    trunk = model.base_model
    assert isinstance(trunk, PreTrainedModel)
    classifier_of(trunk)
    with torch.no_grad():
        one, other = model(torch.tensor([[1, 1], [1, 2]], device=model.device)).logits[:, 0].float()
    if not torch.allclose(one, other, rtol=1e-3, atol=1e-3):
        raise UserError(
            f"model.base: this {model.config.model_type} model sees the tokens that it is to predict; use a decoder"
        )
