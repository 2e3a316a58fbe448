"""Which executor has which subtask, what is waited for, and when an executor counts as lost."""

import os
import signal
import threading
from contextlib import ExitStack
from typing import Any

import pytest

from moorage.cluster.servers import Patience
from moorage.driver.environment import NoExecutors, StoppedWaiting
from moorage.engine.fleet import RangeFleet
from moorage.engine.range_access import ExecutorLost, ServerDoor, connect_to
from moorage_state.deltas import encode_frame
from moorage_state.errors import ServerGone, StaleLease
from moorage_state.keygroups import range_of
from moorage_state.server import RangeSpec, ServerGroup, UploadLimits, UploadRequest, Version
from moorage_state.server.client import StateClient
from moorage_state.server.operations import SnapshotWay
from moorage_state.server.slots import Slot, socket_path
from moorage_state.server.wire import AnotherServer

from .conftest import SMALL


def owners(cluster):
    return "".join(cluster.pinned[-1][subtask] for subtask in sorted(cluster.pinned[-1]))


def executors_of(cluster, placed):
    return "".join(cluster.servers._servers[index].executor for index in placed)


def test_subtasks_are_shared_and_the_scheduler_is_told_the_same(cluster):
    cluster.add("0")
    cluster.add("1")
    placed = cluster.servers.place(shares(4), 0)
    assert executors_of(cluster, placed) == owners(cluster) == "0101"
    for index in set(placed):
        with cluster.servers.connect(index) as client:
            assert client.ping() in [pod.group.pids[0] for pod in cluster.made]


def test_a_replaced_executor_gets_the_lost_subtasks_and_no_others(cluster):
    cluster.add("0")
    cluster.add("1")
    before = cluster.servers.place(shares(4), 0)
    cluster.lose("1")
    cluster.add("2", wanted=False)
    after = cluster.servers.place(shares(4), 0)
    assert owners(cluster) == "0202"
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, True, False]
    assert not set(after) & {before[1]}, "an index is never that of another server"


def test_of_two_executors_at_one_address_the_newest_counts(cluster):
    """Spark has not noticed yet that the older one is gone."""
    cluster.add("9")
    cluster.pool.pods["10"] = cluster.pool.pods["9"]
    cluster.servers.place(shares(2), 0)
    assert owners(cluster) == "1010"


@pytest.mark.scenario(45)
def test_it_waits_for_the_wanted_executors_and_tells_why(cluster):
    cluster.servers = cluster.new_servers(patience=Patience())
    cluster.add("0")
    cluster.pool.desired = 2
    late = threading.Timer(1.0, cluster.add, ["1"], {"wanted": False})
    late.start()
    cluster.servers.place(shares(4), 0)
    late.join()
    assert owners(cluster) == "0101"
    (told,) = cluster.told
    assert "ready=1 wanted=2" in told
    assert "executor 9 was lost last: node gone" in told


@pytest.mark.scenario(45)
def test_after_a_while_it_goes_on_with_fewer_and_says_so(cluster):
    cluster.add("0")
    cluster.pool.desired = 3
    cluster.servers.place(shares(4), 0)
    assert owners(cluster) == "0000"
    assert "going on with fewer executors: ready=1 wanted=3" in cluster.told[-1]


def test_the_time_for_which_the_running_stream_waited_is_not_waited_once_more(cluster):
    now = [0.0]
    servers = cluster.new_servers(clock=lambda: now[0], patience=Patience(all_executors=60.0))
    cluster.add("0")
    servers.place(shares(2), 0)
    cluster.pool.desired, now[0] = 2, 10.0
    servers.wants_to_move()
    now[0] = 70.0
    gives_up = threading.Timer(10.0, cluster.stop.set)
    gives_up.start()
    try:
        assert len(servers.place(shares(4), 0)) == 4
    finally:
        gives_up.cancel()
        servers.close()


