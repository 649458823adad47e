"""Share one cache of accounts between all tests of counting, so that each model is probed once."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEMMA_HOME", str(tmp_path_factory.mktemp("home")))
        yield
