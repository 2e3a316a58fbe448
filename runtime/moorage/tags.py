"""Tags: the names of side outputs, as job files write them and functions use them.

Called by job files, by functions on executors, and by whoever has to say that a tag is unknown.
Knows nothing of streams and of how rows travel.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from moorage_state.errors import UserError

__all__ = ["OutputTag", "undeclared"]


@dataclass(frozen=True, slots=True)
class OutputTag:
    """Names a side output of an operator.

    Make one for the job and use it wherever the side output is declared, sent to and read; within
    an operator it is the name that tells tags apart.

    Attributes:
        name: any text that is not empty.
        ddl: the columns of its rows; None for those of the stream that the operator processes.

    Raises:
        UserError: name or columns are not text, or empty.
    """

    name: str
    ddl: str | None = None

    def __post_init__(self) -> None:
        given: list[Any] = [self.name, "any" if self.ddl is None else self.ddl]
        if not all(isinstance(text, str) and text.strip() for text in given):
            raise UserError(
                f"an OutputTag has a name, and columns as DDL such as 'user string, n long': "
                f"name={self.name!r} ddl={self.ddl!r}"
            )


def undeclared(place: str, name: str, declared: Iterable[str]) -> UserError:
    """What is said of a side output that an operator does not declare.

    Args:
        place: the operator, as ``operator=uid``.
    """
    return UserError(
        f"the operator does not declare this side output: {place} side_output={name} "
        f"declared={sorted(declared)}; give its tag to process(..., side_outputs=[...])"
    )
