import pytest

from moorage_api import StatefulSparkJob, cluster_problems, local_run_report


def job(manifest, changes):
    return StatefulSparkJob.model_validate(manifest(changes), by_alias=True, by_name=False)


def test_a_small_local_manifest_is_honoured_in_full(manifest):
    report = local_run_report(job(manifest, {}))
    assert report.ignored == ()
    assert report.unsupported == ()


def test_fields_that_mean_nothing_without_a_cluster_are_named_if_the_manifest_gives_them(manifest):
    report = local_run_report(
        job(
            manifest,
            {
                "spec.image": "registry/clicks:1",
                "spec.executor.podTemplate": {"spec": {}},
                "spec.upgrade": {"mode": "Stateless"},
                "spec.scaling.autoscaler": {"enabled": True},
                "spec.application.env": [
                    {"name": "A", "value": "1"},
                    {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                ],
            },
        )
    )
    assert report.ignored == (
        "spec.image",
        "spec.scaling.autoscaler",
        "spec.executor.podTemplate",
        "spec.upgrade",
        "spec.application.env[1].valueFrom",
    )
    assert report.unsupported == ()


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("spec.state.backend", "batch", "spec.bounded"),
        ("spec.sinks.publishWith", "commit", "spec.sinks.publishWith"),
        ("spec.scaling.repartition", "Offline", "spec.scaling.repartition"),
        ("spec.savepoint.schedule", {"cron": "0 3 * * *"}, "spec.savepoint.schedule"),
        ("spec.restore", {"mode": "Snapshot", "snapshotName": "a"}, "spec.restore.mode"),
    ],
)
def test_what_this_release_cannot_do_is_said_and_not_passed_over(manifest, path, value, field):
    (problem,) = local_run_report(job(manifest, {path: value})).unsupported
    assert problem.field == field
    assert problem.reason
    assert problem.fix


@pytest.mark.parametrize(
    ("backend", "storage", "refused"),
    [
        ("jobmanager", None, True),
        ("jobmanager", "filesystem", False),
        ("rocksdb", "JobManager", True),
        ("hashmap", "driver", True),
        (None, "driver", True),
        (None, None, False),
        ("filesystem", None, False),
    ],
)
def test_a_changelog_is_refused_where_checkpoints_are_no_files(manifest, backend, storage, refused):
    changes: dict[str, object] = {"spec.state.changelog": True}
    if backend:
        changes["spec.state.backend"] = backend
    if storage:
        changes["spec.state.options"] = {"state.checkpoint-storage": storage}
    found = local_run_report(job(manifest, changes)).unsupported
    assert [one.field for one in found] == ["spec.state.changelog"] * refused


def test_the_mode_of_rescales_counts_on_one_machine_too(manifest):
    assert local_run_report(job(manifest, {"spec.scaling.mode": "Restart"})).ignored == ()


@pytest.mark.parametrize(
    "backend", ["rocksdb", "hashmap", "forst", "jobmanager", "filesystem", "a.b.C", "a.b:C", "a:C"]
)
def test_backends_and_their_options_are_supported(manifest, backend):
    changes = {
        "spec.state.backend": backend,
        "spec.state.options": {"state.backend.rocksdb.thread.num": "4"},
    }
    assert local_run_report(job(manifest, changes)).unsupported == ()


def test_batch_is_supported_where_input_ends(manifest):
    changes = {"spec.state.backend": "batch", "spec.bounded": True}
    assert local_run_report(job(manifest, changes)).unsupported == ()


def test_what_only_one_machine_can_do_with_backends_is_refused_on_a_cluster(manifest):
    changes = {
        "spec.state.backend": "jobs.backends.MyFactory",
        "spec.state.options": {"state.backend.rocksdb.localdir": "/mnt/fast"},
    }
    problems = {p.field: p for p in cluster_problems(job(manifest, changes))}
    assert "spec.state.backend" not in problems
    (field,) = [name for name in problems if "localdir" in name]
    assert "state.local" in problems[field].reason


def test_a_cluster_needs_more_than_a_laptop(manifest):
    fields = [problem.field for problem in cluster_problems(job(manifest, {}))]
    assert fields == ["spec.image", "spec.application.mainFile", "spec.state.savepointDir"]


def test_a_manifest_for_a_cluster_has_no_problem_there(manifest):
    complete = {
        "spec.image": "registry/clicks:1",
        "spec.application.mainFile": "local:///app/job.py",
        "spec.state.checkpointDir": "s3://state/clicks",
        "spec.state.savepointDir": "s3://savepoints/clicks",
    }
    assert cluster_problems(job(manifest, complete)) == []


@pytest.mark.parametrize("url", ["memory://x", "file://./x"])
def test_a_directory_that_only_one_process_or_machine_has_is_none_for_a_cluster(manifest, url):
    problems = cluster_problems(job(manifest, {"spec.state.checkpointDir": url}))
    assert "spec.state.checkpointDir" in [problem.field for problem in problems]
