"""What people may say to Kafka's source, and what they are told."""

import sys

import pytest

from moorage.kafka.client import check_client, consumer_config
from moorage.kafka.options import EARLIEST, LATEST, SourceOptions
from moorage_state.errors import UserError

BASE = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "events"}


def parse(**options):
    return SourceOptions.parse({**BASE, **{k.replace("__", "."): v for k, v in options.items()}})


def test_options_are_named_as_those_of_sparks_connector():
    options = parse(
        subscribe="a, b",
        startingOffsets='{"a":{"0":5,"1":-2},"b":{"0":-1}}',
        maxOffsetsPerTrigger=100,
        failOnDataLoss=False,
        includeHeaders="true",
        kafka__client__id="me",
        kafkaConsumer__pollTimeoutMs=500,
    )
    assert options.topics == ("a", "b")
    assert options.starting == {"a": {0: 5, 1: EARLIEST}, "b": {0: LATEST}}
    assert (options.max_offsets, options.fail_on_data_loss, options.headers) == (100, False, True)
    assert options.client == {"bootstrap.servers": "127.0.0.1:1", "client.id": "me"}
    assert options.timeout_ms == 500


def test_what_is_not_said_is_as_in_sparks_connector():
    options = parse()
    assert (options.starting, options.max_offsets, options.headers) == (LATEST, None, False)
    assert options.fail_on_data_loss


def test_names_may_be_in_any_case():
    assert parse(STARTINGOFFSETS="Earliest").starting == EARLIEST


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingOfsets": "x"}, r"no such option: unknown=\['startingOfsets'\]"),
        ({"minPartitions": 3}, r"no such option: unknown=\['minPartitions'\]"),
        ({"assign": '{"events":[0]}'}, r"one of .* given=\['subscribe', 'assign'\]"),
        ({"subscribe": " , "}, "subscribe names no topic"),
        ({"startingOffsets": "newest"}, "startingOffsets is 'earliest', 'latest' or JSON"),
        ({"startingOffsets": "[1]"}, "startingOffsets is 'earliest', 'latest' or JSON"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss is true or false: got='no'"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger is a whole number above 0"),
        ({"kafka__bootstrap__servers": ""}, "no kafka broker is named"),
        ({"kafka__auto__offset__reset": "earliest"}, r"refused=\['kafka.auto.offset.reset'\]"),
        ({"kafka__sasl__jaas__config": "x"}, "use kafka.sasl.username and kafka.sasl.password"),
    ],
)
def test_what_cannot_be_is_refused_by_name(options, said):
    with pytest.raises(UserError, match=said):
        parse(**options)


@pytest.mark.parametrize("text", ["events", "[0]", '{"events":[]}', '{"events":["x"]}', "{}"])
def test_assign_names_partitions_by_topic(text):
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "assign": text}
    with pytest.raises(UserError, match="assign is JSON of topics and their partitions"):
        SourceOptions.parse(options)


def test_a_pattern_must_be_a_regular_expression():
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribePattern": "a("}
    with pytest.raises(UserError, match=r"no regular expression: pattern='a\('"):
        SourceOptions.parse(options)


def test_the_client_judges_its_own_options_and_no_secret_is_told():
    config = parse(**{"kafka.sasl.pasword": "hunter2"}).client
    with pytest.raises(UserError, match=r'No such configuration property: "sasl.pasword"') as told:
        check_client(consumer_config(config))
    assert "hunter2" not in str(told.value)


def test_without_the_library_people_are_told_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(UserError, match=r"install moorage\[kafka\]"):
        check_client(consumer_config(parse().client))


def test_what_is_shown_of_options_has_no_password():
    shown = "a name that shows"
    parsed = parse(kafka__sasl__password=shown)
    assert parsed.client["sasl.password"] == shown
    assert shown not in repr(parsed)
