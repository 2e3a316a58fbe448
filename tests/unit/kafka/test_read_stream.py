"""Kafka's source where a job is described: what is wrong is told there."""

import pytest

from moorage import StreamEnvironment
from moorage_state.errors import UserError


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "needs one of"),
        ({"subscribe": "a", "kafka.bogus": "1"}, 'No such configuration property: "bogus"'),
        ({"subscribe": "a", "startingOfsets": "1"}, "startingOfsets"),
    ],
)
def test_wrong_options_are_told_with_the_inputs_uid_before_spark_is_asked(options, said):
    env = StreamEnvironment(None)  # type: ignore[arg-type]  # it is not asked
    with pytest.raises(UserError, match=f"{said}.*uid=events format=moorage-kafka"):
        env.read_stream(
            "events", "moorage-kafka", **{"kafka.bootstrap.servers": "127.0.0.1:1", **options}
        )


@pytest.mark.parametrize("more", [{"schema": "value string"}, {"path": "in"}])
def test_a_schema_or_a_path_is_refused(more):
    env = StreamEnvironment(None)  # type: ignore[arg-type]  # it is not asked
    with pytest.raises(UserError, match="kafka has columns of its own, and no path: uid=events"):
        env.read_stream("events", "moorage-kafka", subscribe="events", **more)
