"""What is wrong with a job file is found before Spark is started, as far as reading it tells."""

import sys
from typing import Any

import pytest

from moorage.api.streams import StreamEnvironment
from moorage.driver.job_file import build_graph, check_folders, check_job_file
from moorage.engine.task_failures import UserFunctionError
from moorage_state.errors import UserError


@pytest.fixture
def job(tmp_path):
    def write(text):
        path = tmp_path / "job.py"
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize(
    "text",
    [
        "def build(env):\n    pass",
        "def build(*arguments): ...",
        "def build(env, name='a', *, more=1): ...",
        "@decorated\ndef build(): ...",
        "if True:\n    def build(): ...\nelse:\n    def build(env): ...",
        "if True:\n    def build(env): ...",
        "build = lambda env: None",
        "from elsewhere import make as build",
        "from elsewhere import *",
        "globals()['build'] = print",
        "class Job:\n    def __call__(self, env): ...\n\nother = build = Job()",
    ],
)
def test_a_file_that_may_have_a_build_passes_without_being_run(job, text):
    check_job_file(job(f"{text}\nraise SystemExit\n"))


def test_a_file_without_a_build_is_told_what_to_add(job):
    with pytest.raises(UserError, match=r"defines no build\(env\): file=.*job\.py; add `def build"):
        check_job_file(job("import os\n\n\ndef built(env):\n    os.build(env)\n"))


@pytest.mark.parametrize("arguments", ["", "env, name", "*, env", "env, *, name"])
def test_a_build_that_env_does_not_fit_in_is_told_its_line(job, arguments):
    with pytest.raises(
        UserError, match=r"with env: file=.*job\.py line=2; define `def build\(env\)"
    ):
        check_job_file(job(f"import os\ndef build({arguments}): ..."))


@pytest.mark.parametrize(
    "text", ["x = 1\ndef build(env)\n    pass", "x = 1\ndef build(env):\npass"]
)
def test_a_file_that_is_not_python_is_told_its_line(job, text):
    with pytest.raises(UserFunctionError, match=r"file=.*job\.py line=[23]: \w+Error: "):
        check_job_file(job(text))


def test_a_file_of_bytes_is_told_as_well(job):
    with pytest.raises(UserFunctionError, match="cannot be imported"):
        check_job_file(job("x = '\0'"))


def test_a_module_that_is_not_there_is_told_where_to_put_it(job):
    session: Any = None
    path = job("import no_such_module\n\ndef build(env): ...\n")
    with pytest.raises(UserFunctionError, match=r"line=1: .*'no_such_module'; install it where"):
        build_graph(path, StreamEnvironment(session))


def test_what_a_build_asks_for_in_vain_is_told_with_its_line(job):
    session: Any = None
    path = job("def ask(env):\n    env.claim_uid('a b')\n\n\ndef build(env):\n    ask(env)\n")
    with pytest.raises(UserError, match=r"uid='a b' \(file=.*job\.py line=2\)$") as caught:
        build_graph(path, StreamEnvironment(session))
    assert type(caught.value) is UserError


def test_a_call_at_the_wrong_place_is_told_with_its_line(job):
    session: Any = None
    begins = "from moorage.api.misplaced import Unfinished\n\nclass Windows(Unfinished):\n"
    path = job(f"{begins}    call_first = 'select'\n\ndef build(env):\n    Windows().sink_to()\n")
    with pytest.raises(UserError, match=r"call select first \(file=.*job\.py line=7\)$"):
        build_graph(path, StreamEnvironment(session))


def test_a_call_without_its_uid_is_told_what_that_is(job):
    session: Any = None
    text = "def sink_to(sink, *, uid): ...\ndef build(env):\n    sink_to(1)\n"
    with pytest.raises(UserFunctionError, match=r"line=3.*a uid is a name of its own in the job"):
        build_graph(job(text), StreamEnvironment(session))


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            "KeyedStream.join(1, 2, on='k')",
            r"join has no argument 'on': .*key_by.*write join\(other",
        ),
        ("KeyedStream.join(1, 2, how='left')", r"no argument 'how': co_group\(other\)"),
        (
            "KeyedStream.window(1, 2, lateness='1s')",
            r"did you mean allowed_lateness\?; write window\(assigner, \*, trigger=None",
        ),
        (
            "KeyedStream.process(1, 2, name='a', output='b')",
            r"process has no argument 'name': .*uid",
        ),
        ("KeyedStream.process(1, 2, output='b')", r"process missing 1 .*'uid'; write .*a uid is a"),
        (
            "KeyedStream.process(1, 2, 'uid', 'out')",
            r"process takes 2 positional .*; write process",
        ),
        ("Tumbling('1s', timezone='UTC')", r"Tumbling has no argument 'timezone'"),
    ],
)
def test_arguments_that_a_call_does_not_take_are_told_with_those_it_does(job, call, told):
    session: Any = None
    begins = (
        "from moorage.api.streams import KeyedStream\nfrom moorage.api.windows import Tumbling\n"
    )
    path = job(f"{begins}\ndef build(env):\n    {call}\n")
    with pytest.raises(UserError, match=rf"{told}.* \(file=.*job\.py line=5\)$"):
        build_graph(path, StreamEnvironment(session))


@pytest.mark.parametrize(
    "text",
    [
        "class Tumbling:\n    def __init__(self): ...\n\ndef build(env): Tumbling(size=1)\n",
        "def build(env): raise TypeError('KeyedStream is no number')\n",
        "def build(env): (lambda: None)(1)\n",
    ],
)
def test_errors_of_other_calls_stay_what_they_are(job, text):
    session: Any = None
    with pytest.raises(UserFunctionError, match=r"build\(env\) failed: .*TypeError: "):
        build_graph(job(text), StreamEnvironment(session))


def test_a_file_that_hides_a_package_we_need_is_named(job, tmp_path):
    path = job("def build(env): ...")
    assert check_folders(path) == []
    (tmp_path / "pandas.py").write_text("")
    with pytest.raises(UserError, match=r"file=.*/pandas\.py package=pandas; rename the file"):
        check_folders(path)


def test_installed_packages_beside_the_job_hide_nothing(job, tmp_path):
    (tmp_path / "pandas").mkdir()
    (tmp_path / "pandas" / "__init__.py").write_text("")
    assert check_folders(job("def build(env): ...")) == []


def test_a_file_named_like_the_standard_library_is_told_and_imported_by_nobody(
    job, tmp_path, monkeypatch
):
    (tmp_path / "pickle.py").write_text("raise RuntimeError")
    (tmp_path / "wave.py").write_text("raise RuntimeError")
    (tmp_path / "beside_the_job.py").write_text("here = True")
    path = job("import beside_the_job, pickle, wave\nbuild = pickle.dumps and (lambda env: None)\n")
    (told, other) = check_folders(path)
    assert f"file={tmp_path}/pickle.py" in told
    assert f"file={tmp_path}/wave.py" in other
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "wave", raising=False)
    session: Any = None
    with pytest.raises(UserError, match=r"no operators|nothing"):
        build_graph(path, StreamEnvironment(session))
    assert sys.modules["wave"].__file__ != str(tmp_path / "wave.py")
