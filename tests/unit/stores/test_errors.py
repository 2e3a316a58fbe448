import pickle

import pytest

from moorage_state import errors
from moorage_state.errors import (
    CorruptState,
    MoorageError,
    Retryable,
    StoreUnavailable,
    UserError,
    error_from_wire,
    error_to_wire,
)

CLASSES = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, MoorageError)
]


def test_codes_are_unique() -> None:
    codes = [kind.code for kind in CLASSES]
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_crosses_the_wire_and_a_pickle_unchanged(kind: type[MoorageError]) -> None:
    error = kind("what failed: on=x")
    for twin in (error_from_wire(error_to_wire(error)), pickle.loads(pickle.dumps(error))):
        assert type(twin) is kind
        assert str(twin) == "what failed: on=x"


def test_corrupt_state_keeps_path_and_advice_everywhere() -> None:
    error = CorruptState("bad checksum", "file:///x", "use a backup")
    for twin in (error_from_wire(error_to_wire(error)), pickle.loads(pickle.dumps(error))):
        assert isinstance(twin, CorruptState)
        assert (twin.message, twin.path, twin.advice) == (error.message, error.path, error.advice)
    assert str(error) == "bad checksum: path=file:///x; use a backup"


def test_an_unknown_code_keeps_its_text() -> None:
    error = error_from_wire({"code": "from_the_future", "args": ["hello"]})
    assert type(error) is MoorageError
    assert "from_the_future hello" in str(error)


@pytest.mark.parametrize(
    ("bases", "kind"),
    [
        (["newer_still", "store_unavailable", "retryable", "moorage_error"], StoreUnavailable),
        (["user_error", "moorage_error"], UserError),
    ],
)
def test_an_unknown_code_is_taken_as_what_it_is_a_kind_of(
    bases: list[str], kind: type[MoorageError]
) -> None:
    wire = {"code": "from_the_future", "args": ["hello"], "bases": bases}
    error = error_from_wire(wire)
    assert (type(error), str(error)) == (kind, "hello")


def test_an_error_says_on_the_wire_what_it_is_a_kind_of() -> None:
    bases = error_to_wire(StoreUnavailable("x"))["bases"]
    assert bases == ["retryable", "moorage_error"]


def test_an_unavailable_store_is_retryable() -> None:
    assert issubclass(StoreUnavailable, Retryable)
