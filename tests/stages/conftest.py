from tests.trainer.conftest import world

__all__ = ["world"]
