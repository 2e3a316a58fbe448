import pytest
from moorage_testing.attempts import META, ORDER, SMALL
from moorage_testing.manifests import changed

from moorage_api import JobSpec


@pytest.fixture
def meta():
    return META


@pytest.fixture
def order():
    return ORDER


@pytest.fixture
def spec():
    """A spec for a cluster, with `a.b=value` changes in camelCase."""

    return lambda changes=None: JobSpec.model_validate(changed(SMALL, changes))
