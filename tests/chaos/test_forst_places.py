"""State in the store, of a process killed where files come, go and are rewritten, is right."""

import shutil
import signal
from pathlib import Path

import pytest
from moorage_testing.processes import Processes

from moorage_state.failpoints import PLACES

pytestmark = pytest.mark.chaos

PROCESS = Path(__file__).with_name("forst_process.py")
FORST = [place for place in PLACES if place.startswith("forst.")]


@pytest.mark.parametrize("place", FORST)
@pytest.mark.parametrize("nth", [1, 5])
def test_what_a_killed_process_had_saved_is_read_again(
    processes: Processes, tmp_path: Path, place: str, nth: int
) -> None:
    (tmp_path / "store").mkdir()
    url = f"file://{tmp_path / 'store'}"
    (tmp_path / "range").mkdir()
    killed = processes.start(
        PROCESS, url, str(tmp_path / "range"), "f1r0", failpoint=f"{place}:kill:{nth}"
    )
    output, _ = killed.communicate(timeout=100)
    assert killed.returncode == -signal.SIGKILL, f"it never came to this place: {output}"
    # On the volume that is left, then with nothing on it.
    for run in ("f2r0", "f3r0"):
        again = processes.start(PROCESS, url, str(tmp_path / "range"), run)
        output, _ = again.communicate(timeout=100)
        assert output.strip() == "right", output
        shutil.rmtree(tmp_path / "range" / "local")
