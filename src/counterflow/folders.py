"""Folders for what can be made again: compiled code, the script that starts Java, a machine's calibration.

Code is loaded and run from there, so a folder is used only if nobody but this user can write to it:

    COUNTERFLOW_CACHE_DIR  ->  the user's cache  ->  a folder of this user under the temporary one  ->  none

Whoever finds none goes on without.
"""

from __future__ import annotations

import os
import pwd
import stat
import tempfile
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path

NAME = "counterflow"
GIVEN = "COUNTERFLOW_CACHE_DIR"
VARIABLES = (GIVEN, "XDG_CACHE_HOME", "HOME", "TMPDIR", "TEMP", "TMP")


def cache_directory() -> Path | None:
    """Return the folder where compiled code is kept, or None. What cannot be used is said once, in a warning."""
    return _first_usable(tuple(map(os.environ.get, VARIABLES)), os.getuid())


def cache_directories() -> Iterator[Path]:
    """Yield the folders that can be used, the best first."""
    for found in _attempts():
        if isinstance(found, Path):
            yield found


def private_temporary_directory() -> Path:
    """Return a folder of this user under the temporary one: the same for all processes, and for ever.

    Another user may have taken its name. Then the folder has a name that nobody could foresee, and is found again by
    its owner.
    """
    parent = Path(tempfile.gettempdir())
    name = f"{NAME}-{os.getuid()}"
    for folder in (parent / name, *sorted(parent.glob(f"{name}-*"))):
        try:
            return private_folder(folder)
        except OSError:
            continue
    return Path(tempfile.mkdtemp(prefix=f"{name}-"))


def private_folder(folder: Path) -> Path:
    """Return the folder, which is made if need be; raise an OSError that says why it cannot be used."""
    for part in (*reversed(folder.parents), folder):
        if part.is_symlink() and part.lstat().st_uid not in (0, os.getuid()):
            raise PermissionError(f"{part} is a link that belongs to another user")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"other users may write to {folder}: chmod 700 it")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"{folder} cannot be written")
    return folder


@cache
def _first_usable(variables: tuple[str | None, ...], user: int) -> Path | None:
    """Return the first folder that can be used. The arguments are what it depends on."""
    failures = []
    for found in _attempts():
        if isinstance(found, OSError):
            failures.append(str(found))
            continue
        if variables[0] and failures:
            warnings.warn(
                f"{GIVEN} cannot be used: {failures[0]}; compiled code is kept in {found} instead", stacklevel=3
            )
        return found
    warnings.warn(
        f"no folder to keep compiled code in ({'; '.join(failures)}), so every process compiles anew; "
        f"set {GIVEN} to a folder of your own",
        stacklevel=3,
    )
    return None


def _attempts() -> Iterator[Path | OSError]:
    """Yield each folder that can be used, and for each other one the reason why not."""
    attempts = [lambda: private_folder(_user_cache()), private_temporary_directory]
    if given := os.environ.get(GIVEN):
        attempts.insert(0, lambda: private_folder(_given(given)))
    for attempt in attempts:
        try:
            yield attempt()
        except OSError as error:
            yield error


def _given(folder: str) -> Path:
    """Return the folder that was asked for; `~`, which no shell has replaced, is the home directory."""
    first, _, below = folder.partition("/")
    if first == "~":
        return _home() / below
    if first.startswith("~"):
        raise FileNotFoundError(f"{folder} begins with another user's home: give the whole path")
    return Path(folder).absolute()


def _user_cache() -> Path:
    """Return the user's cache folder. A relative XDG_CACHE_HOME is to be ignored, says its specification."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(configured) if os.path.isabs(configured) else _home() / ".cache") / NAME


def _home() -> Path:
    home = os.environ.get("HOME", "")
    if not home:
        try:
            home = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            raise FileNotFoundError("HOME is not set, and this user has no home directory") from None
    if not os.path.isabs(home):
        raise FileNotFoundError(f"HOME is {home!r}, which is no absolute path")
    return Path(home)
