"""The tokenizers of the data tests, and how many examples a property gets."""

from __future__ import annotations

import hypothesis

from tests.data.conftest import tokenizer_kinds  # noqa: F401 (a fixture)

# The same examples in every run: a failure in continuous integration is one that everybody sees.
hypothesis.settings.register_profile(
    "posttrain", max_examples=15, deadline=None, derandomize=True, database=None, print_blob=False
)
hypothesis.settings.load_profile("posttrain")
