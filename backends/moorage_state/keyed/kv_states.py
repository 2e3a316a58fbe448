"""Queryable state: what one subtask lets others look up, by the names that it is asked for by.

Made for each subtask and given to what keeps its keyed state, which registers there every state
whose descriptor is `queryable`. Whoever runs the subtask hands on what is registered: in a job it
goes to the driver with the subtask's acknowledgement. Holds no state itself: look-ups read what is
committed, and not what a task has in its hands.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from moorage_state.errors import UserError
from moorage_state.keygroups import KeyGroupRange


@dataclass(frozen=True, slots=True)
class KvStateEntry:
    """One state that is registered: its name among the operator's, and the key groups here."""

    state: str
    key_group_range: KeyGroupRange | None


class TaskKvStateRegistry:
    """The queryable states of one subtask. Belongs to its thread."""

    def __init__(self) -> None:
        self._entries: dict[str, KvStateEntry] = {}

    def register_kv_state(
        self, key_group_range: KeyGroupRange | None, registration_name: str, state: str
    ) -> None:
        """Let `state` be asked for as `registration_name`; the same again is harmless.

        Raises:
            UserError: another state of the operator has the name.
        """
        known = self._entries.setdefault(registration_name, KvStateEntry(state, key_group_range))
        if known.state != state:
            raise duplicate_name(registration_name, f"state={known.state}", f"state={state}")

    def unregister_all(self) -> None:
        """The subtask ends: nothing is asked for any more."""
        self._entries.clear()

    @property
    def entries(self) -> Mapping[str, KvStateEntry]:
        """What is registered, by the names that it is asked for by."""
        return self._entries

    def names(self) -> dict[str, str]:
        """By the name that it is asked for by, each state's own."""
        return {name: entry.state for name, entry in self._entries.items()}


def duplicate_name(name: str, one: str, other: str) -> UserError:
    """The error for a name that two states of a job have."""
    return UserError(
        f"two states of the job are queryable by one name: queryable={name} {one} and {other}; "
        f"give each a name of its own"
    )
