"""Acknowledgements: what subtasks report of an epoch, and whether the reports agree.

They travel as rows on the data path, each by way of subtasks of its own number. What was read of
another operator is said by its rows: each bears a mark of the batch that it was sent in, and over
all subtasks the marks that were sent and those that were read have the same sums. Pure.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import numpy as np
import xxhash

from moorage.engine.blank_columns import BlankColumns, merged
from moorage.engine.event_time import Value
from moorage.engine.samples import MOST_ROWS, SampledRows, together
from moorage_state.errors import Retryable
from moorage_state.keyed.kv_states import duplicate_name
from moorage_state.keyed.schema import StateSchema, merged_schema
from moorage_state.operator_state import OperatorStateSchema
from moorage_state.operator_state.schemas import require_same

_T = TypeVar("_T")


class EpochConflict(Retryable):
    """Consumers saw different attempts of one subtask; the attempt of the epoch is void."""

    code = "epoch_conflict"


class EpochIncomplete(Retryable):
    """A subtask's acknowledgement is missing or there is one too many."""

    code = "epoch_incomplete"


_MARK_BITS = 16
"""Of a mark, those that name the subtask; the others are of the digest."""

_SUBTASKS = (1 << _MARK_BITS) - 1
_WORD = (1 << 64) - 1


