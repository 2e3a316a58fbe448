"""Who holds which range: one run at a time, the newest wins. No clocks, no files.

Called by `RangeHost` for every request. A claim is made before the range is restored and outlives
its closing, so that a stalled driver of an older run can neither use nor retake the range.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from moorage_state.errors import StaleLease
from moorage_state.server.api import Lease, RangeSpec
from moorage_state.server.directory import run_order
from moorage_state.server.open_range import OpenRange

__all__ = ["Claim", "LeaseTable"]


@dataclass(slots=True, eq=False)
class Claim:
    """The right of `run` to the range; `opened` is the range once it is restored."""

    spec: RangeSpec
    run: str
    opened: OpenRange | None = None


class LeaseTable:
    """The claims of one state server. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._claims: dict[tuple[str, int], Claim] = {}

    def claim(self, spec: RangeSpec, run: str) -> tuple[Claim, list[Claim]]:
        """A new claim, and the claims it ends, whose ranges the caller closes.

        Raises:
            StaleLease: a newer run holds or held some of these key groups.
        """
        with self._lock:
            overlapping = [c for c in self._claims.values() if _overlap(c.spec, spec)]
            for other in overlapping:
                if _is_newer(other.run, run):
                    raise StaleLease(
                        f"a newer run holds the range: uid={spec.uid} "
                        f"range={spec.start}-{spec.end} run={run} holder={other.run}"
                    )
            for other in overlapping:
                del self._claims[other.spec.uid, other.spec.start]
            claim = Claim(spec, run)
            self._claims[spec.uid, spec.start] = claim
            return claim, overlapping

    def install(self, claim: Claim, opened: OpenRange) -> None:
        """Make the restored range reachable.

        Raises:
            StaleLease: another claim was made meanwhile.
        """
        with self._lock:
            if self._claims.get((claim.spec.uid, claim.spec.start)) is not claim:
                raise StaleLease(
                    f"the range was taken while it was opened: uid={claim.spec.uid} "
                    f"start={claim.spec.start} run={claim.run}"
                )
            claim.opened = opened

    def get(self, lease: Lease) -> OpenRange:
        """The open range that the run of `lease` holds.

        Raises:
            StaleLease: it does not hold it, or must open it first.
        """
        uid, start, run = lease
        claim = self._claims.get((uid, start))
        if claim is not None and claim.run == run and claim.opened is not None:
            return claim.opened
        holder = claim.run if claim is not None else "nobody"
        raise StaleLease(
            f"the range is not open for this run: uid={uid} start={start} run={run} "
            f"holder={holder}; open it, unless a newer run took over"
        )

    def held(self, spec: RangeSpec, run: str) -> OpenRange | None:
        """The open range if exactly this one is open for `run`."""
        claim = self._claims.get((spec.uid, spec.start))
        same = claim is not None and claim.spec == spec and claim.run == run
        return claim.opened if claim is not None and same else None

    def release(self, lease: Lease) -> OpenRange | None:
        """Give up the lease; the range to close, None when its run does not hold it."""
        uid, start, run = lease
        with self._lock:
            claim = self._claims.get((uid, start))
            if claim is None or claim.run != run:
                return None
            # A claim without a range stays behind: it shuts out older runs.
            self._claims[uid, start] = Claim(claim.spec, run)
            return claim.opened

    def ranges(self, choose: Callable[[OpenRange], bool] = lambda _: True) -> list[OpenRange]:
        """The open ranges that are chosen, ordered by uid and start."""
        with self._lock:
            found = [c.opened for _, c in sorted(self._claims.items()) if c.opened is not None]
        return [opened for opened in found if choose(opened)]


def _overlap(one: RangeSpec, other: RangeSpec) -> bool:
    return one.uid == other.uid and one.start <= other.end and other.start <= one.end


def _is_newer(run: str, than: str) -> bool:
    left, right = run_order(run), run_order(than)
    return left is not None and right is not None and left > right
