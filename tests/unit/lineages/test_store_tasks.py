"""What store tasks do in a store, on every kind of store."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from moorage_testing.fault_proxy import Chaos, Fault, FaultProxy
from moorage_testing.faulty_store import Crash, FaultyStore
from moorage_testing.faulty_store import Fault as StoreFault
from moorage_testing.savepoint_dirs import (
    OWNER,
    START,
    announce,
    checkpoint,
    lineage,
    make_savepoint,
    savepoint_manifest,
)

from moorage_state.snapshots import (
    LineageLog,
    Owner,
    Released,
    Run,
    encode_manifest,
    manifest_digest,
)
from moorage_state.snapshots.savepoints import ATTEMPT_KEY, MANIFEST_KEY
from moorage_state.snapshots.store_tasks import (
    Answer,
    StoreTaskRequest,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
    run_store_task,
)
from moorage_state.snapshots.store_tasks.messages import ANSWER_BYTES
from moorage_state.stores import Retries, S3Address, S3Credentials, S3Store, open_store
from moorage_state.stores.s3.calls import connection_to


def store_task(kind, **fields):
    return StoreTaskRequest(id="e-1", kind=kind, **fields)


def run(kind, open_=open_store, **fields):
    return run_store_task(store_task(kind, **fields), open_, clock=lambda: START)


def result(kind, **fields):
    answer = run(kind, **fields)
    assert answer.state == "Completed", answer
    return answer.result


# -- inspect -----------------------------------------------------------------------------------


def test_a_directory_that_nobody_wrote_to_has_no_lineage(places):
    found = result("Inspect", checkpoint_dir=places.url("state"))
    assert found == {"exists": False, "read_at": START.isoformat()}


def test_an_inspection_tells_what_a_start_would_find(places):
    store, url = places.store("state"), places.url("state")
    writer = lineage(store)
    writer.append(Run(writer.fence, 0, order_id="nonce-0"))
    checkpoint(store, writer, 1)
    checkpoint(store, writer, 2)
    there, gone = places.url("sp"), places.url("never")
    digest = make_savepoint(places.store("sp"))
    announce(writer, there, digest, 7)
    announce(writer, gone, digest, 8)
    found = result("Inspect", checkpoint_dir=url)
    assert found["owner"] == ["test", "default", "clicks", "job-uid"]
    assert (found["lineage"], found["fence"], found["released"]) == (writer.lineage, 1, False)
    assert found["newest"]["checkpoint_id"] == 2
    assert found["newest"]["path"].partition("?")[0].endswith("state/chk-2") or (
        "memory://" in url and found["newest"]["path"] == f"{url}/chk-2"
    )
    assert found["previous"]["checkpoint_id"] == 1
    assert found["order_ids"] == ["nonce-0"]
    assert list(found["savepoints"]) == [there]
    assert found["savepoints"][there]["manifest_digest"] == digest


def test_a_savepoint_whose_place_another_one_took_is_not_the_announced_one(places):
    writer = lineage(places.store("state"))
    make_savepoint(places.store("sp"))
    announce(writer, places.url("sp"), "sha256:" + "0" * 64, 7)
    assert result("Inspect", checkpoint_dir=places.url("state"))["savepoints"] == {}


def test_a_lineage_whose_checkpoints_are_all_retired_is_not_an_empty_one(places):
    store = places.store("state")
    checkpoint(store, lineage(store), 1)
    with pytest.raises(Crash):
        run("DeleteLineage", _crashing(store, "chk-1/"), checkpoint_dir="x", owner=OWNER)
    answer = run("Inspect", checkpoint_dir=places.url("state"))
    assert (answer.state, answer.code) == ("Failed", "restore_point_retired")


def test_a_directory_whose_volume_is_not_there_is_no_empty_store(tmp_path):
    answer = run("Inspect", checkpoint_dir=f"file://{tmp_path}/not/mounted")
    assert (answer.state, answer.code) == ("Failed", "store_denied")
    fresh = run("Inspect", checkpoint_dir=f"file://{tmp_path}/fresh")
    assert fresh.result["exists"] is False


# -- verify ------------------------------------------------------------------------------------


def test_a_whole_savepoint_is_found_with_who_made_it(places):
    digest = make_savepoint(places.store("sp"), "a", "ssnap-9")
    found = result("Verify", path=places.url("sp"))
    assert (found["found"], found["kind"], found["attempt"]) == (True, "savepoint", "ssnap-9")
    assert (found["digest"], found["checkpoint_id"], found["max_parallelism"]) == (digest, 7, 16)
    assert found["size_bytes"] > 0


def test_nothing_and_half_a_savepoint_are_not_found(places):
    assert result("Verify", path=places.url("none")) == {"found": False, "attempt": ""}
    places.store("sp").put(ATTEMPT_KEY, b"ssnap-9")
    assert result("Verify", path=places.url("sp")) == {"found": False, "attempt": "ssnap-9"}


@pytest.mark.parametrize("harm", ["missing", "cut"])
def test_a_savepoint_that_is_not_whole_is_corrupt(places, harm):
    store = places.store("sp")
    make_savepoint(store)
    key = "state/counts/0-15/1.parquet"
    if harm == "missing":
        store.delete(key)
    else:
        store.put(key, b"x")
    answer = run("Verify", path=places.url("sp"))
    assert (answer.code, answer.retryable) == ("corrupt_state", False)
    assert key in answer.message


def test_a_manifest_of_a_newer_moorage_is_told_as_that(places):
    store = places.store("sp")
    data = encode_manifest(savepoint_manifest(store, "a")).partition(b"\n")[2]
    body = data.replace(b'"format": 1', b'"format": 7')
    digest = hashlib.sha256(body).hexdigest()
    store.put(MANIFEST_KEY, f"MOORAGE-MANIFEST 7 sha256:{digest} {len(body)}\n".encode() + body)
    assert run("Verify", path=places.url("sp")).code == "newer_format"


def test_a_checkpoint_is_verified_by_the_log_that_names_it(places):
    store = places.store("state")
    checkpoint(store, lineage(store), 3)
    base, mark, options = places.url("state").partition("?")
    found = result("Verify", path=f"{base}/chk-3{mark}{options}") if "memory" not in base else None
    if found is not None:
        assert (found["found"], found["kind"], found["checkpoint_id"]) == (True, "checkpoint", 3)


# -- delete ------------------------------------------------------------------------------------


def test_a_savepoint_is_deleted_with_all_that_its_manifest_names_and_nothing_else(places):
    store = places.store("sp")
    digest = make_savepoint(store)
    store.put("notes.txt", b"a person's")
    done = result("Delete", path=places.url("sp"), digest=digest, attempt="ssnap-1")
    assert (done["deleted"], done["left"]) == (5, "")
    assert places.keys("sp") == ["notes.txt"]
    assert result("Delete", path=places.url("sp"), digest=digest, attempt="ssnap-1") == {
        "deleted": 0,
        "left": "missing",
    }


def test_another_savepoint_at_the_same_place_is_left_alone(places):
    make_savepoint(places.store("sp"))
    before = places.keys("sp")
    wrong = "sha256:" + "0" * 64
    assert result("Delete", path=places.url("sp"), digest=wrong)["left"] == "other"
    assert result("Delete", path=places.url("sp"), attempt="ssnap-2")["left"] == "foreign"
    assert result("Delete", path=places.url("sp"))["left"] == "foreign"
    assert places.keys("sp") == before


def test_what_an_attempt_left_half_done_goes_and_that_of_others_stays(places):
    store = places.store("sp")
    store.put(ATTEMPT_KEY, b"ssnap-1")
    store.put("state/counts/0-15/a.parquet", b"x")
    store.put("f3r0-ab12/packs/files-ab-0-1", b"x")
    store.put("else/where", b"x")
    assert result("Delete", path=places.url("sp"), attempt="ssnap-2")["left"] == "foreign"
    assert result("Delete", path=places.url("sp"), attempt="ssnap-1")["left"] == ""
    assert places.keys("sp") == ["else/where"]


def test_a_checkpoint_is_never_deleted_as_a_savepoint(places):
    store = places.store("state")
    checkpoint(store, lineage(store), 1)
    data = store.get("chk-1/MANIFEST")
    store.put(MANIFEST_KEY, data)
    answer = result("Delete", path=places.url("state"), digest=manifest_digest(data))
    assert answer["left"] == "checkpoint"
    assert "chk-1/MANIFEST" in places.keys("state")


def _crashing(store, contains, fault=StoreFault.CRASH_BEFORE):
    """Opens the store so that the process dies at a delete."""
    faulty = FaultyStore(store)
    faulty.inject(fault, "delete", contains)
    return lambda _url: faulty


@pytest.mark.parametrize("fault", [StoreFault.CRASH_BEFORE, StoreFault.CRASH_AFTER])
@pytest.mark.parametrize("at", ["0.parquet", "2.parquet", MANIFEST_KEY, ATTEMPT_KEY])
def test_a_deletion_that_dies_anywhere_is_seen_and_can_be_taken_up(tmp_path, at, fault):
    url = f"file://{tmp_path}/sp"
    store = open_store(url, create=True)
    digest = make_savepoint(store)
    with pytest.raises(Crash):
        run("Delete", _crashing(store, at, fault), path=url, digest=digest, attempt="ssnap-1")
    seen = run("Verify", path=url)
    untouched = at == "0.parquet" and fault is StoreFault.CRASH_BEFORE
    assert untouched or seen.code == "corrupt_state" or seen.result["found"] is False
    result("Delete", path=url, digest=digest, attempt="ssnap-1")
    assert list(store.list("")) == []


def test_a_late_deletion_stops_when_somebody_began_anew(tmp_path):
    url = f"file://{tmp_path}/sp"
    store = open_store(url, create=True)
    digest = make_savepoint(store)

    class Overtaken(FaultyStore):
        def list(self, prefix, start_after=""):
            found = list(super().list(prefix, start_after))
            self.inner.put(ATTEMPT_KEY, b"ssnap-2")
            return iter(found)

    late = Overtaken(store)
    run("Delete", lambda _: late, path=url, digest=digest, attempt="ssnap-1")
    assert store.head("state/counts/0-15/0.parquet") is not None


# -- copy --------------------------------------------------------------------------------------


def copied(places, source):
    return result("Copy", path=places.url("late"), source=places.url(source), attempt="s-1")


def test_scenario_15_a_savepoint_is_copied_whole_and_stands_alone(places):
    make_savepoint(places.store("sp"))
    found = copied(places, "sp")
    assert (found["found"], found["kind"], found["attempt"]) == (True, "savepoint", "s-1")
    assert found["name"].endswith("late")
    assert (found["checkpoint_id"], found["epoch"]) == (7, 70)
    for key in places.keys("sp"):
        places.store("sp").delete(key)
    assert result("Verify", path=places.url("late")) == found
    done = result("Delete", path=places.url("late"), digest=found["digest"], attempt="s-1")
    assert (done["left"], places.keys("late")) == ("", [])


def test_scenario_15_of_a_lineage_that_is_copied_from_which_a_start_would_begin(places):
    store = places.store("state")
    assert run("Copy", path=places.url("late"), source=places.url("state")).code == "user_error"
    writer = lineage(store)
    assert copied(places, "state") == {"found": False, "attempt": ""}
    checkpoint(store, writer, 1)
    checkpoint(store, writer, 2)
    found = copied(places, "state")
    assert (found["kind"], found["checkpoint_id"]) == ("savepoint", 2)
    checkpoint(store, writer, 3)
    assert copied(places, "state") == found


def test_a_copy_goes_nowhere_where_another_began_and_beside_what_its_own_driver_did(places):
    make_savepoint(places.store("sp"))
    places.store("late").put(ATTEMPT_KEY, b"s-1")
    places.store("late").put("state/counts/0-15/0.parquet", b"half of it")
    assert copied(places, "sp")["found"]
    other = run("Copy", path=places.url("late"), source=places.url("sp"), attempt="s-2")
    assert other.code == "savepoint_name_conflict"


def test_a_copy_of_what_is_damaged_is_none(places):
    make_savepoint(places.store("sp"))
    places.store("sp").put("state/counts/0-15/1.parquet", b"other bytes")
    answer = run("Copy", path=places.url("late"), source=places.url("sp"), attempt="s-1")
    assert (answer.code, answer.retryable) == ("corrupt_state", False)
    assert MANIFEST_KEY not in places.keys("late")


@pytest.mark.parametrize("fault", [StoreFault.CRASH_BEFORE, StoreFault.CRASH_AFTER])
@pytest.mark.parametrize("at", ["0.parquet", "2.parquet"])
def test_a_copy_that_dies_anywhere_is_no_savepoint_and_is_taken_up(tmp_path, at, fault):
    source, url = f"file://{tmp_path}/sp", f"file://{tmp_path}/late"
    make_savepoint(open_store(source, create=True))
    faulty = FaultyStore(open_store(url, create=True))
    faulty.inject(fault, "put_file", at)

    def open_(where):
        return faulty if where == url else open_store(where)

    with pytest.raises(Crash):
        run("Copy", open_, path=url, source=source, attempt="s-1")
    assert result("Verify", path=url)["found"] is False
    assert result("Copy", path=url, source=source, attempt="s-1")["found"]


def test_a_copy_makes_the_directories_above_it_as_a_driver_does(tmp_path):
    make_savepoint(open_store(f"file://{tmp_path}/sp", create=True))
    late = f"file://{tmp_path}/volume/savepoints/clicks/late"
    (tmp_path / "volume").mkdir()
    assert result("Copy", path=late, source=f"file://{tmp_path}/sp", attempt="s-1")["found"]
    assert result("Verify", path=late)["found"]


def test_a_copy_goes_to_no_volume_that_is_not_mounted(tmp_path):
    make_savepoint(open_store(f"file://{tmp_path}/sp", create=True))
    folder = f"/not-mounted-{tmp_path.name}"
    answer = run("Copy", path=f"file://{folder}/late", source=f"file://{tmp_path}/sp", attempt="s")
    assert (answer.code, Path(folder).exists()) == ("store_denied", False)
    assert "mount its volume" in answer.message


def test_a_copy_that_may_not_make_its_directory_says_what_to_do(tmp_path):
    make_savepoint(open_store(f"file://{tmp_path}/sp", create=True))
    (tmp_path / "file").write_text("in the way")
    late = f"file://{tmp_path}/file/late"
    answer = run("Copy", path=late, source=f"file://{tmp_path}/sp", attempt="s-1")
    assert (answer.code, answer.retryable) == ("store_denied", False)
    assert "a file is in the place of a directory" in answer.message


def test_of_two_copies_of_one_attempt_the_first_counts_whatever_the_other_found(places):
    store, writer = places.store("state"), lineage(places.store("state"))
    checkpoint(store, writer, 1)

    class Overtaken(FaultyStore):
        def put_file(self, key, path):
            super().put_file(key, path)
            if not ended:
                ended.append(None)
                checkpoint(store, writer, 2)
                ended[0] = copied(places, "state")

    ended: list[Any] = []
    late = Overtaken(places.store("late"))
    answer = run(
        "Copy",
        lambda url: late if url == places.url("late") else open_store(url),
        path=places.url("late"),
        source=places.url("state"),
        attempt="s-1",
    )
    assert (answer.state, answer.result) == ("Completed", ended[0])
    assert answer.result["checkpoint_id"] == 2


def test_a_copy_under_which_the_directory_was_deleted_leaves_no_savepoint(places):
    make_savepoint(places.store("sp"))

    class Deleted(FaultyStore):
        def put_file(self, key, path):
            super().put_file(key, path)
            self.inner.delete(ATTEMPT_KEY)

    late = Deleted(places.store("late"))
    answer = run(
        "Copy",
        lambda url: late if url == places.url("late") else open_store(url),
        path=places.url("late"),
        source=places.url("sp"),
        attempt="s-1",
    )
    assert answer.state == "Failed"
    assert MANIFEST_KEY not in places.keys("late")


@pytest.mark.parametrize(
    ("name", "uid", "copies"),
    [("clicks", "job-uid", True), ("clicks", "", True), ("clicks", "new", False), ("b", "", False)],
)
def test_a_lineage_that_is_another_jobs_by_now_is_not_copied(tmp_path, name, uid, copies):
    source, late = f"file://{tmp_path}/state", f"file://{tmp_path}/late"
    store = open_store(source, create=True)
    checkpoint(store, lineage(store), 1)
    owner = Owner("test", "default", name, uid)
    answer = run("Copy", path=late, source=source, attempt="s-1", owner=owner)
    assert (answer.state == "Completed") is copies
    assert copies or "another job's by now" in answer.message


def test_a_request_says_nothing_that_an_older_image_need_not_know():
    assert "source" not in encode_request(store_task("Verify", path="s3://a/b"))


# -- release and delete a lineage --------------------------------------------------------------


def test_a_lineage_is_released_once_and_only_by_its_owner(places):
    url = places.url("state")
    assert result("Release", checkpoint_dir=url, owner=OWNER)["left"] == "missing"
    lineage(places.store("state"))
    other = Owner("test", "default", "clicks", "another-uid")
    assert result("Release", checkpoint_dir=url, owner=other)["left"] == "foreign"
    assert result("Release", checkpoint_dir=url, owner=OWNER)["released"] is True
    *_, (_, said) = LineageLog.open(places.store("state")).read()
    assert isinstance(said, Released)
    assert said.reason == "given up by the operator: store_task=e-1"
    entries = len(LineageLog.open(places.store("state")).read())
    assert result("Release", checkpoint_dir=url, owner=OWNER)["released"] is True
    assert len(LineageLog.open(places.store("state")).read()) == entries
    assert result("Inspect", checkpoint_dir=url)["released"] is True


def test_a_lineage_is_deleted_whole_and_what_is_not_its_own_stays(places):
    store, url = places.store("state"), places.url("state")
    writer = lineage(store)
    checkpoint(store, writer, 1)
    checkpoint(store, writer, 2)
    store.put(f"sinks/out/staged/{writer.lineage}/part-1.parquet", b"x")
    store.put("sinks/out/staged/another/part-1.parquet", b"x")
    store.put("readme.txt", b"a person's")
    other = Owner("test", "default", "clicks", "another-uid")
    assert result("DeleteLineage", checkpoint_dir=url, owner=other)["left"] == "foreign"
    assert result("DeleteLineage", checkpoint_dir=url, owner=OWNER)["left"] == ""
    assert places.keys("state") == ["readme.txt", "sinks/out/staged/another/part-1.parquet"]
    assert result("Inspect", checkpoint_dir=url)["exists"] is False


@pytest.mark.parametrize("at", ["chk-1/MANIFEST", "chk-2/", "00000000000000000005", "00001.json"])
def test_a_lineage_that_is_half_deleted_is_never_taken_for_one_to_start_from(tmp_path, at):
    url = f"file://{tmp_path}/state"
    store = open_store(url, create=True)
    writer = lineage(store)
    checkpoint(store, writer, 1)
    checkpoint(store, writer, 2)
    with pytest.raises(Crash):
        run("DeleteLineage", _crashing(store, at), checkpoint_dir=url, owner=OWNER)
    seen = run("Inspect", checkpoint_dir=url)
    if seen.state == "Completed" and seen.result["newest"] is not None:
        assert run("Verify", path=seen.result["newest"]["path"]).code == "corrupt_state"
    assert result("DeleteLineage", checkpoint_dir=url, owner=OWNER)["left"] == ""
    assert list(store.list("")) == []


# -- failures ----------------------------------------------------------------------------------


def through(proxy, server, credentials=None):
    """Opens stores of the server through the proxy, with little patience."""
    retries = Retries(attempts=3, first_pause=0.01, longest_pause=0.02, deadline=5.0)

    def open_(url):
        address = S3Address.parse(url)
        place = server.url(address.prefix, endpoint=proxy.endpoint)
        return S3Store(S3Address.parse(place), retries, credentials)

    return open_


@pytest.fixture
def proxied(s3_server):
    with FaultProxy(s3_server.endpoint) as proxy:
        yield proxy


def test_scenario_25_a_store_that_denies_is_told_from_one_that_is_down(proxied, s3_server):
    url = s3_server.url("denied/sp")
    proxied.inject(Fault.FORBIDDEN, "GET")
    answer = run("Verify", through(proxied, s3_server), path=url)
    assert (answer.code, answer.retryable) == ("store_denied", False)
    proxied.inject(Fault.ERROR, "GET", times=3)
    answer = run("Verify", through(proxied, s3_server), path=url)
    assert (answer.code, answer.retryable) == ("store_unavailable", True)


def test_scenario_25_a_bucket_that_is_missing_is_no_empty_store(s3_server):
    url = s3_server.url("x").replace("s3://moorage", "s3://no-such-bucket")
    assert run("Inspect", checkpoint_dir=url).code == "store_denied"


def test_given_credentials_are_used_and_no_others(s3_server, proxied):
    wrong = S3Credentials("moorage-test", "not-the-secret-of-anybody")
    answer = run("Verify", through(proxied, s3_server, wrong), path=s3_server.url("any/sp"))
    assert answer.code == "store_denied"
    assert "not-the-secret" not in answer.message
    assert "not-the-secret" not in repr(through(proxied, s3_server, wrong)(s3_server.url("x")))


@pytest.mark.parametrize("seed", range(5))
def test_store_tasks_come_to_the_same_end_when_requests_fail_by_chance(proxied, s3_server, seed):
    store = open_store(s3_server.url(f"chaos-{seed}/sp"))
    digest = make_savepoint(store)
    proxied.chaos = Chaos(seed=seed, rate=0.3)
    open_ = through(proxied, s3_server)
    fields = {"path": store.url, "digest": digest, "attempt": "ssnap-1"}
    for _ in range(30):
        answer = run("Delete", open_, **fields)
        if answer.state == "Completed":
            break
        assert answer.retryable
    assert list(store.list("")) == []


def test_an_answer_fits_into_a_termination_message_whatever_was_found():
    savepoints = {f"s3://bucket/{'x' * 200}/{n}": {"path": "y" * 200} for n in range(50)}
    found = {"savepoints": savepoints, "order_ids": [f"id-{n}" for n in range(300)], "fence": 3}
    line = encode_answer(Answer(id="e", state="Completed", result=found))
    assert len(line.encode()) <= ANSWER_BYTES
    assert "\n" not in line
    back = decode_answer(line)
    assert back is not None
    assert back.result["fence"] == 3
    assert list(back.result["savepoints"])[:1] == list(savepoints)[:1]
    long = Answer(id="e", state="Failed", code="bug", message="ä" * 5000)
    assert len(encode_answer(long).encode()) <= ANSWER_BYTES


@pytest.mark.parametrize(
    "text", ["", "Killed", "{}", '{"id":"a"}', '{"format":9,"id":"a","state":"Completed"}']
)
def test_what_is_no_answer_is_not_taken_for_one(text):
    assert decode_answer(text) is None


def test_a_request_comes_through_as_it_is():
    request = store_task("Delete", path="s3://a/b", digest="d", attempt="x", owner=OWNER)
    assert decode_request(encode_request(request)) == request
    assert json.loads(encode_request(request))["kind"] == "Delete"


def test_connections_with_given_credentials_are_kept_in_a_bounded_number(monkeypatch):
    monkeypatch.setattr("moorage_state.stores.s3.calls._GIVEN_CONNECTIONS", 2)
    address = S3Address("moorage", endpoint="http://127.0.0.1:1", region="us-east-1")
    common = connection_to(address, S3Credentials("first", "s"))
    for number in range(3):
        connection_to(address, S3Credentials(f"user-{number}", "s"))
    newest = connection_to(address, S3Credentials("user-2", "s"))
    assert connection_to(address, S3Credentials("user-2", "s")) is newest
    assert connection_to(address, S3Credentials("first", "s")) is not common
