"""A driver's last words: one, whole, short enough, without secrets."""

import json
import threading
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.cluster.termination import MAX_BYTES, Termination, encoded
from moorage.redaction import RedactingFormatter, Redactor
from moorage_api.driver import CheckpointSummary, DriverEnd, RestoredFrom, SavepointInfo

AT = datetime(2026, 1, 2, tzinfo=UTC)
LONG = "s3://bucket/" + "d" * 1000


def end(message: str = "", path: str = LONG) -> DriverEnd:
    return DriverEnd(
        attempt=3,
        outcome="Failed",
        code="user_function",
        message=message,
        lineage="lineage",
        fence=4,
        restored_from=RestoredFrom(path=path, checkpoint_id=6, completed_at=AT),
        last_checkpoint=CheckpointSummary(id=7, path=path, completed_at=AT),
        savepoint=SavepointInfo(name="n", path=path, checkpoint_id=8, epoch=9),
    )


@given(
    message=st.one_of(st.text(max_size=6000), st.just('"\\\n\x00é\U0001f600' * 900)),
    path=st.one_of(st.just(LONG), st.just("\x01" * 1024), st.just("é" * 4000), st.text()),
)
def test_whatever_is_said_it_fits_and_can_be_read(message, path):
    said = end(message, path)
    line = encoded(said)
    assert len(line) <= MAX_BYTES
    assert b"\n" not in line
    read = DriverEnd.model_validate_json(line)
    assert (read.attempt, read.outcome, read.code) == (3, "Failed", "user_function")


def test_the_message_is_cut_last_and_only_as_far_as_needed():
    read = DriverEnd.model_validate_json(encoded(end("x" * 9000)))
    assert read.message.endswith("x...")
    assert len(encoded(end("x" * 9000))) == MAX_BYTES
    assert read.last_checkpoint == end().last_checkpoint
    assert DriverEnd.model_validate_json(encoded(end("short"))) == end("short")


def test_a_secret_is_taken_out_before_the_cut(tmp_path):
    secret = "s3cr3t-" * 4
    redact = Redactor({"AWS_SECRET_ACCESS_KEY": secret}, "the-endpoints-token")
    for shift in range(60):
        termination = Termination(tmp_path / f"end{shift}", redact)
        termination.write(end("x" * shift + f"{secret} the-endpoints-token " * 200))
        text = (tmp_path / f"end{shift}").read_text()
        assert "s3cr3t" not in text
        assert "endpoints" not in text


def test_the_first_end_counts_and_replaces_what_lay_there(tmp_path):
    path = tmp_path / "end"
    path.write_text("old " * 4000)
    termination = Termination(path, str)
    wrote = []
    threads = [
        threading.Thread(target=lambda n=n: wrote.append(termination.write(end(f"{n}"))))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(wrote) == [False] * 7 + [True]
    assert json.loads(path.read_text())["message"] in map(str, range(8))


def test_the_file_itself_is_written_as_it_is_a_mount(tmp_path):
    path = tmp_path / "end"
    path.touch()
    before = path.stat().st_ino
    Termination(path, str).write(end("x"))
    assert path.stat().st_ino == before


def test_a_place_that_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        Termination(tmp_path / "none" / "end", str).write(end())


def test_the_log_has_no_secrets_in_tracebacks_either():
    import logging
    import sys

    formatter = RedactingFormatter(Redactor({"MY_PASSWORD": "open-sesame"}))
    try:
        int("tried open-sesame at s3://me:open@host")
    except ValueError:
        record = logging.LogRecord("x", 40, "f", 1, "failed", None, sys.exc_info())
    text = formatter.format(record)
    assert "Traceback" in text
    assert "sesame" not in text
    assert "me:open" not in text
