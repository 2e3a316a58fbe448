"""From the text of a failed Spark job back to the error that a subtask raised."""

import pickle

import pytest
from py4j.protocol import Py4JNetworkError

from moorage.cli.exit_codes import ExitCode, exit_code
from moorage.engine.acks import EpochConflict
from moorage.engine.task_failures import (
    SourceOffsetsLost,
    SparkEnded,
    SubtaskFailure,
    UserFunctionError,
    ask_spark,
    failure_of,
)
from moorage_state.errors import (
    Bug,
    CorruptState,
    LocalDiskError,
    MoorageError,
    Retryable,
    StaleLease,
    StoreUnavailable,
    UserError,
    VersionGone,
    VersionMismatch,
)

PYTHON = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/job/subtask.py", line 12, in run
    raise SubtaskFailure("user_function", f"[moorage:bug] {where}")
{name}: {message}
"""
JVM = """An error occurred while calling o78.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: {message}
\tat org.apache.spark.api.python.BasePythonRunner.read(PythonRunner.scala:1136)
\tat java.base/java.lang.Thread.run(Thread.java:840)
Driver stacktrace:
\tat scala.Option.foreach(Option.scala:437)
Caused by: java.lang.Error: another
"""


def from_spark(failure):
    name = "moorage.engine.task_failures.SubtaskFailure"
    return RuntimeError(PYTHON.format(name=name, message=failure, where="{where}"))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("user_function", UserFunctionError),
        ("user_error", UserError),
        ("retryable", Retryable),
        ("store_unavailable", StoreUnavailable),
        ("epoch_conflict", Retryable),
        ("epoch_incomplete", Retryable),
        ("stale_lease", StaleLease),
        ("version_mismatch", VersionMismatch),
        ("version_gone", VersionGone),
        ("local_disk_error", LocalDiskError),
        ("corrupt_state", CorruptState),
        ("bug", Bug),
    ],
)
def test_a_subtasks_code_comes_back_as_its_error(code, kind):
    error = failure_of(from_spark(SubtaskFailure(code, "it broke: uid=count")))
    assert type(error) is kind
    assert str(error) == "it broke: uid=count"


def test_an_unknown_code_is_still_an_error_of_ours_with_its_text():
    error = failure_of(from_spark(SubtaskFailure("from_the_future", "it broke")))
    assert type(error) is MoorageError
    assert "code=from_the_future it broke" in str(error)


def test_an_error_of_ours_passes_as_it_is():
    conflict = EpochConflict("two attempts")
    assert failure_of(conflict) is conflict


def test_a_failure_without_spark_between_is_understood_too():
    assert type(failure_of(SubtaskFailure("stale_lease", "x"))) is StaleLease


def test_the_message_keeps_the_users_trace_and_loses_sparks():
    message = "operator=count: KeyError: 'x'\nTraceback:\n  File job.py\nKeyError: 'x'"
    text = (
        f"SubtaskFailure: [moorage:user_function] {message}\n\n\tat org.apache.spark.Task.run()\n"
    )
    error = failure_of(RuntimeError(text))
    assert str(error) == message


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: [moorage:fenced] is what the row said",
        'File "x.py": raise SubtaskFailure("[moorage:fenced] x")\nValueError: boom',
    ],
)
def test_a_mark_in_user_data_is_not_ours(text):
    assert type(failure_of(RuntimeError(f"Traceback:\n{text}"))) is UserError


@pytest.mark.parametrize(
    "message",
    [
        "ExecutorLostFailure (executor 1 exited caused by one of the running tasks)",
        "FetchFailed(BlockManagerId(1), shuffleId=0)",
        "A shuffle map stage with indeterminate output was failed and retried.",
        "Python worker exited unexpectedly (crashed)",
        "SparkContext was shut down",
    ],
)
def test_a_loss_of_processes_is_tried_again_and_says_what_was_lost(message):
    error = failure_of(RuntimeError(JVM.format(message=message)))
    assert type(error) is Retryable
    assert message in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    "cause",
    [
        "java.io.IOException: [INTERNAL_ERROR_BROADCAST] Failed to get broadcast_5_piece0",
        "java.io.IOException: Connecting to /10.0.0.5:7079 failed in the last 9500 ms",
        "java.util.concurrent.TimeoutException: Futures timed out after [120 seconds]",
        "java.lang.OutOfMemoryError: Java heap space",
    ],
)
def test_a_lost_peer_and_too_little_memory_are_tried_again(cause):
    lost = f"Lost task 0.3 in stage 3.0 (TID 9) (10.0.0.6 executor 2): {cause}"
    assert type(failure_of(RuntimeError(JVM.format(message=lost)))) is Retryable
    assert type(failure_of(RuntimeError(cause))) is Retryable


@pytest.mark.parametrize(
    "cause",
    [
        "org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] x. SQLSTATE: 22012",
        "org.apache.spark.sql.AnalysisException: cannot resolve x",
        PYTHON.format(name="ZeroDivisionError", message="division by zero", where=""),
    ],
)
def test_a_stage_that_failed_for_the_jobs_own_code_is_not_tried_again(cause):
    assert type(failure_of(RuntimeError(JVM.format(message=cause)))) is UserError


@pytest.mark.parametrize(
    "error",
    [
        Py4JNetworkError("Answer from Java side is empty"),
        Py4JNetworkError("An error occurred while trying to connect to the Java server"),
        ConnectionResetError("reset by peer"),
    ],
)
@pytest.mark.scenario(41)
def test_a_dead_jvm_means_that_spark_has_ended(error):
    found = failure_of(error)
    assert type(found) is SparkEnded
    assert str(error) in str(found)
    with pytest.raises(SparkEnded):
        ask_spark(lambda: raises(error))


def raises(error):
    raise error


def test_a_full_volume_is_named_as_one():
    error = failure_of(RuntimeError(JVM.format(message="IOException: No space left on device")))
    assert type(error) is LocalDiskError
    assert "make room" in str(error)


@pytest.mark.scenario(36)
@pytest.mark.parametrize(
    "cause",
    [
        (
            "org.apache.spark.sql.kafka010.KafkaIllegalStateException: "
            "[KAFKA_DATA_LOSS.START_OFFSET_RESET] Some data may have been lost. SQLSTATE: 22000"
        ),
        (
            "java.lang.IllegalStateException: Cannot fetch records in [10, 20) (Some data may "
            "have been lost because they are not available in Kafka any more; either the data was "
            "aged out"
        ),
        (
            "org.apache.kafka.clients.consumer.OffsetOutOfRangeException: Fetch position 3 is out "
            "of range for partition clicks-0"
        ),
    ],
)
def test_a_source_without_the_next_offsets_is_named_and_neither_tried_again_nor_skipped(cause):
    error = failure_of(RuntimeError(JVM.format(message=cause)))
    assert type(error) is SourceOffsetsLost
    assert error.code == "source_offsets_lost"
    assert exit_code(error) == ExitCode.BAD_INPUT
    assert "nothing was skipped" in str(error)


@pytest.mark.parametrize(
    "gap",
    [
        "Starting offset for clicks-0 was 300 but consumer reset to 500",
        "Could not read records in offset [10, 20) for topic partition clicks-0 with consumer x",
        "Partition clicks-0 offset was changed from 900 to 12",
    ],
)
def test_the_gap_that_kafka_left_is_named_with_the_way_on(gap):
    cause = (
        "org.apache.spark.sql.kafka010.KafkaIllegalStateException: [KAFKA_DATA_LOSS.X] Some data "
        "may have been lost because they are not available in Kafka any more;\neither the data "
        "was aged out by Kafka or the topic may have been deleted before all the data in the\n"
        f"topic was processed.\nReason: {gap.replace(' with', chr(10) + 'with')}. SQLSTATE: 22000"
    )
    said = str(failure_of(RuntimeError(JVM.format(message=cause))))
    assert f"nothing was skipped: {gap}; restore from a newer point" in said
    assert "set spec.restore.onMissingOffsets: Skip" in said


def test_an_error_in_a_transformation_shows_its_last_line_first_and_its_trace():
    text = PYTHON.format(name="ZeroDivisionError", message="division by zero", where="")
    error = failure_of(RuntimeError(text))
    assert type(error) is UserError
    first, *rest = str(error).splitlines()
    assert first == "spark could not run the epoch: ZeroDivisionError: division by zero"
    assert any('File "/job/subtask.py"' in line for line in rest)


def test_an_error_of_spark_sql_is_the_users():
    error = failure_of(RuntimeError("[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012\n== DF =="))
    assert str(error).endswith("epoch: [DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012")


def test_an_error_without_text_is_an_error():
    assert type(failure_of(RuntimeError())) is UserError


def test_a_failure_can_be_pickled():
    failure = pickle.loads(pickle.dumps(SubtaskFailure("bug", "x")))
    assert (str(failure), failure.code) == ("[moorage:bug] x", "bug")
