"""The log, restore points and retirement against a plain model, in random orders with faults."""

import uuid
from datetime import UTC, datetime
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from moorage_state.errors import Fenced, StoreUnavailable
from moorage_state.snapshots import (
    Checkpoint,
    CheckpointStore,
    Entry,
    Fence,
    LineageLog,
    LogWriter,
    Manifest,
    Owner,
    Retire,
    Run,
    restore_point,
    retained,
    verify_files,
)
from moorage_state.stores import MemoryStore

AT = datetime(2026, 1, 2, tzinfo=UTC)
OWNER = Owner("here", "default", "flights", "uid-1")
WRITERS = st.integers(0, 1)
FILES = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=3, unique=True)
FAULTS = st.sampled_from([None, None, None, "before", "after"])


class Lineage(RuleBasedStateMachine):
    """Two writers; the model is a list of entries and what the newest of them imply."""

    new_manifest: ClassVar[Any]
    new_store: ClassVar[Any]

    @initialize()
    def begin(self) -> None:
        self.store = self.new_store(MemoryStore(uuid.uuid4().hex))
        self.writers: list[LogWriter | None] = [None, None]
        self.doubts: list[Entry | None] = [None, None]
        self.log: list[Entry] = []
        self.alive = -1
        self.last_id = 0
        self.live: dict[int, Manifest] = {}
        self.latest: str | None = None

    def holds(self, entry: Entry) -> None:
        """Let the model's log have one more entry."""
        self.log.append(entry)
        match entry:
            case Checkpoint():
                self.latest = f"chk-{entry.checkpoint_id}"
            case Run(explicit=True):
                self.latest = entry.restored_from

    def settles(self, who: int) -> None:
        entry, self.doubts[who] = self.doubts[who], None
        if entry is not None:
            self.holds(entry)

    def append(self, who: int, entry: Entry, fault: str | None) -> None:
        """Append by either writer; the model says how it must end."""
        writer = self.writers[who]
        assert writer is not None
        if who != self.alive:
            landed, self.doubts[who] = self.doubts[who], None
            if landed == entry:
                writer.append(entry)  # it was in the log before the other one claimed
                return
            with pytest.raises(Fenced):
                writer.append(entry)
            return
        again = entry == self.doubts[who]
        self.store.fail = fault
        unanswered: Entry | None = None
        try:
            writer.append(entry)
        except StoreUnavailable:
            assert fault
            unanswered = writer._in_doubt.entry if writer._in_doubt else None
        self.store.fail = None
        if unanswered is None:
            self.settles(who)
            if not again:
                self.holds(entry)
        elif unanswered == entry and not again:
            self.settles(who)
            self.doubts[who] = entry

    @rule(who=WRITERS)
    def claim(self, who: int) -> None:
        if self.alive >= 0 and (doubt := self.doubts[self.alive]) is not None:
            if len(LineageLog.open(self.store).read()) > len(self.log):
                self.holds(doubt)
            else:
                self.doubts[self.alive] = None
        self.doubts[who] = None
        writer = LogWriter.claim(self.store, OWNER, f"writer {who}")
        if not self.log:
            self.log.append(writer.owner)
        fences = [e.fence for e in self.log if isinstance(e, Fence)]
        self.log.append(Fence(max(fences, default=0) + 1, f"writer {who}"))
        self.writers[who] = writer
        self.alive = who

    @precondition(lambda self: self.alive >= 0)
    @rule(who=WRITERS, fault=FAULTS, nonce=st.integers(0, 3))
    def start_run(self, who: int, fault: str | None, nonce: int) -> None:
        writer = self.writers[who]
        if writer is not None:
            self.append(who, Run(writer.fence, 0, None, restore_nonce=nonce), fault)

    @precondition(lambda self: self.alive >= 0 and self.live and not self.doubts[self.alive])
    @rule(data=st.data())
    def go_back(self, data: st.DataObject) -> None:
        writer = self.writers[self.alive]
        assert writer is not None
        target = f"chk-{data.draw(st.sampled_from(sorted(self.live)))}"
        self.append(self.alive, Run(writer.fence, 1, target, explicit=True), None)

    @precondition(lambda self: self.alive >= 0 and not self.doubts[self.alive])
    @rule(files=FILES)
    def checkpoint(self, files: list[str]) -> None:
        writer = self.writers[self.alive]
        assert writer is not None
        self.last_id += 1
        manifest = self.new_manifest(self.last_id, files, writer=writer, store=self.store)
        self.holds(CheckpointStore(self.store).complete(writer, manifest, AT))
        self.live[self.last_id] = manifest

    @precondition(lambda self: self.alive >= 0 and not self.doubts[self.alive])
    @rule(keep=st.integers(1, 3))
    def retire(self, keep: int) -> None:
        writer = self.writers[self.alive]
        assert writer is not None
        newest = sorted(self.live)[-keep:]
        for checkpoint_id in CheckpointStore(self.store).retire(writer, keep).checkpoint_ids:
            assert checkpoint_id not in newest
            assert f"chk-{checkpoint_id}" != self.latest
            del self.live[checkpoint_id]
            self.log.append(Retire(writer.fence, checkpoint_id))
        assert len(self.live) <= 2 * keep
        referenced = {file.key for manifest in self.live.values() for file in manifest.files}
        assert {info.key for info in self.store.list("shared/")} <= referenced

    @precondition(lambda self: self.alive >= 0)
    @rule(who=WRITERS)
    def refresh(self, who: int) -> None:
        writer = self.writers[who]
        if writer is None:
            return
        if who == self.alive:
            writer.refresh()
        else:
            self.doubts[who] = None
            with pytest.raises(Fenced):
                writer.refresh()

    @invariant()
    def the_log_is_the_models(self) -> None:
        found = LineageLog.open(self.store).read()
        entries = [entry for _, entry in found]
        assert [seq for seq, _ in found] == list(range(1, len(found) + 1))
        doubt = self.doubts[self.alive] if self.alive >= 0 else None
        assert entries in (self.log, [*self.log, doubt])
        assert {c.checkpoint_id for c in retained(entries)} == set(self.live)
        point = restore_point(entries)
        assert (point.path if point else None) == self.latest

    @invariant()
    def every_retained_checkpoint_is_whole(self) -> None:
        for manifest in self.live.values():
            verify_files(self.store, manifest)


def test_the_lineage_agrees_with_a_plain_model(new_manifest: Any, faulty: Any) -> None:
    class Here(Lineage):
        pass

    Here.new_manifest = staticmethod(new_manifest)
    Here.new_store = type(faulty)
    run_state_machine_as_test(
        Here, settings=settings(max_examples=60, stateful_step_count=25, deadline=None)
    )
