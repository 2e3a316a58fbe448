"""The texts of the API that have a form: names, directories, schedules.

Patterns are the ones that the API server will be given, so they use nothing its regular
expressions lack.
"""

import re
from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from moorage_api.cron import FIELDS, MACROS, number

JOB_NAME_LENGTH = 45
JOB_NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
OPERATOR_UID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
OBJECT_NAME = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"
"""Of a Secret, a service account, a snapshot."""
_ZONE_PATTERN = r"^[A-Za-z_]+([/+-][A-Za-z0-9_+-]+)*$"
# A cluster has no directory beside the manifest, and no memory that outlives a process.
_CLUSTER_URL = (
    r"s3://[a-z0-9][-.a-z0-9]{1,61}[a-z0-9](/[A-Za-z0-9._=+@-]+)*|file://(/[A-Za-z0-9._=+@-]+)+"
)
_CLUSTER_MAIN_FILE = r"^local:///.*\.py$"
CLUSTER_PY_FILE = r"^local:///.+$"

_NAME = re.compile(JOB_NAME_PATTERN)
_UID = re.compile(OPERATOR_UID_PATTERN)
_ZONE = re.compile(_ZONE_PATTERN)
_URL = re.compile(rf"{_CLUSTER_URL}|file://[.](/[A-Za-z0-9._=+@-]+)+|memory://[A-Za-z0-9._-]+")


def _refuse(reason: str, fix: str) -> PydanticCustomError:
    return PydanticCustomError("moorage_value", "{reason}", {"reason": reason, "fix": fix})


def _job_name(text: str) -> str:
    if len(text) > JOB_NAME_LENGTH:
        raise _refuse(
            f"is {len(text)} characters long",
            f"use at most {JOB_NAME_LENGTH}: names of pods, services and volumes are made from it",
        )
    if not _NAME.fullmatch(text):
        raise _refuse(
            f"is not a name: {text!r}",
            "use lower-case letters, digits and '-', starting with a letter and not ending in '-'",
        )
    return text


def _operator_uid(text: str) -> str:
    if not _UID.fullmatch(text):
        raise _refuse(
            f"is not an operator uid: {text[:80]!r}",
            "use at most 63 letters, digits, '.', '_' and '-', starting with a letter or digit",
        )
    return text


def _storage_url(text: str) -> str:
    if text.endswith("/"):
        raise _refuse("ends in '/'", "leave the last '/' out")
    if text.startswith("file://") and not text.startswith(("file:///", "file://./")):
        raise _refuse(
            "does not say where it starts",
            "write file:///absolute/path, or file://./path beside the manifest",
        )
    bucket = text.removeprefix("s3://").partition("/")[0]
    if text.startswith("s3://") and re.fullmatch(r"[A-Za-z0-9_.-]+", bucket):
        _check_bucket(bucket)
    # The text itself is not repeated: people paste credentials into URLs.
    steps = text.partition("://")[2].split("/")[1:]
    if not _URL.fullmatch(text) or "." in steps or ".." in steps:
        raise _refuse(
            "is not a directory of a store",
            "write s3://bucket/path, file:///absolute/path or file://./path beside the manifest, "
            "of letters, digits and ._=+@-",
        )
    return text


def _check_bucket(name: str) -> None:
    """Refuse what no server takes for a bucket; of letters and digits, it is no password."""
    form = "3 to 63 lower-case letters, digits, '-' and '.', with a letter or digit at both ends"
    if not 3 <= len(name) <= 63:
        shown = f" {name!r}" if len(name) <= 63 else ""
        raise _refuse(
            f"has a bucket name{shown} of {len(name)} characters", f"name a bucket of {form}"
        )
    if not re.fullmatch(r"[a-z0-9][-.a-z0-9]+[a-z0-9]", name):
        raise _refuse(f"has a bucket name that no server takes: {name!r}", f"write {form}")


def _main_file(text: str) -> str:
    scheme, separator, path = text.partition("://")
    if separator and scheme != "local":
        raise _refuse(
            f"has the scheme {scheme[:16]!r}",
            "write local:///path/in/the/image/job.py, or a path relative to the manifest",
        )
    if separator and not path.startswith("/"):
        raise _refuse("is not absolute", "write local:///, then the path from the root")
    if not separator and text.startswith("/"):
        raise _refuse("is a bare absolute path", f"write local://{text}")
    if not text.endswith(".py"):
        raise _refuse("is not a Python file", "name the .py file that holds build(env)")
    return text


def _cron(text: str) -> str:
    if text in MACROS:
        return text
    fields = text.split()
    if len(fields) != len(FIELDS):
        raise _refuse(
            f"has {len(fields)} fields",
            "write five: minute, hour, day of month, month, day of week, such as '0 3 * * *'",
        )
    for field, (name, low, high, words) in zip(fields, FIELDS, strict=True):
        if not all(_cron_part(part.lower(), low, high, words) for part in field.split(",")):
            raise _refuse(
                f"has a {name} that cron does not know: {field[:40]!r}",
                f"use *, {low}-{high}, ranges a-b, steps */n, and commas between them",
            )
    return text


def _cron_part(part: str, low: int, high: int, words: Sequence[str]) -> bool:
    """Whether `part` (`*`, `5`, `mon-fri`, `*/10`) is within `low` to `high`."""
    span, slash, step = part.partition("/")
    if slash and not (step.isascii() and step.isdigit() and int(step) > 0):
        return False
    if span == "*":
        return True
    numbers = [number(end, low, words) for end in span.split("-")]
    if len(numbers) > 2 or not all(low <= one <= high for one in numbers):
        return False
    return numbers == sorted(numbers)


def _zone(text: str) -> str:
    if not _ZONE.fullmatch(text):
        raise _refuse(f"is not a time zone: {text[:40]!r}", "write UTC or one like Europe/Paris")
    return text


def _schema(pattern: str, length: int) -> WithJsonSchema:
    """What the API server is given for a text; it refuses no less than a cluster does."""
    return WithJsonSchema({"type": "string", "pattern": pattern, "maxLength": length})


# Whether a range in it goes upwards is beyond a pattern: the operator says so.
_CRON_PART = r"[0-9A-Za-z*,/-]+"
_CRON_PATTERN = rf"^({'|'.join(MACROS)}|\s*{_CRON_PART}(\s+{_CRON_PART}){{4}}\s*)$"

JobName = Annotated[str, AfterValidator(_job_name), _schema(JOB_NAME_PATTERN, JOB_NAME_LENGTH)]
OperatorUid = Annotated[str, AfterValidator(_operator_uid), _schema(OPERATOR_UID_PATTERN, 63)]
StorageUrl = Annotated[
    str, Field(max_length=512), AfterValidator(_storage_url), _schema(f"^({_CLUSTER_URL})$", 512)
]
MainFile = Annotated[
    str, Field(max_length=1024), AfterValidator(_main_file), _schema(_CLUSTER_MAIN_FILE, 1024)
]
CronExpression = Annotated[
    str, Field(max_length=256), AfterValidator(_cron), _schema(_CRON_PATTERN, 256)
]
ZoneName = Annotated[str, Field(max_length=64), AfterValidator(_zone), _schema(_ZONE_PATTERN, 64)]
