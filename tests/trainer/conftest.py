from pathlib import Path

import pytest

from tests.trainer.harness import make_world


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Inputs of every stage, made once; nothing may write into it."""
    return make_world(tmp_path_factory.mktemp("world"))
