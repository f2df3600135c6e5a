"""Kernels made ready beside a running join: it goes on with numpy, and changes over when they are there.

    driver     numpy ... numpy ... numpy ... numpy | compiled
    thread                wait .................... load
    child                 compile into the cache

Compiling is mostly Python, which would take every other turn from the join's own threads: so a process of its own
compiles into the cache, and the thread here only loads. Where there is no cache, or no process to be had, the thread
compiles.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import io
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from counterflow.jit import cache_directory
from counterflow.predicate.conditions import PythonFunction
from counterflow.predicate.expression import Expression
from counterflow.windows.access import AccessPath
from counterflow.windows.compiled.compiled_predicate import Access, CompiledPredicate
from counterflow.windows.compiled.predicate_source import NotCompilable

EXIT_SECONDS = 10.0  # how long the end of the program waits for a kernel that is being compiled in this process
CHILD_SECONDS = 120.0  # how long the child may take; some seconds are usual
NICENESS = 5  # the child's: the join comes first
BESIDE = (
    "arrivals",
    "few",
    "merging",
    "ordering",
    "picking",
    "similar_texts",
    "texts",
)  # modules here that compiled joins call, too
NEEDED = {"index": ("index", "scan"), "scan": ("scan",), "prefilter": ("prefilter",)}  # what a search may call
FOR_FEW = {"index": ("indexed",)}  # what `few_rows` calls: it is made last, and not waited for
READY = b"ready\n"  # what the child says when that is all it has to make
# The first line that the child reads says where its modules are; with -P the current folder is not among them.
CHILD = (
    "import json, sys; sys.path[:] = json.loads(sys.stdin.buffer.readline()); "
    "from counterflow.windows.compiled.background import compile_what_is_asked; compile_what_is_asked()"
)


class BackgroundCompiler:
    """A compiler of a predicate for windows with these paths, without NULLs and with them.

    One thread asks `ready`; any may `close`.
    """

    def __init__(self, paths: Sequence[AccessPath], predicate: Expression, access: Access) -> None:
        self.paths, self.predicate, self.access = tuple(paths), predicate, access
        self.threads: dict[bool, threading.Thread] = {}
        self._ready: set[bool] = set()
        self._ready_for_few: set[bool] = set()
        self._failures: dict[bool, BaseException] = {}
        self._children: list[subprocess.Popen[bytes]] = []
        self._closed = self._warned = False

    def ready(self, nullable: bool) -> bool:
        """Return whether the kernels are loaded; the first call begins with it. Raise NotCompilable if they cannot be.

        An error that nobody expected is said in a warning, because the join is slower from then on.
        """
        if nullable in self._failures:
            error = self._failures[nullable]
            if not (isinstance(error, NotCompilable) or self._warned):
                self._warned = True
                warnings.warn(
                    f"the predicate could not be compiled ({type(error).__name__}: {error}): the join goes on with "
                    "numpy, which is slower",
                    RuntimeWarning,
                    stacklevel=2,
                )
            raise NotCompilable(str(error)) from error
        if nullable in self._ready:
            return True
        if nullable not in self.threads and not self._closed:
            if (request := self._request(nullable)) in _loaded:
                self._ready.add(nullable)
                if request in _loaded_for_few:
                    self._ready_for_few.add(nullable)
                else:
                    self._start_thread(nullable, self._prepare_for_few)
                return True
            self._start_thread(nullable, self._prepare)
        return False

    def _start_thread(self, nullable: bool, target: Callable[[bool], None]) -> None:
        _compilers.add(self)
        thread = threading.Thread(target=target, args=(nullable,), name="counterflow compiler", daemon=True)
        self.threads[nullable] = thread
        try:
            thread.start()
        except RuntimeError as error:  # no thread to be had
            self._failures[nullable] = error

    def ready_for_few(self, nullable: bool) -> bool:
        """Return whether the kernels are loaded that `few_rows` calls."""
        return nullable in self._ready_for_few

    def _request(self, nullable: bool) -> bytes:
        return pickled((self.paths, self.predicate, self.access, nullable))

    @property
    def busy(self) -> bool:
        """Whether kernels that a search needs are being compiled or loaded."""
        return any(thread.is_alive() for nullable, thread in list(self.threads.items()) if nullable not in self._ready)

    def close(self) -> None:
        """Stop, without waiting: the child is ended at once, the thread when it is done with its kernel."""
        self._closed = True
        for child in self._children:
            child.kill()

    # --- the thread

    def _prepare(self, nullable: bool) -> None:
        child = late = None
        try:
            kernels = kernels_of(self.paths, self.predicate, self.access, nullable)
            child = self._start_child(nullable)
            if child is not None:  # what it could not do is done here
                late = threading.Timer(CHILD_SECONDS, child.kill)
                late.daemon = True
                late.start()
                assert child.stdout is not None
                child.stdout.read(len(READY))
            if not self._load(kernels):
                return
            load_beside()
            _loaded.add(self._request(nullable))
            self._ready.add(nullable)
            if child is not None and child.stdout is not None:
                child.stdout.read()  # to its end
            self._prepare_for_few(nullable)
        except BaseException as error:  # it belongs to the join
            self._failures[nullable] = error
        finally:
            if late is not None:
                late.cancel()
            if child is not None:
                child.kill()
                with contextlib.suppress(OSError):  # it has not read everything
                    child.communicate()

    def _prepare_for_few(self, nullable: bool) -> None:
        try:
            if self._load(kernels_of(self.paths, self.predicate, self.access, nullable, FOR_FEW)):
                _loaded_for_few.add(self._request(nullable))
                self._ready_for_few.add(nullable)
        except Exception as error:  # then few rows take as long as many
            warnings.warn(
                f"code for few rows could not be compiled ({type(error).__name__}: {error}): rows that come alone are "
                "joined more slowly",
                RuntimeWarning,
                stacklevel=2,
            )

    def _load(self, kernels: list[tuple[Any, str]]) -> bool:
        """Load kernels, or make them; return False if it was closed meanwhile."""
        for kernel, name in kernels:
            if self._closed:
                return False
            getattr(kernel, name)
        return True

    def _start_child(self, nullable: bool) -> subprocess.Popen[bytes] | None:
        """Return a process that compiles into the cache, or None where that cannot be."""
        folder = cache_directory()
        if folder is None or not sys.executable:
            return None
        request = self._request(nullable)
        try:
            child = subprocess.Popen(
                [sys.executable, "-P", "-c", CHILD],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "COUNTERFLOW_CACHE_DIR": str(folder)},
            )
        except OSError:  # no process to be had
            return None
        self._children.append(child)
        if self._closed:
            child.kill()
        assert child.stdin is not None
        header = json.dumps([path for path in sys.path if isinstance(path, str)]).encode()
        with contextlib.suppress(OSError):  # it has ended already
            child.stdin.write(header + b"\n" + len(request).to_bytes(8, "little") + request)
            child.stdin.flush()  # and it stays open: its end tells the child that this process is gone
        return child


def pickled(asked: object) -> bytes:
    """Return it as bytes, without the Python functions in it: they are no part of what is compiled."""
    file = io.BytesIO()
    _WithoutFunctions(file).dump(asked)
    return file.getvalue()


class _WithoutFunctions(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, PythonFunction):
            return PythonFunction, (None, value.name, value.digest)
        return NotImplemented


def kernels_of(
    paths: Sequence[AccessPath],
    predicate: Expression,
    access: Access,
    nullable: bool,
    needed: Mapping[str, tuple[str, ...]] = NEEDED,
) -> list[tuple[Any, str]]:
    """Return the kernels that windows with these paths need, each as its owner and its name there."""
    found = []
    for path in paths:
        if path.ways and access in ("auto", "index"):
            if needed is not FOR_FEW:
                found += [CompiledPredicate(way.path, way.predicate, "index", nullable) for way in path.ways]
        elif not (path.similar and access in ("auto", "index")):  # texts are searched by code that is always the same
            found.append(CompiledPredicate(path, predicate, access, nullable))
    return [(one.kernels, name) for one in found for name in needed.get(one.access, ())]


def load_beside() -> None:
    """Compile, or load from the cache, what is the same for all predicates."""
    for name in BESIDE:
        importlib.import_module(f"counterflow.windows.compiled.{name}")


def compile_what_is_asked() -> None:
    """Run the child: compile what standard input asks for, and end when it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's means the parent
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    asked = sys.stdin.buffer
    paths, predicate, access, nullable = pickle.loads(asked.read(int.from_bytes(asked.read(8), "little")))
    threading.Thread(target=_end_with, args=(asked,), daemon=True).start()
    for kernel, name in kernels_of(paths, predicate, access, nullable):
        getattr(kernel, name)
    load_beside()
    os.write(sys.stdout.fileno(), READY)
    for kernel, name in kernels_of(paths, predicate, access, nullable, FOR_FEW):
        getattr(kernel, name)
    os._exit(0)


def _end_with(parent: Any) -> None:
    parent.read(1)
    os._exit(1)


_loaded: set[bytes] = set()  # requests whose kernels this process has: the next join with them need not wait
_loaded_for_few: set[bytes] = set()
_compilers: weakref.WeakSet[BackgroundCompiler] = weakref.WeakSet()


@atexit.register
def _at_exit() -> None:
    """Wait for the compilers' threads: LLVM must not be at work while the process ends."""
    compilers = list(_compilers)
    for compiler in compilers:
        compiler.close()
    for compiler in compilers:
        for thread in list(compiler.threads.values()):
            if thread.ident is not None:
                thread.join(EXIT_SECONDS)
