"""Runs that are shown: one with everything, one that just began, one that is very large."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from moorage.driver.types import JobProgress
from moorage.driver.views import (
    CheckpointRecord,
    CheckpointView,
    EpochPhases,
    FailureView,
    GraphView,
    NodeView,
    OddRows,
    QueryableView,
    ServerPart,
    SubtaskView,
    WatermarkView,
)
from moorage.page.history import RunHistory

AT = datetime(2026, 11, 23, 12, tzinfo=UTC)

GRAPH = GraphView(
    (
        NodeView("source", "clicks", "kafka"),
        NodeView("transform", "clicks", "only_real"),
        NodeView("source", "payments", "json /data/in/payments"),
        NodeView("operator", "sessions", "Sessions by user"),
        NodeView("operator", "join", "JoinPaymentsWithTheirSessions by user, order"),
        NodeView("sink", "files", "FileSink"),
        NodeView("sink", "late", "KafkaSink"),
    ),
    ((0, 1, ""), (1, 3, ""), (2, 4, "broadcast"), (3, 4, ""), (4, 5, ""), (3, 6, "late rows")),
)


def subtasks(epoch: int) -> tuple[SubtaskView, ...]:
    """After so many epochs; subtask 0 has twice the rows of the others."""
    return tuple(
        SubtaskView(
            uid,
            i,
            (32 * i, 32 * i + 31),
            f"10.0.0.{i % 2}:7077",
            rows_in=epoch * (2000 if i == 0 else 1000),
            rows_out=epoch * 900,
            timers_fired=epoch * 3,
            late=epoch if uid == "sessions" else 0,
            null_keys=2 if uid == "join" else 0,
            # Whose rows another operator reads: how long it works is not known.
            busy_seconds=0.0 if uid == "sessions" else epoch * (0.9 if i == 0 else 0.3),
            last_seconds=0.3,
            state_bytes=(i + 1) << 20,
        )
        for uid in ("sessions", "join")
        for i in range(4)
    )


def checkpoint(number: int, state: str = "Completed", kind: str = "Checkpoint") -> CheckpointRecord:
    """One that took longer the later it was; two servers wrote it."""
    record = CheckpointRecord(
        number,
        kind,  # type: ignore[arg-type]  # one of the two words
        state,  # type: ignore[arg-type]  # one of the three words
        AT + timedelta(seconds=3 * number),
    )
    if state == "Failed":
        failure = FailureView("CHECKPOINT_EXPIRED", "Checkpoint expired before completing.")
        return replace(record, failure=failure, duration_seconds=2.5)
    if state == "InProgress":
        return record
    ranges = tuple(("join", 32 * i, (i + 1) << 20) for i in range(4))
    return replace(
        record,
        completed_at=record.triggered_at + timedelta(seconds=2),
        duration_seconds=1.0 + number / 10,
        bytes_total=20 << 20,
        bytes_uploaded=number << 18,
        objects_written=6,
        epoch=3 * number,
        url=f"s3://state/savepoints/sp-{number}" if kind == "Savepoint" else f"chk-{number}",
        pause_seconds=0.02,
        upload_seconds=0.7,
        parts=(
            ServerPart("10.0.0.0:7077", 0.7, 3, 3 << 20, ranges[:2]),
            ServerPart("10.0.0.1:7077", 0.4, 3, 2 << 20, ranges[2:]),
        ),
    )


def sample_run(epochs: int = 40) -> RunHistory:
    """A history that has heard of so many epochs, one a second."""
    clock = [0.0]
    history = RunHistory("clicks-per-session", lambda: clock[0], lambda: AT)
    newest, last = checkpoint(9), subtasks(epochs)
    progress = JobProgress(
        phase="running",
        parallelism=4,
        max_parallelism=128,
        rows_per_second=5000.0,
        rows_total=5000 * epochs,
        state_bytes=20 << 20,
        restored_from="chk-7",
        rewinds=1,
        message="going back to the last checkpoint: an executor was lost",
        odd=OddRows(sum(one.late for one in last), sum(one.null_keys for one in last), 1),
        graph=GRAPH,
        checkpoints=(
            checkpoint(12, "InProgress"),
            checkpoint(11, "Failed"),
            checkpoint(10, kind="Savepoint"),
            *(checkpoint(n) for n in range(9, 0, -1)),
        ),
        retain=3,
        completed_checkpoints=9,
        failed_checkpoints=1,
        last_failure=FailureView("CHECKPOINT_EXPIRED", "Checkpoint expired before completing."),
        last_checkpoint=CheckpointView(9, 27, newest.triggered_at, 20 << 20, 9 << 18, 1.9),
        queryable=(QueryableView("counts", "sessions/count, value of long, by string"),),
        configuration=(("Checkpoints every", "3.0 s"), ("Kept", "the newest 3")),
    )
    for number in range(1, epochs + 1):
        clock[0] += 1.0
        seconds = 0.6 + 0.3 * (number % 5 == 0)
        own = seconds - 0.35
        phases = EpochPhases(
            wait=0.2,
            plan=0.05,
            source=0.12,
            shuffle=0.08,
            function=0.5 * own,
            state=0.35 * own,
            sink=0.15 * own,
            commit=0.05,
            output=0.05,
        )
        slow = WatermarkView("sessions", int(AT.timestamp() * 1000) - 65_000 - 900 * (number % 9))
        history(
            replace(
                progress,
                epochs=number,
                epoch=number,
                epoch_seconds=seconds,
                epoch_rows=5000,
                epoch_phases=phases,
                lag_rows=12_000 + 700 * (number % 7),
                watermarks=(
                    replace(slow, held_by="clicks"),
                    replace(
                        slow, uid="join", time_ms=(slow.time_ms or 0) + 20_000, held_by="payments"
                    ),
                ),
                subtasks=subtasks(number),
            )
        )
    return history


def new_run() -> RunHistory:
    """A history of a job of which nothing is known but its name."""
    return RunHistory("clicks", lambda: 0.0, lambda: AT)


def failing_run() -> RunHistory:
    """A history of a run whose store is gone: checkpoints fail, and an epoch goes on and on."""
    progress = sample_run().facts().progress
    records = tuple(checkpoint(n, "Failed") for n in range(30, 20, -1))
    history = RunHistory("clicks-per-session", lambda: 0.0, lambda: AT)
    for number, record in enumerate(reversed(records), 1):
        failure = FailureView("FINALIZE_CHECKPOINT_FAILURE", f"checkpoint {record.checkpoint_id}")
        history(
            replace(
                progress,
                phase="rewinding",
                message="going back to the last checkpoint: the store does not answer",
                storage_error="s3://state: connection refused",
                epoch_began=AT - timedelta(minutes=12),
                in_epoch=True,
                rows_per_second=0.0,
                checkpoints=records,
                failed_checkpoints=number,
                last_failure=failure,
                rewinds=2,
            )
        )
    return history


def large_run() -> RunHistory:
    """A history with long names, a wide graph and a thousand subtasks."""
    history = sample_run()
    long = "join-payments-with-their-sessions-and-with-the-rates-of-" + "their-day-" * 4
    sources = tuple(NodeView("source", f"{long}{n}", "kafka " + "topic-" * 40) for n in range(12))
    operators = tuple(NodeView("operator", f"{long}{n}-op", "J" * 90) for n in range(12))
    graph = GraphView(sources + operators, tuple((n, 12 + n // 2, "late rows") for n in range(12)))
    one = subtasks(1)[0]
    many = tuple(
        replace(one, uid=f"{long}0-op", subtask=n, place="executor-host.some.long.name:7077")
        for n in range(1000)
    )
    message = f"an executor was lost: {long * 3}"
    progress = history.facts().progress
    larger = RunHistory(long * 3, lambda: 0.0, lambda: AT)
    larger(replace(progress, graph=graph, subtasks=many, parallelism=1000, message=message))
    return larger
