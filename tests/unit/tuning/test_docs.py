"""The documentation names every setting."""

import re
from pathlib import Path

from moorage_state.tuning.names import KNOWN_KEYS

DOC = Path(__file__).parents[3] / "docs" / "state-options.md"


def test_every_setting_has_its_row_and_no_row_is_of_another():
    rows = re.findall(r"^\| `(state\.\S+)` \|", DOC.read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(KNOWN_KEYS)
