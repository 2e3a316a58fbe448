"""A job whose checkpoints and savepoints live in a bucket: killed, taken over, gone on."""

import pytest
from moorage_testing.jobs import kill_group, wait_until
from moorage_testing.oracle import expected, judge

from moorage_state.snapshots import CheckpointStore, LineageLog, retained, verify_files
from moorage_state.stores import S3Address, open_store

pytestmark = [pytest.mark.chaos, pytest.mark.soak, pytest.mark.timeout(300)]


def checkpoints_in(url: str) -> list[int]:
    entries = [entry for _, entry in LineageLog.open(open_store(url)).read()]
    return [checkpoint.checkpoint_id for checkpoint in retained(entries)]


def test_a_killed_job_comes_back_from_its_bucket(
    make_home, small_event_files, s3_server, monkeypatch
):
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    url = s3_server.url("job-in-a-bucket/checkpoints")
    address = S3Address.parse(url)
    state = {
        "checkpointDir": f"s3://{address.bucket}/{address.prefix}",
        "s3": {"endpoint": address.endpoint, "region": address.region, "pathStyle": True},
    }
    home = make_home("job", small_event_files, state=state)
    process = home.start()

    def has_checkpoint() -> bool:
        assert process.poll() is None, home.log()
        return bool(checkpoints_in(url))

    wait_until(has_checkpoint, 120, f"a checkpoint in {url}")
    kill_group(process)
    said = home.run("--take-over")
    assert "restored from chk-" in said
    assert judge(home.path, expected(small_event_files), url) == []
    store = open_store(url)
    entries = [entry for _, entry in LineageLog.open(store).read()]
    for checkpoint in checkpoints_in(url):
        verify_files(store, CheckpointStore(store).load_id(entries, checkpoint), full=True)
