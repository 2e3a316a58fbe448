"""Which states of the running job may be looked up, by the names that they are asked for by.

The epoch runner says what subtasks registered, with every epoch that is about to be committed; who
answers look-ups reads it, from any thread. What was registered stays over a rewind, since the job's
code does. Knows neither where ranges are (`fleet`) nor how values are read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from moorage.api.graph import JobGraph
from moorage_state.errors import Retryable, UserError
from moorage_state.keyed.kv_states import duplicate_name
from moorage_state.keyed.schema import StateSchema


class NoKvStatesYet(Retryable):
    """No epoch of this driver has told yet what there is."""

    code = "no_epoch_yet"


class UnknownKvState(UserError):
    """No state of the job is queryable by the name."""

    code = "unknown_state"


@dataclass(frozen=True, slots=True)
class KvStateLocation:
    """A state that may be looked up: the operator that has it, the types of its keys, its own."""

    name: str
    uid: str
    key_types: tuple[str, ...]
    schema: StateSchema


class KvStateLocationRegistry:
    """The queryable states of a job.

    Attributes:
        now_ms: processing time of the newest epoch.

    Args:
        key_types: by operator uid, the types of its keys.
    """

    def __init__(self, key_types: Mapping[str, tuple[str, ...]]) -> None:
        self._key_types = key_types
        # Replaced as a whole: who reads it holds no lock.
        self._locations: dict[str, KvStateLocation] | None = None
        self.now_ms = 0

    @classmethod
    def of(cls, graph: JobGraph) -> "KvStateLocationRegistry":
        """That of a job's operators."""
        return cls({operator.uid: operator.key_types for operator in graph.operators})

    def register(
        self,
        states: Mapping[str, tuple[str, str]],
        schemas: Mapping[str, Sequence[StateSchema]],
        now_ms: int,
    ) -> None:
        """Take in what the subtasks of an epoch registered.

        Args:
            states: by the name that it is asked for by, the operator's uid and the state's name.
            schemas: by operator uid, what is known of its states.

        Raises:
            UserError: another state had one of the names before.
        """
        self.now_ms = now_ms
        known = self._locations
        # A function may ask for a state in some epochs only: it can be looked up all the same.
        found = dict(known or {})
        for name, (uid, state) in states.items():
            schema = next(one for one in schemas[uid] if one.name == state)
            location = KvStateLocation(name, uid, self._key_types[uid], schema)
            before = found.setdefault(name, location)
            if (before.uid, before.schema.name) != (uid, state):
                one = f"state={before.uid}/{before.schema.name}"
                raise duplicate_name(name, one, f"state={uid}/{state}")
            if before != location:
                found[name] = location
        self._locations = found

    def locations(self) -> tuple[KvStateLocation, ...]:
        """All that are known, by name."""
        known = self._locations or {}
        return tuple(known[name] for name in sorted(known))

    def location(self, name: str) -> KvStateLocation:
        """The state that is asked for as `name`; the same object until its types change.

        Raises:
            NoKvStatesYet: ask again once an epoch was committed.
            UnknownKvState: there is none; the error says which there are.
        """
        known = self._locations
        if known is None:
            raise NoKvStatesYet(
                f"no epoch of this driver was committed yet, so its states are not known: "
                f"queryable={name}; ask again when the job has read something"
            )
        if name not in known:
            there = ", ".join(sorted(known)) or "none: say descriptor.queryable(name) in open"
            raise UnknownKvState(
                f"no state of the job is queryable by this name: queryable={name:.80}; there "
                f"are: {there}"
            )
        return known[name]
