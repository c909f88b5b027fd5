"""The parts that a run is made of, each a pure function whose settings are bound from the run's section."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from posttrain.config.registry import entries, is_user_file, resolve
from posttrain.config.runs import RunBase, settings_for
from posttrain.errors import UserError
from posttrain.runtime.user_code import short, user_function

Parts = Mapping[str, Callable[..., Any]]


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

    def __call__(self, *tensors: torch.Tensor) -> Any:
        try:
            found = self.function(*tensors)
        except (Exception, SystemExit) as error:
            raise UserError(f"{self.key}: {self.named} raised {short(error)}; mend the function") from error
        is_loss = self.key in ("loss", "policy_loss")
        if is_loss and not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], dict)):
            raise UserError(f"{self.key}: {self.named} returned no pair (losses, statistics); return both")
        values = found[0] if is_loss else found
        shape = tuple(tensors[0].shape)
        if not isinstance(values, torch.Tensor) or tuple(values.shape) != shape:
            what = tuple(values.shape) if isinstance(values, torch.Tensor) else type(values).__name__
            raise UserError(f"{self.key}: {self.named} returned {what}, where a tensor of shape {shape} belongs")
        return found
