"""A backend that a job brings: its files are its own, in any process, at any parallelism."""

import os
import signal
from pathlib import Path

import msgspec
import pytest
import sqlite_backend
from sqlite_backend import SqliteStateBackend

from moorage_state.errors import IllegalConfigurationError, UserError
from moorage_state.server import RangeHost, RestoreBase, ServerGroup
from moorage_state.state_backends import EmbeddedRocksDBStateBackend, HashMapStateBackend
from moorage_state.state_backends.registry import job_backend

ROCKS, HEAP, OWN = EmbeddedRocksDBStateBackend(), HashMapStateBackend(), SqliteStateBackend()
NAME = "sqlite_backend:SqliteStateBackend"


def filled(driven, key):
    driven.open()
    driven.epoch({key(group, 1): bytes([group]) * 500 for group in range(driven.spec.start, 64)})
    return driven


def test_its_handles_name_it_and_those_of_the_built_in_ones_do_not(tmp_path, drive, key):
    for name, backend in (("sqlite", OWN), (None, ROCKS), (None, HEAP)):
        with RangeHost(tmp_path / backend.identifier, backend) as host:
            handle = filled(drive(host), key).checkpoint(1)
        assert msgspec.to_builtins(handle).get("backend") == name
    assert [file.name for file in handle.files] == ["state.heap"]


def test_its_checkpoint_restores_at_another_parallelism_and_goes_on(tmp_path, drive, key):
    with RangeHost(tmp_path / "one", OWN) as host:
        op = filled(drive(host), key)
        op.checkpoint(1)
        before = op.read()
    with RangeHost(tmp_path / "two", OWN) as other:
        parts = [drive(other, start, start + 31, run="f2r0") for start in (0, 32)]
        assert [part.open(op.base).source for part in parts] == ["store", "local"]
        for part in parts:
            part.epoch({key(part.spec.start, 2): b"more"})
        handles = [part.checkpoint(2) for part in parts]
        joined = {**parts[0].read(), **parts[1].read()}
        assert joined == before | {key(0, 2): b"more", key(32, 2): b"more"}
    with RangeHost(tmp_path / "three", OWN) as host:
        again = drive(host, run="f3r0")
        again.open(RestoreBase(2, 2, handles))
        assert again.read() == joined


@pytest.mark.parametrize("backend", [ROCKS, HEAP], ids=lambda one: one.identifier)
def test_its_checkpoint_is_not_opened_by_another_backend(tmp_path, drive, key, backend):
    with RangeHost(tmp_path / "one", OWN) as host:
        op = filled(drive(host), key)
        op.checkpoint(1)
    with RangeHost(tmp_path / "other", backend) as other:
        stranger = drive(other, run="f2r0")
        with pytest.raises(UserError, match=r"written_by=sqlite .*canonical savepoint") as caught:
            stranger.open(op.base)
        assert f"opened_by={backend.identifier}" in str(caught.value)


@pytest.mark.parametrize("backend", [ROCKS, HEAP], ids=lambda one: one.identifier)
def test_what_a_built_in_backend_wrote_is_read_by_its_own_code_and_copied(
    tmp_path, drive, key, backend
):
    with RangeHost(tmp_path / "one", backend) as host:
        op = filled(drive(host), key)
        op.checkpoint(1)
        before = op.read()
    with RangeHost(tmp_path / "other", OWN) as other:
        moved = drive(other, run="f2r0")
        moved.open(op.base)
        assert moved.read() == before


@pytest.mark.parametrize("said", [frozenset({".sst"}), frozenset({".heap"})], ids=str)
def test_only_what_it_says_never_changes_is_linked(tmp_path, drive, key, monkeypatch, said):
    monkeypatch.setattr(sqlite_backend, "FILE", "state.heap")
    monkeypatch.setattr(SqliteStateBackend, "unchanging", said)
    with RangeHost(tmp_path / "one", OWN) as host:
        op = filled(drive(host), key)
        op.checkpoint(1)
        assert op.open_anew(run="f2r0").source == "local"
        (copy,) = tmp_path.rglob("ckpt/1/state.heap")
        assert (copy.stat().st_nlink > 1) == (".heap" in said)


def test_a_killed_server_comes_back_with_every_committed_epoch(tmp_path, drive, key):
    code = [Path(sqlite_backend.__file__).parent]
    with ServerGroup(1, tmp_path / "servers", backend=OWN, code=code) as group:
        op = filled(drive(group.connect(0)), key)
        op.checkpoint(1)
        op.commit_decided(op.prepare({key(7, 7): b"after the checkpoint"}))
        op.api.close()
        os.kill(group.pids[0], signal.SIGKILL)
        assert group.ensure_alive() == [0]
        with group.connect(0) as client:
            op.api = client
            assert op.open().source == "local"
            assert op.read()[key(7, 7)] == b"after the checkpoint"
            assert len(op.read()) == 65


def test_it_is_configured_by_names_of_its_own():
    options = {"state.backend.sqlite.cache-kib": "77"}
    assert job_backend(NAME, options) == SqliteStateBackend(cache_kib=77)
    for name, text in (("cache-kib", "many"), ("cash", "1")):
        key = f"state.backend.sqlite.{name}"
        with pytest.raises(IllegalConfigurationError, match=f"key={key} value='{text}'"):
            job_backend(NAME, {key: text})
    with pytest.raises(IllegalConfigurationError, match="is not known"):
        job_backend("rocksdb", options)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no_such_module:Backend", "there is no module no_such_module"),
        ("sqlite_backend:Nothing", "module sqlite_backend has no Nothing"),
        ("sqlite_backend:View", "the class cannot be made without arguments"),
        ("json:JSONDecoder", "it is no StateBackend, and has no create_from_config"),
        ("sqlite", "no such state backend"),
    ],
)
def test_what_is_no_backend_is_named_before_anything_starts(name, reason):
    with pytest.raises(IllegalConfigurationError, match=reason) as caught:
        job_backend(name, {})
    assert f"value={name!r}" in str(caught.value)


def test_the_identifier_of_a_built_in_backend_is_taken(monkeypatch):
    monkeypatch.setattr(SqliteStateBackend, "identifier", "rocksdb")
    with pytest.raises(IllegalConfigurationError, match="that of a built-in backend: rocksdb"):
        job_backend(NAME, {})
