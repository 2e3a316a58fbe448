"""Timers of a whole job whose input is silent: they fire, also those of before a restart."""

import json
import os
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from moorage_testing.jobs import JobHome, processes_of, wait_until

from moorage.queryable import QueryableStateClient
from moorage_state.errors import UserError

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

JOB = Path(__file__).with_name("timers_job.py")
# Each epoch is a Spark job, and most of this test is waiting.
INTERVAL_MS = 2000
# More than a run takes to stop, by how long it took to start.
LATER_MS = 10_000


def bring(
    home: JobHome, source: str, *rows: tuple[str, int | str, int], unread: Sequence[str] = ()
) -> None:
    lines = [json.dumps(dict(zip(("user", "at", "after"), row, strict=True))) for row in rows]
    folder = home.path / source
    folder.mkdir(exist_ok=True)
    aside = home.path / "aside"
    aside.write_text("\n".join([*lines, *unread]))
    aside.rename(folder / f"{len(list(folder.iterdir()))}.json")


def fired(home: JobHome) -> dict[tuple[str, str], int]:
    """By user and kind, how late the timer was, in milliseconds (of event time: when it fired)."""
    found = {}
    for path in sorted(home.out.glob("*.parquet")):
        for row in pq.read_table(path).to_pylist():
            key = (row["user"], row["what"])
            assert key not in found, "a timer fired twice"
            late = row["fired_at"] - (row["set_for"] if row["what"] == "clock" else 0)
            found[key] = late
    return found


def wait_for(home: JobHome, wanted: set[tuple[str, str]]) -> dict[tuple[str, str], int]:
    return wait_until(
        lambda: done if wanted <= (done := fired(home)).keys() else None,
        180,
        f"{wanted}; so far {fired(home)}\n{home.log()}",
    )


@pytest.fixture
def home(tmp_path):
    (tmp_path / "events").mkdir()
    job = tmp_path / "job" / "beside" / JOB.name
    home = JobHome.make(
        tmp_path / "job",
        job,
        tmp_path / "events",
        bounded=False,
        epoch={"interval": f"{INTERVAL_MS}ms"},
    )
    job.parent.mkdir()
    shutil.copy(JOB, job)
    # In the job's folder, and where the job is started: nobody's pickle but their own.
    for name in ("pickle", "queue", "random", "statistics"):
        for folder in (job.parent, home.path):
            (folder / f"{name}.py").write_text("raise RuntimeError('not the real one')")
    yield home
    home.end()


def stop(home: JobHome) -> None:
    """As a service manager does: SIGTERM for every process of the job at once."""
    process = home.processes[-1]
    sessions = {}
    # The JVM has Hadoop's files looked at by processes (`readlink`) that end while this looks.
    for pid in processes_of(process.pid):
        with suppress(ProcessLookupError):
            sessions[pid] = os.getsid(pid)
    assert len(sessions) > 4, "the JVM, state servers, the daemon of Python workers"
    assert process.pid not in [sessions[pid] for pid in sessions if pid != process.pid]
    for pid in sessions:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    assert process.wait(60) == 0, home.log()
    assert "Traceback" not in home.log()


def test_timers_fire_although_no_data_comes_and_those_of_a_stopped_job_after_it(home):
    untimed = ("untimed", "yesterday", 3000)
    bring(home, "busy", ("soon", 1000, 3000), ("mark", 9000, 3000), untimed, unread=["no json"])
    bring(home, "silent", ("held", 500, 3000))
    began = time.monotonic()
    home.start()
    # `silent` holds the watermark at 499 until it counts as idle; then `busy` has it at 8999.
    users = ("soon", "held", "mark")
    early = {*((user, "clock") for user in users), ("soon", "event"), ("held", "event")}
    done = wait_for(home, early)
    assert done.keys() == early
    later = LATER_MS + int(1000 * (time.monotonic() - began))
    assert all(0 <= done[user, "clock"] < later for user in users)
    bring(home, "busy", ("later", 9000, later))
    with QueryableStateClient.of_local_job(home.path / "job.yaml") as client:
        wait_until(lambda: client.get("alarms", "later"), 120, "a timer for later")
        assert client.get_many("alarms", ["soon", "none", "later"]) == [1, None, 1]
        with pytest.raises(UserError, match="queryable=alarm; there are: alarms"):
            client.get("alarm", "soon")
    stop(home)
    odd = "rows and 2 not processed (1 with a null key, 1 of these all null, 1 without a time) in "
    assert odd in home.log()
    assert ("later", "clock") not in fired(home)
    home.start()
    again = wait_for(home, {*early, ("later", "clock")})
    assert ("later", "event") not in again
    bring(home, "busy", *100 * [("far", 1_795_000_000, 3000)])
    told = "event time may be in seconds, taken for milliseconds: input=busy newest=1970-01-21"
    wait_until(lambda: told in home.log(), 120, "the unit of event times is told of")
    stop(home)
    assert home.log().count(told) == 1
    assert home.log().count("null in all of the first rows of an input: ") == 1
    assert "input=busy column=note rows=100; see whether" in home.log()