@pytest.mark.scenario(45)
def test_without_any_executor_it_gives_up_and_says_why(cluster):
    cluster.pool.desired = 3
    with pytest.raises(NoExecutors, match=r"wanted=3 .*node gone"):
        cluster.servers.place(shares(4), 0)


def test_an_executor_whose_servers_refuse_the_token_is_named(cluster):
    cluster.servers = cluster.new_servers(token="another")  # noqa: S106
    cluster.add("0")
    with pytest.raises(NoExecutors, match=r"executor 0: .*token is wrong"):
        cluster.servers.place(shares(2), 0)


def test_to_stop_ends_the_wait(cluster):
    cluster.servers = cluster.new_servers(patience=Patience())
    cluster.pool.desired = 1
    threading.Timer(0.3, cluster.stop.set).start()
    with pytest.raises(StoppedWaiting):
        cluster.servers.place(shares(2), 0)


def test_a_server_that_died_is_waited_for(cluster):
    cluster.servers = cluster.new_servers(patience=Patience())
    pod = cluster.add("0")
    (index, _) = cluster.servers.place(shares(2), 0)
    pod.group.close()
    back = threading.Timer(0.5, pod.start)
    back.start()
    assert cluster.servers.ensure_alive() == []
    back.join()
    with cluster.servers.connect(index) as client:
        assert client.ping() == pod.group.pids[0]


@pytest.mark.parametrize("known", [True, False])
def test_an_executor_that_is_gone_is_lost_whether_spark_knows_it_or_not(cluster, known):
    cluster.add("0")
    cluster.add("1")
    cluster.servers.place(shares(4), 0)
    cluster.lose("1", known=known)
    with pytest.raises(ExecutorLost, match=r"executor=1 subtasks=\[1, 3\]"):
        cluster.servers.ensure_alive()


def test_an_executor_that_spark_lost_is_lost_though_its_servers_still_answer(cluster):
    cluster.add("0")
    cluster.servers.place(shares(2), 0)
    del cluster.pool.pods["0"]
    with pytest.raises(ExecutorLost, match="executor=0"):
        cluster.servers.ensure_alive()


def test_within_an_epoch_an_executor_is_lost_once_its_servers_are_silent_too(cluster):
    cluster.add("0")
    cluster.add("1")
    cluster.servers.place(shares(4), 0)
    pod = cluster.pool.pods.pop("1")
    cluster.servers.refuse_lost()
    pod.end()
    with pytest.raises(ExecutorLost, match="executor=1"):
        cluster.servers.refuse_lost()


def test_those_that_are_left_stand_in_at_once_where_they_have_room(cluster):
    for name in "012":
        cluster.add(name)
    servers = cluster.new_servers(spares=True, patience=Patience(all_executors=600.0))
    try:
        servers.place(shares(6), 0)
        cluster.lose("1")
        servers.place(shares(6), 0)
        assert owners(cluster).count("1") == 0
        assert sorted(owners(cluster)) == ["0"] * 3 + ["2"] * 3
    finally:
        servers.close()


def test_another_executor_at_the_same_address_is_not_taken_for_the_lost_one(cluster):
    lost = cluster.add("0")
    (index,) = cluster.servers.place(shares(1), 0)
    door = cluster.servers.door(index)
    cluster.lose("0", known=False)
    cluster.add("0", port=lost.port, wanted=False)
    with pytest.raises(AnotherServer):
        cluster.servers.connect(index)
    with pytest.raises(AnotherServer):
        connect_to(door, "secret")
    with pytest.raises(ExecutorLost, match="another state server"):
        cluster.servers.ensure_alive()
    (new,) = cluster.servers.place(shares(1), 0)
    assert new != index


