import contextlib
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_api import Duration, Quantity


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("60s", 60),
        ("10m", 600),
        ("1h30m", 5400),
        ("250ms", 0.25),
        ("1.5s", 1.5),
        ("0s", 0),
        ("168h", 604800),
        ("1m1m", 120),
    ],
)
def test_a_duration_is_written_as_go_writes_it(text, seconds):
    assert Duration(text).seconds == seconds
    assert str(Duration(text)) == text


@pytest.mark.parametrize(
    "text", ["", "60", "1d", "-1s", "1 s", "s", "1h 30m", "1e3s", "\u0661s", "1s\n", "99999999h"]
)
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ValueError, match=r"duration|ten years"):
        Duration(text)


def test_a_number_without_unit_is_told_apart_from_nonsense():
    with pytest.raises(ValueError, match="has no unit: 60"):
        Duration.parse(60)


@pytest.mark.parametrize(
    ("text", "value"),
    [("2Gi", 2 * 2**30), ("500M", 500_000_000), ("4", 4), ("1.5Ki", 1536), ("1k", 1000)],
)
def test_a_quantity_is_written_as_kubernetes_writes_it(text, value):
    assert Quantity(text).value == value
    assert Quantity(text).bytes == value


def test_thousandths_keep_their_value_and_round_up_to_whole_units():
    assert float(Quantity("500m").value) == 0.5
    assert Quantity("500m").bytes == 1


@pytest.mark.parametrize("text", ["", "4g", "2GB", "-1", "1e3", "Gi", "1 Gi", "0x10", "1Ti\n"])
def test_what_is_no_quantity_is_refused(text):
    with pytest.raises(ValueError, match="is not a quantity"):
        Quantity(text)


@pytest.mark.parametrize(("text", "hint"), [("4g", "4Gi"), ("512MB", "512Mi"), ("2GB", "2Gi")])
def test_the_units_of_java_are_translated_in_the_message(text, hint):
    with pytest.raises(ValueError, match=rf"did you mean {hint}\?"):
        Quantity(text)


def test_equal_values_are_equal_however_they_are_written():
    assert Duration("60s") == Duration("1m")
    assert hash(Duration("60s")) == hash(Duration("1m"))
    assert Quantity("1Ki") == Quantity("1024")
    assert hash(Quantity("1Ki")) == hash(Quantity("1024"))
    assert Duration("59s") < Duration("1m")
    assert Quantity("1G") < Quantity("1Gi")


def test_values_survive_pickling():
    assert pickle.loads(pickle.dumps(Duration("1h30m"))).seconds == 5400
    assert pickle.loads(pickle.dumps(Quantity("2Gi"))).text == "2Gi"


@given(st.text(max_size=40))
def test_no_text_makes_the_parsers_fail_in_another_way(text):
    for kind in (Duration, Quantity):
        with contextlib.suppress(ValueError):
            assert str(kind.parse(text)) == text
