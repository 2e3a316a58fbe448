"""The operator state backend that all state backends here give: in memory, as everywhere."""

from collections.abc import Iterable
from typing import Any

from moorage_state.backends.api import Environment, OperatorStateBackend

__all__ = ["new_operator_state_backend"]


def new_operator_state_backend(
    environment: Environment,  # noqa: ARG001  every backend's signature
    operator_identifier: str,
    restore: Iterable[Any],
) -> OperatorStateBackend:
    """The operator state of one subtask; `restore` are the handles that it was assigned."""
    # Not at the top: operator state's snapshots are made of this package's futures and streams.
    from moorage_state.operator_state.backend import DefaultOperatorStateBackend

    return DefaultOperatorStateBackend(operator_identifier, restore)
