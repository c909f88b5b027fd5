"""One module that trains: gradients added up over micro-batches, clipped, and one AdamW step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from posttrain.config.sections import Training
from posttrain.errors import UserError
from posttrain.model.layers import train_last
from posttrain.model.lora import add_adapters
from posttrain.roles.optim import adamw, learning_rate

Metrics = dict[str, float]
Stats = Mapping[str, Tensor | float]
MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class Learner:
    """Owns the parameters of `module` that train, their gradients and their optimiser state.

    A parameter in half precision has a float32 master: it takes the gradients of all micro-batches and the optimiser's
    steps, and is rounded into the module after each step. Frozen parameters have no state here.
    """

    def __init__(self, module: nn.Module, settings: Training, peak_rate: float) -> None:
        self._parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        if not self._parameters:
            raise ValueError("no parameter of this module trains")
        self._masters = {name: _master(p) for name, p in self._parameters.items()}
        self._settings, self._peak_rate = settings, peak_rate
        self._optimiser = adamw(self._masters, settings.weight_decay)

    def update(self, losses: Iterable[tuple[Tensor, Stats]], step: int) -> Metrics:
        """One optimiser step, at the learning rate of training step `step`, from the (loss, stats) of each micro-batch.

        Losses and stats are the micro-batch's parts of the minibatch's value (normalised by global counts), so they
        add up. Returns the sums, with `loss`, `grad_norm` (before clipping) and `learning_rate` among them.

        Raises:
            UserError: the gradient is not finite.
        """
        totals: dict[str, Tensor | float] = {}
        for loss, stats in losses:
            loss.backward()
            self._collect()
            for name, value in {"loss": loss, **stats}.items():
                totals[name] = totals.get(name, 0.0) + (value.detach() if isinstance(value, Tensor) else value)
        rate = learning_rate(self._settings, self._peak_rate, step)
        totals.update(learning_rate=rate, grad_norm=self._step(rate))
        return {name: float(value) for name, value in totals.items()}

    def tensors(self) -> dict[str, Tensor]:
        """The exact state: every training parameter and its moments, under `model/` and `optimiser/`."""
        state = {f"model/{name}": p.detach() for name, p in self._masters.items()}
        for name, p in self._masters.items():
            state.update({f"optimiser/{name}/{moment}": self._optimiser.state[p][moment] for moment in MOMENTS})
        return state

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Puts back what `tensors` gave; the caller has checked the keys."""
        for name, tensor in self.tensors().items():
            tensor.copy_(tensors[name])
        self._write_back()

    def _collect(self) -> None:
        for name, master in self._masters.items():
            parameter = self._parameters[name]
            if master is parameter or parameter.grad is None:
                continue
            gradient = parameter.grad.to(master.dtype)
            master.grad = gradient if master.grad is None else master.grad.add_(gradient)
            parameter.grad = None

    def _step(self, rate: float) -> float:
        masters = list(self._masters.values())
        for master in masters:
            # AdamW skips a parameter without a gradient; its step count would then depend on the data.
            if master.grad is None:
                master.grad = torch.zeros_like(master)
        norm = float(nn.utils.clip_grad_norm_(masters, self._settings.max_grad_norm))
        if not norm < float("inf"):
            raise UserError(f"training diverged: the gradient's norm is {norm}; lower learning_rate or max_grad_norm")
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        self._write_back()
        return norm

    @torch.no_grad()
    def _write_back(self) -> None:
        for name, master in self._masters.items():
            if master is not self._parameters[name]:
                self._parameters[name].copy_(master)


def let_train(module: nn.Module, settings: Training, seed: int, heads: Sequence[nn.Module] = ()) -> int:
    """Chooses what of `module` trains, beside `heads`: all, its last layers, or new adapters, drawn from `seed`.

    Returns the number of first layers that stay as they are.

    Raises:
        UserError: the module has fewer layers, or not the layers that are to get adapters.
    """
    if settings.lora is None:
        return train_last(module, settings.train_layers, heads)
    add_adapters(module, settings.lora, seed, heads)
    return 0


def _master(parameter: nn.Parameter) -> Tensor:
    if parameter.dtype in (torch.float32, torch.float64):
        return parameter
    return parameter.detach().float().requires_grad_()
