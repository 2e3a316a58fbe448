"""What the driver measures is what its documentation lists."""

from datetime import timedelta
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from moorage.cluster.metrics import METRICS
from moorage.driver.lookups import LookupDone
from moorage.driver.reporter import Reporter
from moorage.driver.views import (
    ChangelogView,
    CheckpointRecord,
    CheckpointView,
    ExecutorsView,
    FailureView,
    OddRows,
    SubtaskView,
    WatermarkView,
)
from moorage_state.mounted_secrets import MountedSecret, say

from .conftest import AT, Played


def samples(played: Played) -> dict[str, float]:
    """By name and the labels beside job and namespace, which all of them have."""
    text = played.call("GET", "/metrics")[1].decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert (labels.pop("job"), labels.pop("namespace")) == ("clicks", "team")
            found[f"{sample.name}{labels or ''}"] = sample.value
    return found


def record(checkpoint_id: int, state: Any, **more: Any) -> CheckpointRecord:
    return CheckpointRecord(checkpoint_id, "Checkpoint", state, AT, **more)


def subtask(number: int, rows: int, busy: float) -> SubtaskView:
    groups = (number, number)
    return SubtaskView(
        "counts", number, groups, "a:1", rows_in=rows, busy_seconds=busy, state_bytes=number
    )


def test_every_metric_is_there_once_there_is_something_to_measure(played):
    say("certificate", MountedSecret(ends=4e9))
    view = CheckpointView(7, 41, AT, 1000, 100, 2.0)
    done = record(7, "Completed", duration_seconds=2.0, bytes_total=1000, bytes_uploaded=100)
    played.say(phase="running", subtasks=(subtask(0, 0, 0.0),))
    played.say(
        phase="running",
        fence=4,
        epochs=1,
        epoch_seconds=0.3,
        last_checkpoint=view,
        completed_checkpoints=1,
        restore_seconds=1.5,
        lag_rows=12,
        watermarks=(WatermarkView("counts", 1500, "in"), WatermarkView("later", None, "in")),
        lag_looks=1,
        executors=ExecutorsView(3, 2, 1),
        checkpoints=(done,),
        changelog=ChangelogView(started=2, completed=1, last_seconds=3.0, last_bytes=50),
        opened={"live": (4, 0), "store": (2, 700)},
        subtasks=(subtask(0, 5, 1.0),),
    )
    played.endpoint._metrics(LookupDone("answered", keys=30, seconds=0.004))
    found = {name.partition("{")[0] for name in samples(played)}
    for measure in METRICS:
        suffix = "_bucket" if measure.kind == "histogram" else ""
        assert f"{measure.name}{suffix}" in found, measure.name


def test_look_ups_are_counted_by_how_they_ended(played):
    for keys in (30, 12):
        played.endpoint._metrics(LookupDone("answered", keys, 0.004))
    played.endpoint._metrics(LookupDone("unavailable", 0, 5.0))
    found = samples(played)
    assert found["moorage_state_lookups_total{'result': 'answered'}"] == 2
    assert found["moorage_state_lookups_total{'result': 'unavailable'}"] == 1
    assert found["moorage_state_lookup_keys_total"] == 42
    assert found["moorage_state_lookup_duration_seconds_count"] == 3


def test_an_unknown_value_is_left_out_and_not_zero(played):
    found = samples(played)
    assert "moorage_last_checkpoint_id" not in found
    assert "moorage_restore_seconds" not in found
    assert found["moorage_epochs_total"] == 0


def test_what_lies_in_a_secret_and_is_not_used_is_there(played):
    say("certificate", MountedSecret(refused=True, ends=4e9))
    say("store_keys", MountedSecret())
    found = samples(played)
    assert found["moorage_certificate_expiry_timestamp_seconds"] == 4e9
    assert found["moorage_secret_refused{'secret': 'certificate'}"] == 1
    assert found["moorage_secret_refused{'secret': 'store_keys'}"] == 0


def test_a_watermark_is_there_from_its_first_on(played):
    played.say(watermarks=(WatermarkView("counts", 1500, "in"), WatermarkView("later", None)))
    found = samples(played)
    assert found["moorage_watermark_timestamp_seconds{'operator': 'counts'}"] == 1.5
    assert "moorage_watermark_timestamp_seconds{'operator': 'later'}" not in found


def test_late_rows_and_rows_with_a_null_key_are_added_up_over_epochs(played):
    reporter = Reporter(lambda _progress: None)
    for epoch in (1, 2):
        reporter.epoch(epoch, 10, 0, None, odd=OddRows(epoch, 10 * epoch, late_dropped=4))
    played.say(odd=reporter.progress.odd)
    found = samples(played)
    assert found["moorage_late_rows_total"] == 3
    assert found["moorage_late_rows_dropped_total"] == 8
    assert found["moorage_null_key_rows_total"] == 30


def test_every_checkpoint_is_counted_once_however_often_progress_comes(played):
    begun = (record(8, "InProgress"), record(7, "InProgress"))
    failed = record(7, "Failed", failure=FailureView("CHECKPOINT_EXPIRED", "late"))
    done = record(
        8,
        "Completed",
        completed_at=AT + timedelta(seconds=2),
        duration_seconds=2.0,
        bytes_total=1000,
        bytes_uploaded=100,
    )
    played.say(checkpoints=begun)
    played.say(checkpoints=(begun[0], failed), failed_checkpoints=1)
    for _ in range(3):
        played.say(checkpoints=(done, failed), failed_checkpoints=1, completed_checkpoints=1)
    found = samples(played)
    assert found["moorage_checkpoint_duration_seconds_count{'kind': 'checkpoint'}"] == 1
    assert found["moorage_checkpoint_bytes_sum{'kind': 'incremental'}"] == 100
    assert found["moorage_checkpoint_bytes_sum{'kind': 'full'}"] == 1000
    assert found["moorage_checkpoints_total{'result': 'failed'}"] == 1
    listed = played.call("GET", "/checkpoints")[1]["checkpoints"]
    assert [(c["id"], c["state"]) for c in listed] == [(8, "Completed"), (7, "Failed")]
    assert listed[0]["durationMs"] == 2000
    assert listed[1]["failure"] == {"code": "CHECKPOINT_EXPIRED", "message": "late"}


def test_the_phase_is_one_of_those_that_are_listed(played):
    played.say(phase="rewinding")
    found = samples(played)
    assert found["moorage_phase{'phase': 'rewinding'}"] == 1
    assert sum(value for name, value in found.items() if name.startswith("moorage_phase")) == 1


def test_an_operator_has_as_many_series_however_many_subtasks_it_has(played):
    played.say(phase="running", subtasks=tuple(subtask(n, 0, 0.0) for n in range(1, 101)))
    played.say(phase="running", subtasks=tuple(subtask(n, 10 * n, n / 10) for n in range(1, 101)))
    found = {name: value for name, value in samples(played).items() if "_subtask_" in name}
    assert len(found) == 6
    key = "moorage_subtask_true_rate{{'operator': 'counts', 'subtask': '{}'}}"
    assert found[key.format("busiest")] == 100
    key = "moorage_subtask_state_bytes{{'operator': 'counts', 'subtask': '{}'}}"
    assert (found[key.format("busiest")], found[key.format("median")]) == (100, 50)
