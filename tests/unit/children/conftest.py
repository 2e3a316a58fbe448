import copy

import pytest
from moorage_testing.attempts import META, ORDER, SMALL

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

    def build(changes=None):
        data = copy.deepcopy(SMALL)
        for path, value in (changes or {}).items():
            *parents, last = path.split(".")
            place = data
            for name in parents:
                place = place.setdefault(name, {})
            place[last] = value
        return JobSpec.model_validate(data)

    return build
