"""How the drivers of a world behave, and what is known of their starts."""

from dataclasses import dataclass, field

__all__ = ["Habits", "Restored"]


@dataclass(slots=True)
class Habits:
    """How drivers of a world behave; a test changes them at any time.

    Attributes:
        boot: seconds from the container's start to the fence.
        restore: seconds from the fence to the first epoch.
        epoch: seconds that an epoch takes.
        snapshot: seconds that a checkpoint or savepoint takes.
        savepoints_fail: how many of the next savepoints fail.
        deaf: drivers do not answer.
        stuck: drivers make no epochs and no checkpoints.
        ignore_stop: a driver that is told to stop goes on.
        linger: one that has taken its last snapshot does not end by itself.
        fail_restore: what a start ends with, instead of running.
        fail_restore_of: the image of which alone.
        finish_at: the epoch with which the input ends.
        rescale_fails: drivers refuse another number of executors.
        preflight: seconds that the pod of a preflight takes.
        preflight_fails: how preflights end: a sentence, empty if well.
        preflight_fails_of: with what the image begins of which alone.
        preflight_refused: why the API server makes no pod for a preflight.
        preflight_breaks: pods of preflights end without an answer.
        standby_fails: what a driver that stands by ends with, instead of running; empty if well.
        standby_behind: one that stands by never catches up.
        standby_says: what one that stands by has people read.
        standby_bytes: of the state of one that stands by; others have a gigabyte.
        standby_rate: rows per second of one that stands by; others take 100.
        standby_output: rows that one that stands by gives for each that it takes; others give 2.
        standby_differs: of so many epochs of one that stands by, one has other rows; 0 for none.
        load_window: seconds of load that they report.
        arrivals: rows per second that come, by job; drivers of other jobs say nothing of a load.
        each: rows per second that a subtask does.
        hot: times the mean of rows that one subtask has; 0 for drivers that do not say.
        clock_ahead: seconds by which drivers' clocks are ahead of the operator's.
        sinks: of every job by uid: the place from which it takes output back, if it does; None for
            drivers that do not say.
    """

    boot: float = 4.0
    restore: float = 3.0
    epoch: float = 1.0
    snapshot: float = 2.0
    savepoints_fail: int = 0
    deaf: bool = False
    stuck: bool = False
    ignore_stop: bool = False
    linger: bool = False
    fail_restore: str = ""
    fail_restore_of: str = ""
    finish_at: int = 0
    rescale_fails: bool = False
    preflight: float = 5.0
    preflight_fails: str = ""
    preflight_fails_of: str = ""
    preflight_refused: str = ""
    preflight_breaks: bool = False
    standby_fails: str = ""
    standby_behind: bool = False
    standby_says: str = ""
    standby_bytes: int = 1 << 30
    standby_rate: float = 100.0
    standby_output: float = 2.0
    standby_differs: int = 0
    load_window: float = 900.0
    arrivals: dict[str, float] = field(default_factory=dict)
    each: float = 1000.0
    hot: float = 0.0
    clock_ahead: float = 0.0
    sinks: dict[str, str] | None = field(default_factory=lambda: {"out": "folder"})


@dataclass(frozen=True, slots=True)
class Restored:
    """What a start began from.

    Attributes:
        newest: the epoch of the newest checkpoint that the lineage had at that moment.
        explicit: a person, or an operation on a savepoint, chose it.
    """

    attempt: int
    fence: int
    epoch: int
    newest: int
    explicit: bool
    path: str | None
