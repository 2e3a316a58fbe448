"""Volumes that are full, or answer with errors: an epoch fails or a run goes back; nothing is lost.

The lives of `test_changelog_model` on a volume whose calls fail now and then: at a named call of
Python's (any that opens, names, links or deletes), or because a small volume is really full, which
RocksDB meets too. Whatever fails is one of the errors that a driver knows what to do about; once
there is room again it goes on, and what is restored is what was committed.
"""

import errno
import os
import subprocess
import sys
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from moorage_state.deltas import encode_frame
from moorage_state.errors import LocalDiskError, MoorageError, Retryable, StaleLease, VersionGone
from moorage_state.server import RangeHost, Version
from moorage_state.server.wire import as_moorage_error

from .conftest import BACKENDS
from .test_changelog_model import Life

ROUGH = (Retryable, StaleLease, LocalDiskError, OSError)
"""After these a driver has a range opened again, and goes on; after `VersionGone` it goes back.

An `OSError` is a `LocalDiskError` for whoever asks over a socket.
"""


class Hook:
    """One call among those that touch a folder fails; an audit hook cannot be taken out again."""

    EVENTS = ("open", "os.rename", "os.link", "os.mkdir", "os.remove", "os.rmdir", "os.scandir")

    def __init__(self) -> None:
        self.folder = ""
        self.left = 0
        self.number = errno.EIO
        self._lock = threading.Lock()
        sys.addaudithook(self._heard)

    def _heard(self, event, arguments):
        if not self.folder or event not in self.EVENTS:
            return
        if not any(isinstance(a, str) and a.startswith(self.folder) for a in arguments):
            return
        with self._lock:
            self.left -= 1
            due = self.left == 0
        if due:
            raise OSError(self.number, os.strerror(self.number), str(arguments[0]))


class FailingCalls:
    """A volume on which a call fails; a step of a life later all is well."""

    hook: Hook | None = None

    def __init__(self, folder, rng):
        self._folder, self._rng = str(folder), rng
        FailingCalls.hook = FailingCalls.hook or Hook()

    def sicken(self):
        assert self.hook is not None
        self.hook.left = self._rng.randint(1, 40)
        self.hook.number = self._rng.choice([errno.EIO, errno.ENOSPC])
        self.hook.folder = self._folder

    def heal(self):
        assert self.hook is not None
        self.hook.folder = ""


class FullVolume:
    """A volume with a few kilobytes of room left, or none."""

    def __init__(self, folder, rng):
        self._filler, self._rng = Path(folder) / "filler", rng

    def sicken(self):
        with suppress(OSError), self._filler.open("wb", buffering=0) as filler:
            while filler.write(bytes(1 << 12)) == 1 << 12:
                pass
        left = self._rng.choice([0, 0, 4, 8, 16, 64, 256]) << 10
        with suppress(OSError):
            os.truncate(self._filler, max(0, self._filler.stat().st_size - left))

    def heal(self):
        self._filler.unlink(missing_ok=True)