def test_a_task_takes_the_socket_of_its_own_executor_only(cluster, monkeypatch):
    here, there = cluster.add("0"), cluster.add("1")
    placed = cluster.servers.place(shares(2), 0)
    near, far = (cluster.servers.door(index) for index in placed)
    addresses: list[str] = []
    connect = StateClient.connect

    def noting(address, token, **more):
        addresses.append(address)
        return connect(address, token, **more)

    monkeypatch.setattr(StateClient, "connect", noting)
    with connect_to(near, "secret") as client:
        assert client.ping() == here.group.pids[0]
    # On another executor there is another volume at the same path.
    there.volume.rename(there.volume.with_name("elsewhere"))
    there.volume.symlink_to(here.volume)
    with connect_to(far, "secret") as client:
        assert client.ping() == there.group.pids[0]
    there.volume.unlink()
    with connect_to(far, "secret") as client:
        assert client.ping() == there.group.pids[0]
    assert addresses == [f"unix:{near.socket}", far.address, far.address]
    with pytest.raises(AnotherServer, match="token is wrong"):
        connect_to(far, "guess")


def test_another_jobs_server_on_a_shared_volume_is_not_taken_for_ones_own(tmp_path):
    """A sidecar took the slot of one that ended: same path, same identity, another token."""
    with Slot.take(tmp_path) as slot:
        common: Any = {"backend": SMALL, "tcp_host": "127.0.0.1", "socket_dir": slot.run}
        with ServerGroup(1, slot.state, token="one", identity=slot.identity, **common) as group:  # noqa: S106
            with group.connect(0) as client:
                server = client.server
            door = ServerDoor(group.tcp_addresses[0], server, socket_path(str(tmp_path), server))
        with (
            ServerGroup(1, slot.state, token="two", identity=slot.identity, **common),  # noqa: S106
            pytest.raises(AnotherServer, match="another job has"),
        ):
            connect_to(door, "one")


def test_a_stop_at_once_ends_the_wait_for_executors(cluster):
    asked = threading.Event()
    cluster.pool.desired = 1
    servers = cluster.new_servers(patience=Patience(), at_once=asked.is_set)
    threading.Timer(0.1, asked.set).start()
    with pytest.raises(StoppedWaiting):
        servers.place(shares(1), 0)
    servers.close()


def test_a_joined_executor_is_worth_a_move_once_it_has_settled(cluster):
    clock = [100.0]
    cluster.add("0")
    cluster.servers = cluster.new_servers(
        patience=Patience(settle=5.0, between_moves=20.0, look=1.0), clock=lambda: clock[0]
    )
    cluster.servers.place(shares(4), 0)
    assert not cluster.servers.wants_to_move()
    cluster.add("1")
    wishes = []
    for now in (110.0, 114.0, 119.0, 121.0, 121.5, 123.0, 142.0):
        clock[0] = now
        wishes.append(cluster.servers.wants_to_move())
    # Not before 20 s are over, not twice in 20 s.
    assert wishes == [False, False, False, True, False, False, True]
    cluster.servers.place(shares(4), 0)
    assert owners(cluster) == "0101" or sorted(owners(cluster)) == ["0", "0", "1", "1"]
    clock[0] = 300.0
    assert not cluster.servers.wants_to_move()


def test_subtasks_flee_from_an_executor_that_leaves_and_then_it_is_dismissed(cluster):
    cluster.add("0")
    cluster.add("1")
    cluster.servers.place(shares(4), 0)
    cluster.pool.going, cluster.pool.desired = {"1"}, 1
    assert cluster.servers.wants_to_move()
    assert cluster.pool.dismissed == []
    cluster.servers.place(shares(4), 0)
    assert owners(cluster) == "0000"
    assert cluster.pool.dismissed == ["1"]


def test_an_executor_that_spark_lost_is_fled_from_while_its_servers_answer(cluster):
    cluster.add("0")
    gone = cluster.add("1")
    cluster.servers.place(shares(4), 0)
    del cluster.pool.pods["1"]
    assert cluster.servers.wants_to_move()
    gone.end()
    with pytest.raises(ExecutorLost, match="executor=1"):
        cluster.servers.wants_to_move()


