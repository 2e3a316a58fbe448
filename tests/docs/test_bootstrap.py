"""examples/bootstrap as a person runs it: a table, a savepoint, and a job that begins from it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

pytestmark = pytest.mark.docs

EXAMPLE = Path(__file__).parents[2] / "examples" / "bootstrap"
SECONDS = 300


def test_the_job_goes_on_from_the_balances_of_the_table(tmp_path):
    folder = shutil.copytree(EXAMPLE, tmp_path / "bootstrap")
    pd.DataFrame({"account": ["ann", "bob"], "balance": [120, 7]}).to_parquet(folder / "b.parquet")
    manifest = (folder / "job.yaml").read_text()
    (folder / "job.yaml").write_text(manifest.replace("spec:\n", "spec:\n  bounded: true\n"))
    run = str(Path(sys.executable).parent / "moorage")
    made = "savepoints/initial"
    for command in (
        [sys.executable, "bootstrap.py", "b.parquet", made],
        [run, "run", "job.yaml", "--restore", made, "--plain", "--no-page"],
    ):
        subprocess.run(command, cwd=folder, check=True, timeout=SECONDS)
    found = pd.read_parquet(folder / "out")
    assert dict(zip(found["account"], found["balance"], strict=True)) == {"ann": 125, "new": 1}
