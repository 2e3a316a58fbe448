"""The curves of sinks: laid lists are as appended ones, and cost what is said."""

from benchmarks.scale import sinks

from moorage.sinks import metadata_log
from moorage.sinks.metadata_log import FIRST_END, MetadataLog
from moorage_state.stores import MemoryStore


def test_a_list_is_laid_as_so_many_checkpoints_leave_it(monkeypatch):
    monkeypatch.setattr(metadata_log, "GROW_BYTES", 300)
    MemoryStore.forget("appended")
    log = MetadataLog(MemoryStore.named("appended"))
    log.begin()
    for number in range(200):
        log.add({sinks._path(number): sinks._line(number)}, sinks._nothing, new=True)
    store = sinks._Counted(MemoryStore("laid"))
    end = sinks._laid(store, 200)
    MemoryStore.forget("appended")
    assert (log._known, end.interval) == (end, 80)
    assert end != FIRST_END


def test_a_checkpoint_costs_the_same_at_every_length(monkeypatch):
    monkeypatch.setattr(metadata_log, "GROW_BYTES", 1000)
    monkeypatch.setattr(sinks, "_QUICK", (500, 2000, 8000))
    for curve in sinks.measure(quick=True):
        costs = [cost for _, cost in curve.points]
        assert max(costs) < 2.5 * min(costs), curve