def test_one_that_leaves_without_subtasks_is_dismissed_without_a_move(cluster):
    cluster.add("0")
    cluster.servers.place(shares(2), 0)
    cluster.add("1", wanted=False)
    cluster.pool.going = {"1"}
    assert not cluster.servers.wants_to_move()
    assert cluster.pool.dismissed == ["1"]


class Fleet:
    """One operator of four key groups on the cluster's servers, a subtask for each at first."""

    way: SnapshotWay = "copy"

    def __init__(self, cluster, store, parallelism=4, servers=None):
        servers = servers or cluster.servers
        url = f"file://{store}"
        self.fleet = RangeFleet(servers, ["counts"], parallelism, 4, url)
        self.epoch = self.built_on = 0
        self.handles: Any = {}

    def write(self, value):
        self.epoch += 1
        digests = {}
        for subtask, leased in enumerate(self.fleet.leased("counts")):
            frame = encode_frame([], [key_of(subtask)], [value])
            with connect_to(leased.door, "secret") as client:
                opened = client.range(leased.lease)
                opened.stage(self.epoch, "a", frame, 0)
                prepared = opened.prepare(self.epoch, "a", leased.version.digest, 1)
            digests["counts", subtask] = prepared.digest
        self.fleet.commit(self.epoch, digests)

    def read(self):
        found = []
        for subtask, leased in enumerate(self.fleet.leased("counts")):
            with connect_to(leased.door, "secret") as client:
                found += client.range(leased.lease).get_many(leased.version, [key_of(subtask)])
        return found

    def checkpoint(self, checkpoint_id):
        self.fleet.snapshot(checkpoint_id, self.way, self.built_on)
        upload = self.fleet.upload(checkpoint_id, self.handles)
        self.fleet.complete(checkpoint_id, self.epoch, upload.handles)
        self.handles, self.built_on = upload.handles, checkpoint_id
        return upload.handles


def shares(parallelism):
    """The key groups of each subtask."""
    return [range_of(subtask, parallelism, 128) for subtask in range(parallelism)]


def key_of(subtask):
    return subtask.to_bytes(2, "big") + b"\x01" + b"only"


@pytest.fixture
def fleet(cluster, tmp_path):
    (tmp_path / "store").mkdir()
    cluster.add("0")
    cluster.add("1")
    made = Fleet(cluster, tmp_path / "store")
    yield made
    made.fleet.close()


@pytest.mark.scenario(44)
def test_after_a_loss_only_the_lost_ranges_come_from_the_store(cluster, fleet):
    fleet.fleet.open("f1r0", 0, {}, 0)
    fleet.write(b"one")
    handles = fleet.checkpoint(1)
    fleet.write(b"two")
    cluster.lose("1")
    with pytest.raises(ExecutorLost):
        fleet.fleet.recover()
    cluster.add("2", wanted=False)
    results = fleet.fleet.open("f1r1", 1, handles, 1)
    assert sorted(result.source for result in results) == ["live", "live", "store", "store"]
    assert fleet.read() == [b"one"] * 4
    fleet.epoch = 1
    fleet.write(b"three")
    assert fleet.read() == [b"three"] * 4


def work_late(client, lease, version, url, *, logs):
    """An epoch and a checkpoint for a run that is over, of a number that its successor uses too."""
    opened, limits = client.range(lease), UploadLimits()
    spec = RangeSpec("counts", lease.start, lease.start)
    epoch = version.epoch + 1
    try:
        opened.stage(epoch, "late", encode_frame([], [key_of(lease.start)], [b"late"]), 0)
        prepared = opened.prepare(epoch, "late", version.digest, 1)
        opened.commit(epoch, prepared.digest)
        if logs:
            client.persist_many(lease.run, url, [spec], limits, 1)
        way = "log and copy" if logs else "copy"
        opened.snapshot(epoch, Version(epoch, prepared.digest), way, version.epoch)
        request = UploadRequest("counts", lease.start, [])
        client.upload_many(lease.run, epoch, url, [request], limits)
        client.notify_complete(epoch, lease.run)
        if logs:
            client.materialize_many(lease.run, epoch, url, [spec], limits)
    except StaleLease:
        return "refused"
    return "done for nobody"


