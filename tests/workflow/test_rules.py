"""What holds for the text of every rule."""

from __future__ import annotations

import re

import pytest

from tests.workflow.project import REPOSITORY

RULES = sorted((REPOSITORY / "workflow" / "rules").glob("*.smk"))
BLOCKS = [block for path in RULES for block in re.split(r"^(?=rule )", path.read_text(), flags=re.M)[1:]]
NAMES = [re.match(r"rule (\w+):", block)[1] for block in BLOCKS]  # type: ignore[index]


@pytest.mark.parametrize("block", BLOCKS, ids=NAMES)
def test_every_rule_is_a_shell_command(block: str) -> None:
    """The image has no Snakemake, which `run`, `script`, `notebook` and `wrapper` want inside of it."""
    keys = re.findall(r"^    (\w+):", block, flags=re.M)
    assert keys.count("shell") == 1
    assert not {"run", "script", "notebook", "wrapper", "cwl", "template_engine"} & set(keys)
    assert re.search(r"python (-m posttrain|\{params\.script\}) ", block), "a command of ours"


@pytest.mark.parametrize("block", BLOCKS, ids=NAMES)
def test_outputs_are_manifests(block: str) -> None:
    """Snakemake deletes a declared folder before a job, and with it what a killed stage would continue from."""
    found = re.search(r"^    output:\n((?:        .*\n)+)", block, flags=re.M)
    assert found and "directory(" not in found[1]
    assert re.search(r"manifest\.json|data_verified\.json|IMAGE_FILE|sif|TRACKING|tracking\.json", found[1])
