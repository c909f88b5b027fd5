"""Functions of the user's own, named in the configuration as FILE.py:FUNCTION."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from posttrain.errors import UserError


def user_function(key: str, named: str, file: Path) -> Callable[..., Any]:
    """The function that `key` of the configuration names; `file` is where its file stands.

    Compiled from the file's own bytes: a cached byte code may be older than what the stage key was made from.

    Raises:
        UserError: the file cannot be imported or has no such function.
    """
    name = named.rpartition(":")[2]
    module = types.ModuleType(f"user_code_{key.replace('.', '_')}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module  # where dataclasses look their own module up
    try:
        exec(compile(file.read_bytes(), str(file), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:  # a script that exits would end the stage as if it had succeeded
        raise UserError(f"{key}: {named}: {file} cannot be imported ({short(error)}); mend it") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise UserError(f"{key}: {named}: {file} has no function {name}; define it there, or name another")
    found: Callable[..., Any] = function
    return found


def short(error: BaseException) -> str:
    """One line for an error of the user's code: its kind and the beginning of its message."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:200] if text else type(error).__name__
