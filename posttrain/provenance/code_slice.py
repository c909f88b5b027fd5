"""The code slice: a digest of the modules that a stage reaches, by static analysis, without importing any of them.

What counts: imports anywhere in a module, also inside functions; the `__init__` of every package on the way; modules of
the parts ("module:function") that a run is made of. What does not: imports under TYPE_CHECKING; and the modules in
APART.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from posttrain.provenance.digests import text_digest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "posttrain"
# The command line, which decides nothing of a stage's outputs.
COMMAND_LINE = frozenset(
    {"posttrain.__main__", "posttrain.cli", "posttrain.runtime.signals"}
    | {f"posttrain.platforms.{name}" for name in ("policy", "precision")}
)
# Tables and schemas: only the part that a stage is given matters, and that part is in the stage key itself, as the
# slice of the config and as the run's resolved parts.
DATA = frozenset(
    {"posttrain.config", *(f"posttrain.config.{name}" for name in ("load", "registry", "runs", "schema", "sections"))}
)
APART = COMMAND_LINE | DATA
_REFERENCE = re.compile(rf"{PACKAGE}(\.\w+)+:\w+")


@dataclass(frozen=True)
class Slice:
    """`digest` of the files behind `modules` (name -> path) and of the run's parts."""

    digest: str
    modules: dict[str, Path]


def code_slice(stage: str, parts: Mapping[str, str] | None = None, root: Path = ROOT) -> Slice:
    """The slice of `stage`, for post_train with the parts of its run: `registry.entries`. `root` holds the package."""
    entry = dict(parts or {})
    starts = [f"{PACKAGE}.stages.{stage}", f"{PACKAGE}.stages.runner", *_references(json.dumps(entry))]
    modules = _reach(starts, root)
    digests = {name: _parse(path, path.stat().st_mtime_ns, root)[0] for name, path in modules.items()}
    content = {"modules": digests, "entry": entry}
    return Slice(text_digest(json.dumps(content, sort_keys=True)), modules)


def strangers(found: Slice) -> list[str]:
    """Modules of ours that this process has imported although they are outside the slice."""
    ours = {name for name in sys.modules if name.split(".")[0] == PACKAGE}
    return sorted(ours - set(found.modules) - APART)


def _references(text: str) -> list[str]:
    """Modules of the "module:function" references in a text."""
    return [match[0].partition(":")[0] for match in _REFERENCE.finditer(text)]


def _reach(starts: Iterable[str], root: Path) -> dict[str, Path]:
    modules: dict[str, Path] = {}
    waiting = list(starts)
    while waiting:
        name = waiting.pop()
        waiting += [] if "." not in name else [name.rpartition(".")[0]]
        path = _file(name, root)
        if path is None or name in modules or name in APART:
            continue
        modules[name] = path
        waiting += _parse(path, path.stat().st_mtime_ns, root)[1]
    return dict(sorted(modules.items()))


def _file(name: str, root: Path) -> Path | None:
    base = root.joinpath(*name.split("."))
    for path in (base / "__init__.py", base.with_name(base.name + ".py")):
        if path.is_file():
            return path
    return None


@functools.cache
def _parse(path: Path, mtime: int, root: Path) -> tuple[str, tuple[str, ...]]:
    """Digest of the file's bytes, and the names that it imports (modules, or things in them). Cached by time."""
    content = path.read_bytes()
    name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = dict.fromkeys(_imports(ast.parse(content, str(path)), package))
    return hashlib.sha256(content).hexdigest(), tuple(found)


def _imports(node: ast.AST, package: str) -> Iterator[str]:
    """Names of ours that a piece of code imports or names as a "module:function" string."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name.split(".")[0] == PACKAGE)
    elif isinstance(node, ast.ImportFrom):
        base = _absolute(node, package)
        if base.split(".")[0] == PACKAGE:
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, str) and _REFERENCE.fullmatch(node.value):
            yield from _references(node.value)
    else:
        for child in _live_children(node):
            yield from _imports(child, package)


def _live_children(node: ast.AST) -> Iterable[ast.AST]:
    """Without what only a type checker reads."""
    if isinstance(node, ast.If) and _is_type_checking(node.test):
        return node.orelse
    return ast.iter_child_nodes(node)


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    return ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])


def _is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )
