"""A small text, prepared once for all tests of this folder."""

import pytest

from lemma.data.splits import Splits
from lemma.data.store import TokenArray
from lemma.spec.data import DataSpec
from small_runs import small_data


@pytest.fixture(scope="session")
def spec_and_data(tmp_path_factory: pytest.TempPathFactory) -> tuple[DataSpec, Splits[TokenArray]]:
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEMMA_HOME", str(home))
        return small_data(home)
