"""What a handle turns values into bytes with: the one place where a state's codec is chosen."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from moorage_state.codecs import Decode, Encode, Settle, plain_type, settler
from moorage_state.evolution import reader_of, writer_of

__all__ = ["RAW", "StateCodec", "codec_of"]


class StateCodec(NamedTuple):
    """The codec of one state.

    Attributes:
        encode: refuses what is not of the declared type.
        plain: values of exactly this type read back as they were given; None if there is none.
        settle: gives what would be read back for a value.
    """

    encode: Encode
    decode: Decode
    plain: Any
    settle: Settle


def codec_of(
    name: str, ddl: str, earlier: Sequence[str] = (), recorded: str | None = None
) -> StateCodec:
    """The codec of the state `name`, which is declared with type `ddl`.

    Args:
        earlier: the types that stored values may still have; `StateSchema.earlier`.
        recorded: the type that stored values are read as; `StateSchema.type`. It may have other
            defaults than the declared one, those of the time when a field came.
    """
    encode, decode = writer_of(ddl, earlier, name), reader_of(recorded or ddl, earlier)
    return StateCodec(encode, decode, plain_type(ddl), settler(ddl, name))


def _same(raw: Any) -> Any:
    return raw


RAW = StateCodec(_same, _same, bytes, _same)
"""Of who keeps values as the bytes that another codec made."""
