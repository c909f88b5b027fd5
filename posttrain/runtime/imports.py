"""What transformers imports beside itself wherever it is installed, and no stage uses."""

from __future__ import annotations


def without_scipy() -> None:
    """Lets transformers pass over SciPy and scikit-learn, which come with MLflow; call it before a model is loaded.

    transformers has them for assisted generation and detection losses alone. They cost each process about 100 MiB and
    a second or more. Code that imports them by itself gets them as ever.
    """
    from transformers import utils
    from transformers.utils import import_utils

    for module in (utils, import_utils):
        for name in ("is_scipy_available", "is_sklearn_available"):
            setattr(module, name, lambda: False)