class SickLife(Life):
    """A life on such a volume; `met` counts what failed."""

    def __init__(self, folder, seed, backend, volume):
        self._backend = backend
        self.met: Counter[str] = Counter()
        self.attempts = 0
        super().__init__(folder, seed)
        self.volume = volume(self.host._local_dir, self.rng)

    def _host(self, name):
        return RangeHost(self.folder / name, self._backend)

    def write(self):
        """An epoch: all ranges prepare it, or it is tried again; once decided, all have it."""
        self.attempts += 1
        attempt, epoch = f"a{self.attempts}", self.epoch + 1
        changes = {spec: self._changes(spec) for spec in self.specs}
        decided = {}
        try:
            for spec, values in changes.items():
                opened = self.host.range(spec.lease(self.run))
                frame = encode_frame([], list(values), list(values.values()))
                opened.stage(epoch, attempt, frame, 0)
                parent = self.versions[spec].digest
                decided[spec] = Version(epoch, opened.prepare(epoch, attempt, parent, 1).digest)
        except (MoorageError, OSError):
            for spec in self.specs:
                with suppress(*ROUGH):
                    self.host.range(spec.lease(self.run)).abort(epoch, attempt)
            raise
        self.epoch = epoch
        for spec, values in changes.items():
            self.versions[spec] = decided[spec]
            self.committed[spec].append(decided[spec])
            self.state = {k: v for k, v in {**self.state, **values}.items() if v is not None}
        for spec in self.specs:
            self.host.range(spec.lease(self.run)).commit(*decided[spec])

    def _changes(self, spec):
        keys = {self._key(spec) for _ in range(self.rng.randrange(6))}
        size = self.rng.choice([10, 400, 9000])
        return {key: self.rng.choice([None, self.rng.randbytes(size)]) for key in keys}

    def checkpoint(self):
        try:
            super().checkpoint()
        except (MoorageError, OSError):
            if self.base is None or self.base.checkpoint_id < self.id:
                with suppress(*ROUGH):
                    self.host.notify_aborted(self.id, self.run)
            raise

    def _tell(self, notify):
        with suppress(*ROUGH):  # nobody hears of it, as of a call that got lost
            super()._tell(notify)

    def persist(self):
        with suppress(*ROUGH):
            super().persist()

    def materialize(self):
        copied = self.copied
        try:
            super().materialize()
        except ROUGH:
            with suppress(*ROUGH):
                self.host.notify_aborted(copied, self.run)
            raise

    def step(self, action):
        """Do it on a volume that may be sick, and after what goes wrong go on as a driver does."""
        if self.rng.random() < 0.4:
            self.volume.sicken()
        try:
            action()
        except (*ROUGH, VersionGone) as error:
            self.met[as_moorage_error(error).code] += 1
            self.recover()
        if self.rng.random() < 0.5:
            self.volume.heal()

    def recover(self):
        """Open what does not work, as it was committed; or go back."""
        while True:
            try:
                self.open()
            except VersionGone:
                self.met["went back"] += 1
                try:
                    self.run_anew()
                except ROUGH:
                    self.volume.heal()
                    continue
            except ROUGH as error:
                self.met[f"again: {as_moorage_error(error).code}"] += 1
                self.volume.heal()
                continue
            return

    def live(self, steps):
        chances = {
            self.write: 40,
            self.checkpoint: 30,
            self.materialize: 10,
            self.persist: 8,
            self.retire: 5,
            self.run_anew: 2,
        }
        for one in self.rng.choices(list(chances), list(chances.values()), k=steps):
            self.step(one)
        self.volume.heal()
        self.recover()
        self.write()
        while self.base is None or self.base.checkpoint_id < self.id or not self.base.epoch:
            self.checkpoint()
        self.retire()
        self.restore()
        self.host.close()


def live(folder, seed, name, volume, steps):
    life = SickLife(Path(folder), seed, BACKENDS[name], volume)
    try:
        life.live(steps)
    finally:
        life.volume.heal()
        life.host.close()
    return life.met


SMALL_VOLUME = 'mount -t tmpfs -o size=24m tmpfs "$0" && exec "$@"'


def live_on_a_full_volume(folder, seed, backend, steps):
    """In a process for which the volume is small: the mount is gone with it, however it ends."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small volume needs root")
    (folder / "local").mkdir()
    life = f"from pathlib import Path; from {__name__} import *; "
    life += f"live(Path({str(folder)!r}), {seed}, {backend!r}, FullVolume, {steps})"
    command = ["unshare", "--mount", "sh", "-c", SMALL_VOLUME, str(folder / "local")]
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command += [sys.executable, "-c", life]
    done = subprocess.run(command, env=path, capture_output=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr.decode()[-4000:]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_volume_that_fails_loses_nothing(tmp_path, backend):
    met = live(tmp_path, 3, backend, FailingCalls, 40)
    assert met, "nothing failed"


def test_a_volume_that_is_full_loses_nothing(tmp_path):
    live_on_a_full_volume(tmp_path, 1, "rocksdb", 15)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_volume_that_fails_in_many_lives_loses_nothing(tmp_path, backend, seed):
    live(tmp_path, seed, backend, FailingCalls, 200)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_volume_that_is_full_in_many_lives_loses_nothing(tmp_path, backend, seed):
    live_on_a_full_volume(tmp_path, seed, backend, 80)


def test_whoever_asks_hears_of_the_volume_and_not_of_a_bug():
    error = as_moorage_error(OSError(errno.EIO, "input/output error", "/state/ranges"))
    assert isinstance(error, LocalDiskError)
    assert "/state/ranges" in str(error)
