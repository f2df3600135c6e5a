"""Folders for compiled code: private ones only, never a new one for each process, and what cannot be used is said."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import pytest

from counterflow import folders
from counterflow.engines.spark.session import java
from counterflow.folders import cache_directories, cache_directory, private_temporary_directory

ROOT_ONLY = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as other users")
USER, OTHER = 54321, 54399


@pytest.fixture
def place(monkeypatch):
    """A folder that other users can enter, with a home and a temporary folder, as the environment says."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    for name in ("home", "tmp"):
        (path / name).mkdir()
    (path / "tmp").chmod(0o1777)
    monkeypatch.delenv("COUNTERFLOW_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(path / "home"))
    monkeypatch.setattr(tempfile, "tempdir", str(path / "tmp"))
    monkeypatch.chdir(path)
    folders._first_usable.cache_clear()
    yield path
    folders._first_usable.cache_clear()
    shutil.rmtree(path, ignore_errors=True)


def asked(*names):
    """Return what these functions return, and what is said meanwhile."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = [getattr(folders, name)() for name in names]
    return [None if path is None else str(path) for path in found], [str(warning.message) for warning in said]


def asked_as(user, *names):
    """The same in a new process of another user."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgid(user)
            os.setuid(user)
            folders._first_usable.cache_clear()
            os.write(writer, json.dumps(asked(*names)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader) as file:
        answer = file.read()
    os.waitpid(child, 0)
    return tuple(json.loads(answer))


def listed(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_order_of_folders(place, monkeypatch):
    home, given = place / "home" / ".cache" / "counterflow", place / "given"
    temporary = place / "tmp" / f"counterflow-{os.getuid()}"
    assert cache_directory() == home
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "xdg"))
    assert cache_directory() == place / "xdg" / "counterflow"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_directory() == home
    monkeypatch.setenv("COUNTERFLOW_CACHE_DIR", str(given))
    assert list(cache_directories()) == [given, home, temporary]
    assert all(path.stat().st_mode & 0o777 == 0o700 for path in (given, home, temporary))


def test_a_given_folder_in_the_home_folder(place, monkeypatch):
    monkeypatch.setenv("COUNTERFLOW_CACHE_DIR", "~/code")
    assert cache_directory() == place / "home" / "code"


@pytest.mark.parametrize("home", [None, "", "relative", "~"])
@pytest.mark.parametrize("given", [None, "~", "~/code", "~root/code"])
def test_a_home_folder_that_is_not_known(place, monkeypatch, home, given):
    """Nothing is made below the current folder, least of all `~`."""

    def unknown(user):
        raise KeyError(user)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    if home is None:
        monkeypatch.delenv("HOME")
    else:
        monkeypatch.setenv("HOME", home)
    if given is not None:
        monkeypatch.setenv("COUNTERFLOW_CACHE_DIR", given)
    found, said = asked("cache_directory", "cache_directory")
    assert found == [str(place / "tmp" / f"counterflow-{os.getuid()}")] * 2
    assert len(said) == (given is not None)
    assert listed(place) == ["home", "tmp"]


def test_a_given_folder_that_others_can_write_to(place, monkeypatch):
    shared = place / "shared"
    shared.mkdir()
    shared.chmod(0o775)
    monkeypatch.setenv("COUNTERFLOW_CACHE_DIR", str(shared))
    home = str(place / "home" / ".cache" / "counterflow")
    found, said = asked("cache_directory", "cache_directory")
    assert found == [home, home] and listed(shared) == []
    assert said == [
        f"COUNTERFLOW_CACHE_DIR cannot be used: other users may write to {shared}: chmod 700 it; "
        f"compiled code is kept in {home} instead"
    ]


def test_a_given_folder_that_is_a_file(place, monkeypatch):
    (place / "file").touch()
    monkeypatch.setenv("COUNTERFLOW_CACHE_DIR", str(place / "file"))
    found, said = asked("cache_directory")
    assert found == [str(place / "home" / ".cache" / "counterflow")]
    assert len(said) == 1 and str(place / "file") in said[0] and "File exists" in said[0]


@ROOT_ONLY
def test_a_given_folder_of_another_user(place, monkeypatch):
    given = place / "given"
    given.mkdir(mode=0o755)
    monkeypatch.setenv("COUNTERFLOW_CACHE_DIR", str(given))
    os.chown(place / "home", USER, USER)
    found, said = asked_as(USER, "cache_directory")
    assert found == [str(place / "home" / ".cache" / "counterflow")]
    assert len(said) == 1 and f"{given} belongs to another user" in said[0]


@ROOT_ONLY
def test_folders_that_cannot_be_written(place, monkeypatch):
    given = place / "given"
    given.mkdir(mode=0o555)
    os.chown(given, USER, USER)
    monkeypatch.setenv("COUNTERFLOW_CACHE_DIR", str(given))
    temporary = str(place / "tmp" / f"counterflow-{USER}")
    found, said = asked_as(USER, "cache_directory", "cache_directory")  # the home folder is root's
    assert found == [temporary, temporary]
    assert len(said) == 1 and f"{given} cannot be written" in said[0] and temporary in said[0]
    assert os.stat(temporary).st_uid == USER


@ROOT_ONLY
def test_no_folder_at_all(place):
    (place / "tmp").chmod(0o755)
    found, said = asked_as(USER, "cache_directory", "cache_directory")
    assert found == [None, None]
    assert len(said) == 1 and "every process compiles anew" in said[0] and "COUNTERFLOW_CACHE_DIR" in said[0]


@ROOT_ONLY
def test_a_temporary_folder_that_another_user_took(place):
    """Another one is made once, whatever processes come, and whatever names others take."""
    taken = place / "tmp" / f"counterflow-{USER}"
    for folder in (taken, Path(f"{taken}-aaaa")):
        folder.mkdir()
        os.chown(folder, OTHER, OTHER)
    (first,), said = asked_as(USER, "private_temporary_directory")
    assert Path(first).parent == place / "tmp" and os.stat(first).st_uid == USER and said == []
    for _ in range(2):
        assert asked_as(USER, "cache_directory", "private_temporary_directory") == ([first, first], [])
    assert len(listed(place / "tmp")) == 3 and listed(taken) == []


@ROOT_ONLY
@pytest.mark.parametrize("below", ["", "deeper/still"])
def test_links_of_other_users(place, monkeypatch, below):
    """A link to a folder of ours, which is not private, or a link in the way to it: nothing is made through it."""
    documents = place / "documents"
    documents.mkdir(mode=0o700)
    os.chown(documents, USER, USER)
    link = place / "tmp" / f"counterflow-{USER}"
    link.symlink_to(documents)
    os.lchown(link, OTHER, OTHER)
    monkeypatch.setenv("COUNTERFLOW_CACHE_DIR", str(link / below))
    (found,), said = asked_as(USER, "cache_directory")
    assert found.startswith(f"{link}-") and len(said) == 1 and f"{link} is a link that belongs" in said[0]
    assert listed(documents) == []
    os.lchown(link, USER, USER)  # one's own link is as good as the folder
    assert asked_as(USER, "cache_directory") == ([str(link / below)], [])


def test_the_script_that_starts_java(place, monkeypatch):
    """It is run, so it is put where compiled code is; where that cannot be written, into the next folder."""
    home = java.write_shim(Path("/somewhere/java"), "21")
    assert home.parent == cache_directory() and os.access(home / "bin" / "java", os.X_OK)
    (home / "bin" / "java").unlink()
    (home / "bin").rmdir()
    (home / "bin").touch()  # no folder can be made here
    assert java.write_shim(Path("/somewhere/java"), "21").parent == private_temporary_directory()


def test_a_process_says_that_its_folder_cannot_be_used(place):
    """Once, though every compiled function asks for it."""
    given = place / "given"
    given.mkdir()
    given.chmod(0o777)
    program = "import numpy as np; from counterflow.protocols.threads import stop; stop(np.zeros(64, np.int64))"
    environment = {**os.environ, "COUNTERFLOW_CACHE_DIR": str(given)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("COUNTERFLOW_CACHE_DIR cannot be used") == 1 and str(given) in done.stderr
