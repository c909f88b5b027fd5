"""The parts that a run is made of, each a pure function whose settings are bound from the run's section."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posttrain.config.registry import entries, is_user_file, resolve
from posttrain.config.runs import RunBase, settings_for
from posttrain.errors import UserError
from posttrain.runtime.user_code import short, user_function

Parts = Mapping[str, Callable[..., Any]]

# Which argument of a part is the mask.
MASKS = {"policy_loss": 3, "advantages": 1, "kl_estimator": 2}
# What the trainer itself logs as train/NAME beside a loss's statistics.
TAKEN = {"loss", "grad_norm", "learning_rate", "logprob_gap", "kl", "kl_coef", "entropy", "nll", "baseline"}
TAKEN |= {"desirable", "value_loss", "critic_grad_norm"}


def parts_of(run: RunBase, files: Mapping[str, Path]) -> Parts:
    """Part -> function with its keyword-only parameters bound; `files` are the user's own, by key.

    Raises:
        UserError: a function of the user's cannot be had, or wants a setting that the run does not have.
    """
    found = entries(run)
    del found["job"]
    return {
        name: _own(name, entry, run, files) if is_user_file(entry) else _bound(entry, run)
        for name, entry in found.items()
    }


def _bound(entry: str, run: RunBase) -> Callable[..., Any]:
    function = resolve(entry)
    return functools.partial(function, **{name: getattr(run, name) for name in _settings(function)})


def _own(key: str, named: str, run: RunBase, files: Mapping[str, Path]) -> Callable[..., Any]:
    function = user_function(key, named, files[key])
    values = {}
    for name, has_default in _settings(function).items():
        try:
            values[name] = settings_for(run, name)
        except AttributeError:
            if not has_default:
                raise UserError(f"{key}: {named} wants {name}; give it in the run's options") from None
    return _Watched(key, named, functools.partial(function, **values))


def _settings(function: Callable[..., Any]) -> dict[str, bool]:
    """Name of each keyword-only parameter -> whether it has a default."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default is not p.empty for p in parameters if p.kind is p.KEYWORD_ONLY}


class _Watched:
    """Calls the user's function, and says whose fault it is when it fails or gives what cannot be used."""

    def __init__(self, key: str, named: str, function: Callable[..., Any]) -> None:
        self.key, self.named, self.function = key, named, function

    def __call__(self, *tensors: Tensor) -> Any:
        try:
            found = self.function(*tensors)
        except (Exception, SystemExit) as error:
            raise self._fault(f"raised {short(error)}; mend the function") from error
        is_loss = self.key in ("loss", "policy_loss")
        if is_loss and not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], dict)):
            raise self._fault("returned no pair (losses, statistics); return both")
        values = found[0] if is_loss else found
        self._check("", values, tensors[0])
        if is_loss:
            self._check_loss(values, found[1], tensors[0])
        mask = tensors[MASKS[self.key]] if self.key in MASKS else torch.ones_like(values, dtype=torch.bool)
        given = [tensor for tensor in tensors if tensor.is_floating_point() and tensor.shape == mask.shape]
        if all(_finite(tensor, mask) for tensor in given) and not _finite(values, mask):
            raise self._fault("made NaN or an infinity of finite numbers; mend the function")
        return found

    def _check(self, what: str, values: Any, like: Tensor) -> None:
        """That they are floating-point numbers, one for each of `like`."""
        shape = tuple(like.shape)
        if not isinstance(values, Tensor) or tuple(values.shape) != shape:
            got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise self._fault(f"returned {what}{got}, where a tensor of shape {shape} belongs")
        if not values.is_floating_point():
            raise self._fault(f"returned {what}{values.dtype}, where floating-point numbers belong")

    def _check_loss(self, losses: Tensor, statistics: Mapping[Any, Any], of: Tensor) -> None:
        if of.requires_grad and not losses.requires_grad:
            raise self._fault("returned losses without a gradient; make them of its first argument, not detached")
        for name, values in statistics.items():
            if not isinstance(name, str) or name in TAKEN:
                raise self._fault(f"has a statistic {name!r}, a name that cannot be given; choose another")
            self._check(f"as the statistic {name!r} ", values, of)

    def _fault(self, text: str) -> UserError:
        return UserError(f"{self.key}: {self.named} {text}")


def _finite(values: Tensor, mask: Tensor) -> bool:
    return bool(values[mask].isfinite().all())
