"""The code slice: what a stage reaches, by reading the code; checked against what Python really imports."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from posttrain.cli import STAGES
from posttrain.config.registry import METHODS, entries
from posttrain.provenance import code_slice as module
from posttrain.provenance.code_slice import ROOT, code_slice, strangers
from tests.config.sections import run_of

PACKAGE = {
    "__init__.py": "",
    "stages/__init__.py": "",
    "stages/runner.py": "import json",
    "stages/one.py": """
from __future__ import annotations
from typing import TYPE_CHECKING
import typing as t
import posttrain.direct
from posttrain.package import submodule, a_function
from posttrain.data import (load,)
from ..relative import thing
from . import beside
if TYPE_CHECKING:
    from posttrain.only_types import T
if t.TYPE_CHECKING:
    from posttrain.only_types import T
else:
    from posttrain.otherwise import X
def late():
    try:
        from posttrain.late import y
    except ImportError:
        import posttrain.never_there
    return resolve("posttrain.named:function"), "posttrain.mentioned", "see posttrain.mentioned:too much text"
""",
    "stages/beside.py": "",
    "stages/other.py": "",
    "direct.py": "import posttrain.deep.er as x",
    "deep/__init__.py": "from posttrain import of_init",
    "deep/er.py": "",
    "of_init.py": "from posttrain import direct  # a circle",
    "package/__init__.py": "def a_function(): ...",
    "package/submodule.py": "",
    "package/unused.py": "",
    "data/__init__.py": "from .loading import load",
    "data/loading.py": "",
    "relative.py": "",
    "only_types.py": "",
    "otherwise.py": "",
    "late.py": "",
    "named.py": "",
    "mentioned.py": "",
}
REACHED = {
    "posttrain", "posttrain.stages", "posttrain.stages.runner", "posttrain.stages.one", "posttrain.stages.beside",
    "posttrain.direct", "posttrain.deep", "posttrain.deep.er", "posttrain.of_init", "posttrain.package",
    "posttrain.package.submodule", "posttrain.data", "posttrain.data.loading", "posttrain.relative",
    "posttrain.otherwise", "posttrain.late", "posttrain.named",
}  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in PACKAGE.items():
        path = tmp_path / "posttrain" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_every_kind_of_import(root: Path) -> None:
    assert set(code_slice("one", root=root).modules) == REACHED


@pytest.mark.parametrize("name", sorted(PACKAGE))
def test_the_digest_changes_with_reached_files_only(root: Path, name: str) -> None:
    before = code_slice("one", root=root).digest
    path = root / "posttrain" / name
    path.write_text(PACKAGE[name] + "\n# changed")
    reached = ".".join(("posttrain/" + name).removesuffix(".py").split("/")).removesuffix(".__init__") in REACHED
    assert (code_slice("one", root=root).digest != before) == reached


def test_a_touched_file_and_another_place_change_nothing(root: Path, tmp_path: Path) -> None:
    before = code_slice("one", root=root).digest
    (root / "posttrain" / "direct.py").touch()
    assert code_slice("one", root=root).digest == before
    moved = tmp_path / "elsewhere"
    (root / "posttrain").rename(moved / "posttrain") if moved.mkdir() is None else None
    assert code_slice("one", root=moved).digest == before


def test_a_new_module_that_an_import_finds_counts(root: Path) -> None:
    before = code_slice("one", root=root).digest
    (root / "posttrain" / "never_there.py").write_text("")
    assert code_slice("one", root=root).digest != before


def files(stage: str, method: str | None = None) -> set[str]:
    return set(code_slice(stage, parts(method)).modules)


def parts(method: str | None, **settings: Any) -> dict[str, str]:
    return entries(run_of(method, **settings)) if method else {}


def test_a_methods_files_are_in_its_own_runs_only() -> None:
    kto = "posttrain.algorithms.preference.kto"
    assert kto in files("post_train", "kto")
    for method in set(METHODS) - {"kto"}:
        assert kto not in files("post_train", method)
    for stage in set(STAGES) - {"post_train"}:
        assert kto not in files(stage)
    assert "posttrain.algorithms.advantages.gae" in files("post_train", "ppo")
    assert "posttrain.algorithms.advantages.gae" not in files("post_train", "grpo")


def test_the_registry_counts_by_what_a_run_chooses() -> None:
    assert not any(name.startswith("posttrain.config.") for method in METHODS for name in files("post_train", method))
    digests = {
        loss: code_slice("post_train", parts("grpo", policy_loss=loss)) for loss in ("clipped", "gspo", "mine.py:loss")
    }
    assert len({found.digest for found in digests.values()}) == 3
    assert "posttrain.algorithms.policy_loss.gspo" in digests["gspo"].modules
    assert "posttrain.algorithms.policy_loss.gspo" not in digests["clipped"].modules


def test_no_stage_holds_the_command_line_or_another_stage() -> None:
    for stage in STAGES:
        for method in METHODS if stage == "post_train" else [None]:
            found = files(stage, method)
            assert "posttrain.cli" not in found and "posttrain.config.schema" not in found
            assert {f"posttrain.stages.{other}" for other in STAGES} & found == {f"posttrain.stages.{stage}"}


ASK = """
import importlib, os, sys
import torch, transformers  # once, before the forks: they take most of the time

def ask(stage, method):
    import posttrain.cli
    from posttrain.provenance.code_slice import code_slice, strangers
    importlib.import_module("posttrain.stages." + stage)
    if method:
        from posttrain.config.registry import entries, resolve
        from tests.config.sections import run_of
        for entry in entries(run_of(method)).values():
            resolve(entry)
    parts = entries(run_of(method)) if method else {}
    print(stage, method, strangers(code_slice(stage, parts)), flush=True)

for case in sys.argv[1:]:
    if os.fork() == 0:
        ask(*case.split(":"))
        os._exit(0)
    os.wait()
"""
CASES = ["prepare:", "evaluate:", "post_train:ppo", "post_train:kto"]  # the runner checks every stage that runs


def test_what_python_imports_is_in_the_slice() -> None:
    done = subprocess.run([sys.executable, "-c", ASK, *CASES], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.splitlines() == [f"{case.replace(':', ' ')} []" for case in CASES], done.stderr


def test_a_module_outside_the_slice_is_a_stranger() -> None:
    assert "posttrain.provenance.code_slice" not in strangers(code_slice("sft"))
    own = {"posttrain.provenance.code_slice": Path()}
    assert "posttrain.provenance.images" in strangers(module.Slice("", own)) or "posttrain.algorithms" in strangers(
        module.Slice("", own)
    )


def test_all_slices_are_quick_and_need_no_torch() -> None:
    code = """
import time; start = time.process_time()
from posttrain.provenance.code_slice import code_slice
from posttrain.config.registry import entries
from tests.config.sections import run_of
for stage in ("prepare", "sft", "reward_model", "sample", "rank", "evaluate", "compare"): code_slice(stage)
runs = [run_of(method) for method in ('ppo', 'grpo', 'dpo', 'kto')]
start = time.process_time()
for run in runs: code_slice("post_train", entries(run))
import sys
print(time.process_time() - start, "torch" in sys.modules)
"""
    best = 10.0
    for _ in range(3):  # the machine may be busy
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
        seconds, torch = done.stdout.split()
        assert torch == "False"
        best = min(best, float(seconds))
        if best < 0.3:
            break
        time.sleep(1)
    assert best < 0.6
