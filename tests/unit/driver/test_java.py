"""Which Java a job on a laptop runs on, and what is said where there is none for it."""

import pytest

from moorage.driver.java import java_home, java_text
from moorage_state.errors import UserError


@pytest.fixture
def release(tmp_path):
    def make(place, version=None):
        home = tmp_path / place
        (home / "bin").mkdir(parents=True)
        (home / "bin" / "java").touch(0o755)
        if version:
            (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
        return home

    return make


def test_one_on_the_path_is_left_to_spark(release, tmp_path):
    home = release("opt/java", "17.0.9")
    release("usr/lib/jvm/java-21", "21.0.1")
    assert java_home({"PATH": str(home / "bin")}, tmp_path) is None


def test_one_that_says_no_version_is_taken_at_its_word(release, tmp_path):
    assert java_home({"JAVA_HOME": str(release("a"))}, tmp_path) is None
    assert java_home({"PATH": str(release("b") / "bin")}, tmp_path) is None


def test_people_are_told_which_one_it_is(release):
    home = release("opt/java", "17.0.9")
    assert java_text({"PATH": str(home / "bin")}) == f"17.0.9 at {home}"
    assert java_text({"JAVA_HOME": str(home)}) == f"17.0.9 at {home}"
    silent = release("opt/other")
    assert java_text({"JAVA_HOME": str(silent)}) == f"a version that it does not say at {silent}"


@pytest.mark.parametrize("place", ["usr/lib/jvm/java-21", "home/.sdkman/candidates/java/current"])
def test_one_that_is_not_on_the_path_is_found(release, tmp_path, place):
    home = release(place, "21.0.1")
    environ = {"PATH": str(tmp_path), "HOME": str(tmp_path / "home")}
    assert java_home(environ, tmp_path) == home


def test_of_several_the_tested_version_goes_before_newer_ones(release, tmp_path):
    release("usr/lib/jvm/a", "11.0.2")
    tested = release("usr/lib/jvm/b", "17.0.9")
    release("usr/lib/jvm/c", "25")
    assert java_home({"PATH": ""}, tmp_path) == tested


def test_a_new_one_elsewhere_goes_before_an_old_one_on_the_path(release, tmp_path):
    old, new = release("opt/java", "1.8.0_292"), release("usr/lib/jvm/java-17", "17.0.9")
    assert java_home({"PATH": str(old / "bin")}, tmp_path) == new


def test_where_there_is_none_it_is_said_how_to_get_one(tmp_path):
    with pytest.raises(UserError, match=r"none on PATH; install Java 17 or later .*apt-get"):
        java_home({"PATH": ""}, tmp_path)


def test_an_old_one_is_named_with_its_version(release, tmp_path):
    old = release("opt/java", "1.8.0_292")
    with pytest.raises(UserError, match=rf"java on PATH is too old .*version=8 home={old}; ins"):
        java_home({"PATH": str(old / "bin")}, tmp_path)
    with pytest.raises(UserError, match=r"JAVA_HOME is too old .*version=8"):
        java_home({"JAVA_HOME": str(old), "PATH": ""}, tmp_path)


def test_a_wrong_java_home_is_said_and_not_passed_over(release, tmp_path):
    release("usr/lib/jvm/java-17", "17.0.9")
    with pytest.raises(UserError, match=r"JAVA_HOME holds no bin/java: /no/java; correct it"):
        java_home({"JAVA_HOME": "/no/java", "PATH": ""}, tmp_path)
