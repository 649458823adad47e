"""Share the formulas of modules between all tests of checking, so that each module is probed once."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def _account_cache(account_cache: None) -> None: ...
