"""Runs an epoch several times from one version, and says what differs.

An epoch whose job dies before its commit runs again on the same rows: output and state must be the
same. Called by the harnesses.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

from moorage.testing.in_process import Attempt, Collector, StagedFrames
from moorage_state.deltas import decode_frame
from moorage_state.errors import UserError
from moorage_state.keylayout import KEY_AT, KEYED_STATE, PROCESSING_TIMERS, prefix_of, timer_parts
from moorage_state.keys import KeyCodec

_SKEW_SECONDS = 86_400 + 3_661
_CUTS = (1024, 1)


class NotDeterministic(UserError):
    """An epoch came out otherwise when it was run again; Spark may do that to any."""

    code = "not_deterministic"


class Replay:
    """Takes the place of `InProcessPlanner.rehearse` for one epoch.

    Args:
        outputs: by name ("" for the main output), where rows arrive.
        key_types: by operator uid.
    """

    def __init__(
        self, outputs: Mapping[str, Collector], key_types: Mapping[str, tuple[str, ...]]
    ) -> None:
        self._outputs = outputs
        self._codecs = {uid: KeyCodec(types) for uid, types in key_types.items()}

    def __call__(self, attempt: Attempt) -> list[bytes]:
        """Run the epoch as it is, and again with single rows a batch and on another day.

        Raises:
            NotDeterministic: the second attempt sent other rows or changed state otherwise.
        """
        _, staged = attempt(_CUTS[0])
        first = self._sent(), self._written(staged)
        with _on_another_day():
            acks, staged = attempt(_CUTS[1])
        again = self._sent(), self._written(staged)
        for name, rows in first[0].items():
            self._compare_rows(name, rows, again[0][name])
        self._compare_state(first[1], again[1])
        return acks

    def _sent(self) -> dict[str, list[tuple[int, dict[str, Any]]]]:
        return {
            name: [(n, row) for n, rows in sorted(one.by_subtask().items()) for row in rows]
            for name, one in self._outputs.items()
        }

    def _written(self, staged: StagedFrames) -> dict[tuple[str, bytes], bytes | None]:
        """The last value of each stored key, by operator; of deleted ranges their begin."""
        written: dict[tuple[str, bytes], bytes | None] = {}
        for lease, frames in staged.frames.items():
            for frame in map(decode_frame, frames):
                written |= {(lease.uid, start): None for start, _ in frame.ranges}
                written |= {
                    (lease.uid, k): v for k, v in zip(frame.keys, frame.values, strict=True)
                }
        return written

    def _compare_rows(self, name: str, first: list[Any], again: list[Any]) -> None:
        for number, (one, other) in enumerate(zip_longest(first, again)):
            if one != other:
                where = f"side_output={name}" if name else "output=main"
                raise NotDeterministic(
                    f"the epoch sent another row when it was run again: {where} row={number} "
                    f"first={one and one[1]} again={other and other[1]}; {_ADVICE}"
                )

    def _compare_state(
        self,
        first: Mapping[tuple[str, bytes], bytes | None],
        again: Mapping[tuple[str, bytes], bytes | None],
    ) -> None:
        for uid, entry in sorted(first.keys() | again.keys()):
            one, other = first.get((uid, entry)), again.get((uid, entry))
            if one != other or ((uid, entry) in first) != ((uid, entry) in again):
                raise NotDeterministic(
                    f"the epoch changed state otherwise when it was run again: operator={uid} "
                    f"{self._named(uid, entry)} first={one!r:.80} again={other!r:.80}; {_ADVICE}"
                )

    def _named(self, uid: str, entry: bytes) -> str:
        """The key of a stored key, and what of it is stored there."""
        kind = entry[2]
        if kind == KEYED_STATE:
            raw, what = prefix_of(entry)[KEY_AT:], "state"
        elif kind <= PROCESSING_TIMERS:
            raw, what = timer_parts(entry)[2], "timer"
        else:
            return "of its expiries"
        key = self._codecs[uid].decode(raw)
        return f"key={key[0] if len(key) == 1 else key!r} of={what}"


_ADVICE = (
    "take time from ctx.timer_service(), seed random numbers with the key, and keep what has to "
    "last in state: a function is run again on the same rows after a failure"
)


@contextmanager
def _on_another_day() -> Iterator[None]:
    """Within, `time.time` and `time.time_ns` are ahead: an attempt may run at any time."""
    now, now_ns = time.time, time.time_ns
    later: Callable[[], float] = lambda: now() + _SKEW_SECONDS  # noqa: E731
    try:
        time.time = later
        time.time_ns = lambda: now_ns() + _SKEW_SECONDS * 1_000_000_000
        yield
    finally:
        time.time, time.time_ns = now, now_ns
