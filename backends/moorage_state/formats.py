"""Which format numbers this release reads: from 1, the first that was settled, to its own.

Called by whoever decodes what Moorage stored. See docs/formats.md.
"""

from moorage_state.errors import NewerFormat

__all__ = ["FIRST_FORMAT", "require_known_format"]

FIRST_FORMAT = 1
"""Before it, layouts changed without their numbers: nothing can tell what such bytes mean."""


def require_known_format(what: str, number: int, known: int, where: str) -> None:
    """Refuse data whose format is not between the first and this release's.

    Args:
        what: such as "manifest".
        number: the format that the data says it has.
        known: the newest that this release reads.
        where: the path or place, for the message.

    Raises:
        NewerFormat: naming all of these and what to do.
    """
    if number > known:
        raise NewerFormat(
            f"{what} was written by a newer moorage: path={where} format={number} known={known}; "
            "upgrade moorage"
        )
    if number < FIRST_FORMAT:
        raise NewerFormat(
            f"{what} was written by a development version of moorage: path={where} "
            f"format={number} known={FIRST_FORMAT} to {known}; read it with that version, or "
            "begin without it"
        )
