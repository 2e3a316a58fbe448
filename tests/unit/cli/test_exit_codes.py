import re
from pathlib import Path

import pytest

from moorage.cli.exit_codes import ExitCode, exit_code
from moorage.driver.refusals import StoreRefused
from moorage_api import ManifestError
from moorage_state import errors

ROOT = Path(__file__).parents[3]


class UserFunctionError(errors.UserError):
    code = "user_function"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ManifestError("job.yaml", []), 2),
        (errors.UserError("x"), 2),
        (UserFunctionError("x"), 3),
        (StoreRefused("x"), 4),
        (errors.StoreUnavailable("x"), 4),
        (errors.ObjectNotFound("x"), 4),
        (errors.CorruptState("x", "chk-1/MANIFEST", "restore chk-0"), 5),
        (errors.Fenced("x"), 6),
        (errors.LocalDiskError("x"), 7),
        (errors.Bug("x"), 1),
        (errors.Retryable("x"), 1),
        (ValueError("x"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_each_error_has_its_status(error, status):
    assert exit_code(error) == status


def test_an_error_made_later_has_the_status_of_what_it_is_a_kind_of():
    class SpecialFence(errors.Fenced):
        code = "special_fence"

    assert exit_code(SpecialFence("x")) == ExitCode.FENCED


def test_the_documentation_says_of_every_status_what_it_means():
    text = (ROOT / "docs" / "cli.md").read_text()
    documented = re.findall(r"^\| (\d+) \| .{4,} \|$", text, re.MULTILINE)
    assert documented == [str(int(code)) for code in ExitCode]