class Tally(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Rows between operators, such that those of several subtasks can be added up.

    Attributes:
        rows: how many there are.
        digests: the sum of what their marks have of digests, modulo 2^64.
        by_subtask: the same with each multiplied by the subtask that sent it: where one of them
            does not agree, the two differences tell which.
    """

    rows: int = 0
    digests: int = 0
    by_subtask: int = 0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            self.rows + other.rows,
            (self.digests + other.digests) & _WORD,
            (self.by_subtask + other.by_subtask) & _WORD,
        )

    def other_subtask(self, read: "Tally", count: int) -> int | None:
        """The one subtask of `count` whose rows were others than these, which were sent."""
        off = read.digests - self.digests
        far = read.by_subtask - self.by_subtask
        found = [i for i in range(count) if (i * off - far) & _WORD == 0]
        return found[0] if len(found) == 1 else None


def mark_of(digest: int, subtask: int) -> int:
    """The mark of the rows of a batch, 64 bits; `digest` is of it and of all that went before."""
    return (digest << _MARK_BITS | subtask) & _WORD


def tally(marks: Any) -> Tally:
    """What rows with these marks (a NumPy array of 64 bits each) add up to."""
    words = marks.view(np.uint64)
    digests = words >> np.uint64(_MARK_BITS)
    # Sums of unsigned words wrap around, which is what is wanted here.
    by_subtask = np.dot(digests, words & np.uint64(_SUBTASKS))
    return Tally(len(words), int(digests.sum()), int(by_subtask))


def tally_of(mark: int, rows: int) -> Tally:
    """What so many rows of one mark add up to."""
    digest = mark >> _MARK_BITS
    return Tally(rows, digest * rows & _WORD, digest * rows * (mark & _SUBTASKS) & _WORD)


_NO_ROWS = Tally()


class ReadRows(msgspec.Struct, frozen=True, gc=False):
    """Rows that a subtask has read of the output `side_output` ("" for the main one) of `uid`."""

    uid: str
    side_output: str
    tally: Tally


# Nothing in it refers to itself: the collector need not walk over those of all subtasks.
class Ack(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What one attempt of one subtask did in one epoch.

    Attributes:
        delta: digest of the prepared delta ("" for a sink without state).
        rows_in: rows that were processed; of an operator that reads inputs, those of inputs.
        rows_read: rows that came for them: fewer where these were added up on their way.
        output: digest of the rows it sent downstream ("" where nothing is downstream).
        sent: by side output, "" for the main one, the rows that operators read.
        read: the rows that came from other operators, by feed.
        null_feeds: rows with a null key that were not processed, by feed of the operator.
        null_rows: rows of nulls alone; they are among those with a null key.
        blank_columns: by feed that was looked at, the columns that were null in all of its rows.
        bad_times: other keyed rows without the event time that their input declares.
        bad_time: names the first of these.
        bad_broadcasts: broadcast rows without it; subtask 0 counts for all.
        bad_broadcast: names the first of these.
        late_rows: rows of inputs whose event time the watermark had reached.
        late_rows_dropped: rows that the function dropped because they came too late.
        next_timer: a processing time before which no timer of the subtask is due.
        max_event_time: by clock of an input, the newest event time in milliseconds.
        value_times: by clock that counts by the values of a column, the same of each value.
        committables: by sink uid, what was staged.
        wrote_union: whether the delta has elements of a union list.
        queryable: states that may be looked up, each by the name that it is asked for by.
        samples: by sink uid, the sample of its rows, where one is taken.
        began_ms: when its task began, by the clock of its machine. No two attempts have the same
            times: they are 0 where operators are downstream, to whom acknowledgements travel with
            the rows.
        seconds: from its first row to the acknowledgement.
        wait_seconds: of these, in which it waited for more rows.
        state_seconds: of these, in exchanges with its state server.
        sink_seconds: of these, in which sinks staged its output.
    """

    uid: str
    subtask: int
    run: str
    epoch: int
    delta: str = ""
    output: str = ""
    rows_in: int = 0
    rows_read: int = 0
    rows_out: int = 0
    null_feeds: dict[int, int] = {}
    null_rows: int = 0
    blank_columns: dict[int, BlankColumns] = {}
    bad_times: int = 0
    bad_time: str = ""
    bad_broadcasts: int = 0
    bad_broadcast: str = ""
    keys: int = 0
    timers_fired: int = 0
    late_rows: int = 0
    late_rows_dropped: int = 0
    next_timer: int = (1 << 63) - 1
    max_event_time: dict[str, int] = {}
    value_times: dict[str, dict[str | None, int]] = {}
    schemas: list[StateSchema] = []
    operator_states: list[OperatorStateSchema] = []
    committables: dict[str, list[dict[str, Any]]] = {}
    sent: dict[str, Tally] = {}
    read: tuple[ReadRows, ...] = ()
    wrote_union: bool = False
    queryable: dict[str, str] = {}
    samples: dict[str, SampledRows] = {}
    began_ms: int = 0
    seconds: float = 0.0
    wait_seconds: float = 0.0
    state_seconds: float = 0.0
    sink_seconds: float = 0.0

    @property
    def null_keys(self) -> int:
        """Rows with a null key, whichever feed they came by."""
        return sum(self.null_feeds.values())

    @property
    def digest(self) -> str:
        """One digest for the attempt's effect: its delta and its output."""
        return xxhash.xxh3_128_hexdigest(f"{self.delta}|{self.output}".encode())


encode_ack: Callable[[Ack], bytes] = msgspec.msgpack.Encoder().encode
decode_ack: Callable[[bytes], Ack] = msgspec.msgpack.Decoder(Ack).decode


@dataclass(frozen=True, slots=True)
class OddCounts:
    """What one operator did not process; see `Ack`."""

    null_feeds: Mapping[int, int] = field(default_factory=dict)
    null_rows: int = 0
    bad_times: int = 0
    bad_time: str = ""
    bad_broadcasts: int = 0
    bad_broadcast: str = ""

    @property
    def null_keys(self) -> int:
        """Rows with a null key, whichever feed they came by."""
        return sum(self.null_feeds.values())


@dataclass(frozen=True, slots=True)
class EpochOutcome:
    """What all subtasks did in an epoch that may commit; `acks` in the order of uid and subtask."""

    acks: Mapping[tuple[str, int], Ack]
    stateless: tuple[Ack, ...] = ()
    max_event_time: Mapping[str, int] = field(default_factory=dict)
    value_times: Mapping[str, Mapping[Value, int]] = field(default_factory=dict)

    def rows_in(self, consumers: Collection[str]) -> int:
        """Rows that these operators and direct sinks took in."""
        acks = (*self.acks.values(), *self.stateless)
        return sum(a.rows_in for a in acks if a.uid in consumers)

    def rows_by_operator(self) -> dict[str, tuple[int, int, int]]:
        """By operator uid how many rows it had, how many came for these, and how many keys."""
        found: dict[str, tuple[int, int, int]] = {}
        for (uid, _), ack in self.acks.items():
            rows, read, keys = found.get(uid, (0, 0, 0))
            found[uid] = rows + ack.rows_in, read + ack.rows_read, keys + ack.keys
        return found

    def odd_rows(self) -> dict[str, OddCounts]:
        """What operators did not process, by uid, where there was any."""
        counts: dict[str, OddCounts] = {}
        for (uid, _), ack in self.acks.items():
            if ack.null_keys or ack.bad_times or ack.bad_broadcasts:
                before = counts.get(uid, OddCounts())
                counts[uid] = OddCounts(
                    Counter(before.null_feeds) + Counter(ack.null_feeds),
                    before.null_rows + ack.null_rows,
                    before.bad_times + ack.bad_times,
                    before.bad_time or ack.bad_time,
                    before.bad_broadcasts + ack.bad_broadcasts,
                    before.bad_broadcast or ack.bad_broadcast,
                )
        return counts

    def blank_columns(self) -> dict[str, dict[int, BlankColumns]]:
        """By operator and feed that was looked at, the columns that were null in all rows."""
        found: dict[str, dict[int, BlankColumns]] = {}
        for (uid, _), ack in self.acks.items():
            if ack.blank_columns:
                found[uid] = merged(found.get(uid, {}), ack.blank_columns)
        return found

    @property
    def late_rows(self) -> int:
        """Rows of inputs whose event time the watermark had reached."""
        return sum(ack.late_rows for ack in self.acks.values())

    @property
    def late_rows_dropped(self) -> int:
        """Rows that functions dropped because they came too late."""
        return sum(ack.late_rows_dropped for ack in self.acks.values())

    def committables(self) -> dict[str, list[dict[str, Any]]]:
        """Everything staged, by sink uid, in a stable order."""
        merged: dict[str, list[dict[str, Any]]] = {}
        for ack in (*self.acks.values(), *self.stateless):
            for uid, items in ack.committables.items():
                merged.setdefault(uid, []).extend(items)
        return merged

    def samples(self) -> dict[str, SampledRows]:
        """By sink uid, the sample of its rows."""
        found: dict[str, list[SampledRows]] = {}
        for ack in (*self.acks.values(), *self.stateless):
            for uid, rows in ack.samples.items():
                found.setdefault(uid, []).append(rows)
        return {uid: together(parts, MOST_ROWS) for uid, parts in found.items()}

    def operator_states(self) -> dict[str, list[OperatorStateSchema]]:
        """Schemas of what belongs to subtasks and to no key, by operator uid, where there is any.

        Raises:
            UserError: two subtasks declared one name in different ways.
        """
        merged: dict[str, dict[str, OperatorStateSchema]] = {}
        for (uid, _), ack in self.acks.items():
            for schema in ack.operator_states:
                same = merged.setdefault(uid, {}).setdefault(schema.name, schema)
                require_same(schema, same, "of another subtask was registered")
        return {uid: [states[n] for n in sorted(states)] for uid, states in merged.items()}

    def union_writers(self) -> set[str]:
        """The operators of which a subtask wrote to a union list."""
        return {uid for (uid, _), ack in self.acks.items() if ack.wrote_union}

    def reported_operator_states(self) -> dict[str, dict[str, set[OperatorStateSchema]]]:
        """By operator uid and name, all that subtasks say of an operator state."""
        # A subtask that did not ask for a state says what was known before: two answers are a
        # change.
        found: dict[str, dict[str, set[OperatorStateSchema]]] = {}
        for (uid, _), ack in self.acks.items():
            for schema in ack.operator_states:
                found.setdefault(uid, {}).setdefault(schema.name, set()).add(schema)
        return found

    def schemas(self) -> dict[str, list[StateSchema]]:
        """State schemas by operator uid."""
        merged: dict[str, dict[str, StateSchema]] = {}
        for (uid, _), ack in self.acks.items():
            states = merged.setdefault(uid, {})
            for schema in ack.schemas:
                before = states.setdefault(schema.name, schema)
                if before is not schema:
                    states[schema.name] = merged_schema(before, schema)
        return {uid: [states[n] for n in sorted(states)] for uid, states in merged.items()}

    def queryable(self) -> dict[str, tuple[str, str]]:
        """By the name that it is asked for by, the operator's uid and the state's name.

        Raises:
            UserError: two states of the job have one name.
        """
        found: dict[str, tuple[str, str]] = {}
        for (uid, _), ack in self.acks.items():
            for name, state in ack.queryable.items():
                known = found.setdefault(name, (uid, state))
                if known != (uid, state):
                    raise duplicate_name(name, f"state={'/'.join(known)}", f"state={uid}/{state}")
        return found


def verify(
    collected: Iterable[Ack], parallelism: Mapping[str, int], run: str, epoch: int
) -> EpochOutcome:
    """Decide whether an epoch may commit.

    Args:
        collected: acknowledgements that reached the driver.
        parallelism: subtasks of each stateful operator, by uid.

    Raises:
        EpochConflict: two attempts of one subtask were acknowledged, or the rows that operators
            read are not those that were sent to them.
        EpochIncomplete: an acknowledgement is missing, or belongs to another run or epoch.
    """
    acks: dict[tuple[str, int], Ack] = {}
    stateless: list[Ack] = []
    for ack in collected:
        if ack.run != run or ack.epoch != epoch:
            raise EpochIncomplete(
                f"an acknowledgement of another run or epoch arrived: uid={ack.uid} "
                f"run={ack.run} epoch={ack.epoch} expected_run={run} expected_epoch={epoch}"
            )
        if ack.uid not in parallelism:
            stateless.append(ack)
            continue
        known = acks.setdefault((ack.uid, ack.subtask), ack)
        if known.digest != ack.digest:
            raise _conflict(
                f"uid={ack.uid} subtask={ack.subtask} one={known.digest} other={ack.digest} "
                f"seen_by=the driver"
            )
    _require_all(acks, parallelism)
    _require_agreement(acks, parallelism)
    newest: dict[str, int] = {}
    values: dict[str, dict[Value, int]] = {}
    for ack in (*acks.values(), *stateless):
        _keep_newest(newest, ack.max_event_time)
        for clock, times in ack.value_times.items():
            _keep_newest(values.setdefault(clock, {}), times)
    return EpochOutcome(dict(sorted(acks.items())), tuple(stateless), newest, values)


def _keep_newest(known: dict[_T, int], observed: Mapping[_T, int]) -> None:
    for name, time_ms in observed.items():
        known[name] = max(known.get(name, time_ms), time_ms)


def _require_all(acks: Mapping[tuple[str, int], Ack], parallelism: Mapping[str, int]) -> None:
    for uid, count in parallelism.items():
        missing = [i for i in range(count) if (uid, i) not in acks]
        if missing:
            raise EpochIncomplete(
                f"subtasks did not acknowledge the epoch: uid={uid} missing={missing} of={count}"
            )
    extra = [(u, i) for u, i in acks if not 0 <= i < parallelism[u]]
    if extra:
        raise EpochIncomplete(f"acknowledgements of subtasks that do not exist: {extra}")


def _require_agreement(acks: Mapping[tuple[str, int], Ack], parallelism: Mapping[str, int]) -> None:
    """Rows that went between operators must have been read as they were sent, and all of them."""
    sent: dict[tuple[str, str], Tally] = {}
    read: dict[tuple[str, str, str, int], Tally] = {}
    for (uid, _), ack in acks.items():
        for side, some in ack.sent.items():
            sent[uid, side] = sent.get((uid, side), _NO_ROWS) + some
        for position, rows in enumerate(ack.read):
            way = (rows.uid, rows.side_output, uid, position)
            read[way] = read.get(way, _NO_ROWS) + rows.tally
    for (uid, side, consumer, _), theirs in read.items():
        if uid not in parallelism:
            raise EpochIncomplete(
                f"an operator read what no operator of the job acknowledged: uid={uid} "
                f"seen_by={consumer}"
            )
        ours = sent.get((uid, side), _NO_ROWS)
        if ours != theirs:
            subtask = ours.other_subtask(theirs, parallelism[uid])
            which = "several" if subtask is None else subtask
            output = f" side_output={side}" if side else ""
            raise _conflict(
                f"uid={uid} subtask={which}{output} rows_sent={ours.rows} rows_read={theirs.rows} "
                f"seen_by={consumer}"
            )


def _conflict(what: str) -> EpochConflict:
    return EpochConflict(
        f"two attempts of one subtask had different results: {what}; a function that is not "
        f"deterministic (random numbers, clock, order of a set) does this"
    )
