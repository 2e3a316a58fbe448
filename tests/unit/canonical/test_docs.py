"""The examples of docs/state-reader.md are run, in their order; Spark's by tests/spark."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "state-reader.md"


def test_the_examples_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 4
    names: dict[str, object] = {}
    for block in blocks[:3]:
        exec(compile(block, str(PAGE), "exec"), names)  # noqa: S102 - the page is the test
    assert "accounts balance value bigint" in capsys.readouterr().out
