"""The user's own functions, looked at before anything runs: they exist, and get the arguments that they want."""

from __future__ import annotations

from posttrain.config.registry import Signature, arguments_for, user_files
from posttrain.config.runs import RunBase, idle_settings
from posttrain.errors import UserError


def check_user_files(name: str, run: RunBase) -> None:
    """Checks the entry `name` of `runs:` without running a line of the user's.

    Raises:
        UserError: a file or its function is missing, is no Python, takes other tensors than it gets, or wants an
            argument that the run does not have; or the run has an option or a setting that no part of it reads.
    """
    files = user_files(run)
    if not files:
        return
    wanted: set[str] = set()
    for key, path in files.items():
        named = f"runs.{name}.{key}: {getattr(run, key)}"
        if not path.is_file():
            raise UserError(f"{named}: there is no file {path}; give FILE.py:FUNCTION, FILE from this folder on")
        function = str(getattr(run, key)).rpartition(":")[2]
        try:
            found = Signature.of(path.read_text(encoding="utf-8"), function)
        except (SyntaxError, ValueError) as error:
            raise UserError(f"{named}: {path} is no Python ({error}); mend it") from None
        if found is None:
            raise UserError(f"{named}: {path} has no function {function}; define it there, or name another")
        given = arguments_for(run, key)
        if found.least > len(given) or (len(found.positional) < len(given) and not found.more):
            raise UserError(
                f"{named} has the positional parameters ({', '.join(found.positional)}), and gets {len(given)} "
                f"tensors: {', '.join(given)}; take these, and settings behind a *"
            )
        for argument, has_default in found.settings.items():
            if not has_default and argument not in run.options and argument not in type(run).model_fields:
                raise UserError(f"{named} wants {argument}; give it as runs.{name}.options.{argument}")
        wanted |= set(found.settings)
    for option in sorted(set(run.options) - wanted):
        raise UserError(f"runs.{name}.options.{option} is an argument of none of the run's functions; take it out")
    for setting in idle_settings(run, wanted):
        raise UserError(f"runs.{name}.{setting} is read by no part of the run; take it out")