@pytest.mark.parametrize("way", ["copy", "log"])
def test_a_server_that_was_stopped_through_a_recovery_changes_nothing_when_it_goes_on(
    cluster, fleet, tmp_path, way
):
    fleet.way, logs = way, way == "log"
    fleet.fleet.open("f1r0", 0, {}, 0)
    fleet.write(b"none")
    fleet.checkpoint(1)
    fleet.write(b"one")
    handles = fleet.checkpoint(2)
    old = {leased.lease: leased for leased in fleet.fleet.leased("counts")}
    with ExitStack() as stack:
        doors = {
            lease: stack.enter_context(connect_to(one.door, "secret")) for lease, one in old.items()
        }
        zombie = cluster.pool.pods.pop("1")
        pid = zombie.group.pids[0]
        os.kill(pid, signal.SIGSTOP)
        try:
            cluster.add("2", wanted=False)
            with pytest.raises(ExecutorLost):
                fleet.fleet.recover()
            results = fleet.fleet.open("f1r1", 2, handles, 2, builds=logs)
            assert sorted(result.source for result in results) == ["live", "live", "store", "store"]
            fleet.write(b"two")
            newest = fleet.checkpoint(3)
        finally:
            os.kill(pid, signal.SIGCONT)
        stored = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
        before = {path: path.read_bytes() for path in stored}
        url = f"file://{tmp_path}/store"
        answers = []
        for lease, one in old.items():
            try:
                answers.append(work_late(doors[lease], lease, one.version, url, logs=logs))
            except ServerGone:  # of the connection: the driver of then would open another one
                door = stack.enter_context(connect_to(one.door, "secret"))
                answers.append(work_late(door, lease, one.version, url, logs=logs))
        assert sorted(answers) == ["done for nobody"] * 2 + ["refused"] * 2
        assert all(path.read_bytes() == data for path, data in before.items())
    assert fleet.read() == [b"two"] * 4
    fleet.write(b"three")
    assert fleet.read() == [b"three"] * 4
    # What was stopped is back with its volume, and has the older state of its ranges.
    cluster.pool.pods["1"] = zombie
    cluster.pool.pods.pop("2").end()
    fleet.fleet.open("f1r2", 3, newest, 3, builds=logs)
    assert fleet.read() == [b"two"] * 4


def test_a_server_that_died_alone_is_opened_in_place_with_all_that_was_committed(cluster, fleet):
    fleet.fleet.open("f1r0", 0, {}, 0)
    fleet.write(b"one")
    fleet.checkpoint(1)
    fleet.write(b"two")
    pod = cluster.pool.pods["1"]
    pod.group.close()
    pod.start()
    fleet.fleet.recover()
    assert fleet.read() == [b"two"] * 4
    fleet.write(b"three")
    assert fleet.read() == [b"three"] * 4


@pytest.fixture
def checkpointed(fleet):
    """The handles of a checkpoint of every range, and an epoch after it."""
    fleet.fleet.open("f1r0", 0, {}, 0)
    fleet.write(b"one")
    handles = fleet.checkpoint(1)
    fleet.write(b"two")
    return handles


def test_a_volume_that_comes_back_with_another_executor_has_its_ranges_again(
    cluster, fleet, checkpointed
):
    volume = cluster.lose("0", keep=True).volume
    with pytest.raises(ExecutorLost):
        fleet.fleet.recover()
    cluster.add("2", wanted=False)
    cluster.add("3", volume=volume, wanted=False)
    cluster.pool.desired = 3
    results = fleet.fleet.open("f1r1", 1, checkpointed, 1)
    assert [result.source for result in results].count("store") <= 1, "what a third one takes over"
    assert cluster.pinned[-1][0] == "3"
    assert fleet.read() == [b"one"] * 4


