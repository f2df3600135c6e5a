"""Machine code on disk: a file for each function, signature and target, believed only if its checksum is right.

    <cache folder>/compiled/<module>.<function>-<hash of the key>.nbc  =  checksum of key and code | code

The key says all that the code depends on (`sources`: the text it was compiled from), so a file cannot be stale, and
one that is damaged, or was given another's name, is not even unpickled: the function is compiled again, and the file
written anew. A file appears under its name when it is complete, so processes may write at the same time and be killed
at any moment. A folder that cannot be written, or a full disk, costs time in the next process, nothing else.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from counterflow.code_sources import digest
from counterflow.folders import cache_directory

FOLDER = "compiled"
DIGEST_BYTES = hashlib.sha256().digest_size
BYTES_MAX = 512 << 20  # of all files: beyond it, the least recently used are removed
UNUSED_S = 24 * 3600  # a file's time is that of its last use, give or take this
HALF_WRITTEN = ".part-"  # begins the names of files that are being written
HALF_WRITTEN_S = 3600  # nobody writes that long: its process was killed
# What changes code without being part of what numba calls the target
SETTINGS = ("OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "DEBUGINFO_DEFAULT", "BOUNDSCHECK")


class CodeCache:
    """The compiled versions of one function, in the form that numba's dispatchers ask for."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any], modules: frozenset[str]) -> None:
        """Take `modules`, whose names the function can see: its own, and those of functions it was given."""
        # Now, when the function is defined, and not when it is compiled: files may be edited in the meantime.
        text = digest(modules)
        line = function.__code__.co_firstlineno
        self.name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
        self.identity = None if text is None else (function.__module__, function.__qualname__, line, text, options)

    @property
    def cache_path(self) -> str | None:
        folder = cache_directory()
        return None if folder is None else str(folder / FOLDER)

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Return the compiled function for a signature, or None if it must be compiled."""
        from numba.core.compiler import CompileResult

        context.refresh()
        place = self._place(signature, context.codegen())
        code = None if place is None else read(*place)
        if code is None:
            return None
        try:
            return CompileResult._rebuild(context, *pickle.loads(code))
        except Exception:  # whatever it is: compiling is always right
            return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Keep a compiled function, if it can be kept."""
        from numba.core.serialize import dumps

        place = self._place(signature, compiled.codegen)
        if place is not None and not compiled.lifted and not compiled.library.has_dynamic_globals:
            write(*place, dumps(compiled._reduce()))

    def _place(self, signature: Any, codegen: Any) -> tuple[Path, bytes] | None:
        """Return the file of a compiled version and its key; None where nothing can be kept."""
        folder = self.cache_path
        key = repr((self.identity, str(signature), codegen.magic_tuple(), _versions()))
        if folder is None or self.identity is None or " at 0x" in key:  # an address is another one in each process
            return None
        hashed = hashlib.sha256(key.encode())
        return Path(folder, f"{self.name}-{hashed.hexdigest()[:32]}.nbc"), hashed.digest()


def read(path: Path, key: bytes) -> bytes | None:
    """Return what was written with this key, or None if it is not there, or damaged."""
    try:
        with open(path, "rb") as file:
            data = file.read()
            unused_s = time.time() - os.fstat(file.fileno()).st_mtime
        if unused_s > UNUSED_S:
            with suppress(OSError):
                os.utime(path)
    except OSError:
        return None
    content = data[DIGEST_BYTES:]
    return content if data[:DIGEST_BYTES] == _checksum(key, content) else None


def write(path: Path, key: bytes, content: bytes) -> None:
    """Write a file that `read` believes. What cannot be written is said once, and is no error."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        tidy(path.parent)
        handle, part = tempfile.mkstemp(prefix=HALF_WRITTEN, dir=path.parent)
        try:
            with open(handle, "wb") as file:
                file.write(_checksum(key, content))
                file.write(content)
            os.replace(part, path)
        except BaseException:
            os.unlink(part)
            raise
    except OSError as error:
        _say_once(path.parent, error.strerror or str(error))


@cache
def tidy(folder: Path) -> None:
    """Remove what killed processes left and, beyond BYTES_MAX, the least recently used files; once a process."""
    files, now = [], time.time()
    with suppress(OSError):
        for entry in os.scandir(folder):
            with suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if entry.name.startswith(HALF_WRITTEN) and now - status.st_mtime > HALF_WRITTEN_S:
                    os.unlink(entry)
                elif entry.is_file(follow_symlinks=False):
                    files.append((status.st_mtime, status.st_size, entry.path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= BYTES_MAX:
            break
        with suppress(OSError):
            os.unlink(path)
            total -= size


def _checksum(key: bytes, content: bytes) -> bytes:
    return hashlib.sha256(key + content).digest()


@cache
def _versions() -> tuple[str, ...]:
    import llvmlite
    import numba

    settings = (f"{name}={getattr(numba.config, name, None)}" for name in SETTINGS)
    return numba.__version__, llvmlite.__version__, sys.version, *settings


@cache
def _say_once(folder: Path, reason: str) -> None:
    warnings.warn(
        f"compiled code cannot be kept in {folder} ({reason}), so other processes compile it again", stacklevel=4
    )