@pytest.mark.parametrize("way", ["copy", "log"])
def test_another_driver_finds_volumes_though_executors_have_other_names(
    cluster, fleet, tmp_path, way
):
    fleet.way = way
    fleet.fleet.open("f1r0", 0, {}, 0)
    fleet.write(b"none")
    fleet.checkpoint(1)
    fleet.write(b"one")
    handles = fleet.checkpoint(2)
    fleet.write(b"two")
    fleet.fleet.close()
    one, two = cluster.pool.pods["0"], cluster.pool.pods["1"]
    cluster.pool.pods = {"0": two, "1": one}
    servers = cluster.new_servers()
    later = Fleet(cluster, tmp_path / "store", servers=servers)
    try:
        results = later.fleet.open("f2r0", 2, handles, 2, builds=way == "log")
        assert [result.source for result in results] == ["local"] * 4
        assert later.read() == [b"one"] * 4
    finally:
        later.fleet.close()
        servers.close()


def test_what_is_wrong_in_a_volume_that_was_found_again_comes_from_the_store(
    cluster, fleet, checkpointed, tmp_path
):
    fleet.fleet.close()
    volume = cluster.pool.pods["0"].volume
    copy = next(volume.glob("state/ranges/counts/*/ckpt/1"))
    for damaged in copy.glob("*.sst"):
        damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    servers = cluster.new_servers()
    later = Fleet(cluster, tmp_path / "store", servers=servers)
    try:
        results = later.fleet.open("f2r0", 1, checkpointed, 1)
        assert sorted(r.source for r in results) == ["local"] * 3 + ["store"]
        assert later.read() == [b"one"] * 4
    finally:
        later.fleet.close()
        servers.close()


def test_subtasks_of_another_parallelism_go_where_their_key_groups_are(cluster, tmp_path):
    (tmp_path / "store").mkdir()
    cluster.add("0")
    cluster.add("1")
    two = Fleet(cluster, tmp_path / "store", parallelism=2)
    two.fleet.open("f1r0", 0, {}, 0)
    two.fleet.snapshot(1)
    handles = two.fleet.upload(1, {}).handles
    two.fleet.complete(1, 0, handles)
    two.fleet.close()
    four = Fleet(cluster, tmp_path / "store")
    try:
        results = four.fleet.open("f1r1", 0, handles, 1)
        assert owners(cluster) == "0011"
        assert [result.source for result in results] == ["local"] * 4
    finally:
        four.fleet.close()


def test_what_moved_away_is_deleted_once_the_run_has_a_checkpoint(cluster, fleet, checkpointed):
    cluster.add("2")
    fleet.fleet.open("f1r1", 1, checkpointed, 1)
    fleet.epoch = 1
    fleet.write(b"three")
    fleet.checkpoint(2)
    left = [p for pod in cluster.made for p in pod.volume.glob("state/ranges/counts/*")]
    assert sorted(path.name for path in left) == ["0-0", "1-1", "2-2", "3-3"]
    assert fleet.read() == [b"three"] * 4


@pytest.mark.usefixtures("checkpointed")
def test_a_volume_of_another_lineage_is_wiped_and_that_is_said(cluster, fleet):
    fleet.fleet.close()
    servers = cluster.new_servers(lineage="another")
    try:
        servers.place(shares(2), 0)
    finally:
        servers.close()
    assert sum("another lineage" in text for text in cluster.told) == 2
    assert not [p for pod in cluster.made for p in pod.volume.glob("state/ranges/*/*")]


def test_ranges_are_let_go_where_they_were_when_they_move(cluster, fleet):
    fleet.fleet.open("f1r0", 0, {}, 0)
    fleet.write(b"one")
    handles = fleet.checkpoint(1)
    cluster.add("2")
    fleet.fleet.open("f1r1", 1, handles, 1)
    assert fleet.read() == [b"one"] * 4
    held = []
    for index in set(cluster.servers._placed):
        with cluster.servers.connect(index) as client:
            held += [stats.start for stats in client.stats()]
    assert sorted(held) == [0, 1, 2, 3]
