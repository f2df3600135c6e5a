"""The text of modules, and a digest of all text that a module's compiled code may depend on.

Compiled code contains whatever its module can see: constants and functions of the modules it imports, of those that
these import, and so on. So its key in the cache is made of the text of all of them. Nothing is imported to find out,
and import statements are found without parsing: a dozen modules, as a protocol has, take two milliseconds.

Text comes from a module's loader: a package in a zip file, and a module that is made of text, are treated like files.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterable
from functools import cache
from importlib.abc import ExecutionLoader
from importlib.util import module_from_spec, spec_from_loader
from types import ModuleType
from typing import Any, NamedTuple

PACKAGE = __name__.partition(".")[0]
# Wherever they stand: one that is found in a comment costs nothing but a module more.
IMPORT_NAMES = re.compile(rf"from ({PACKAGE}[\w.]*) import (\((?:[^)#]|#.*)*\)|.*)")
IMPORT_MODULE = re.compile(rf"import ({PACKAGE}[\w.]*)")
FOR_TYPES = re.compile(r"^if TYPE_CHECKING:\n(?:(?:[ \t].*)?\n)+", re.MULTILINE)
COMMENTS = re.compile(r"#.*")
NAMES = re.compile(r"(\w+)(?: as \w+)?\s*(?:,|$)")


class TextLoader(ExecutionLoader):
    """Loads a module from its text. It has a file name, for tracebacks, and no file."""

    def __init__(self, text: str) -> None:
        self.text = text

    def get_source(self, fullname: str) -> str:
        return self.text

    def get_filename(self, fullname: str) -> str:
        return f"{fullname}.py"

    def is_package(self, fullname: str) -> bool:
        return False


def module_from_text(name: str, text: str, **values: Any) -> ModuleType:
    """Return a new module with this text, registered by its name; `values` are there before the text is executed."""
    loader = TextLoader(text)
    spec = spec_from_loader(name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    vars(module).update(values)
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


class ModuleText(NamedTuple):
    """What is known of a module's text: its digest, and which names it imports from which modules of this package."""

    digest: str
    imports: set[tuple[str, str]]
    is_package: bool


@cache
def digest(modules: frozenset[str]) -> str | None:
    """Return a digest of these modules and of all they import in this package; None if one of them has no text."""
    texts = closure(modules)
    if not texts.keys() >= modules:
        return None
    return hashlib.sha256(repr(sorted((name, text.digest) for name, text in texts.items())).encode()).hexdigest()


def closure(modules: Iterable[str]) -> dict[str, ModuleText]:
    """Return the texts of these modules and of all they import in this package, at any depth."""
    found: dict[str, ModuleText] = {}
    ahead = set(modules)
    while ahead:
        module = ahead.pop()
        text = None if module in found else _text(module)
        if text is not None:
            found[module] = text
            for imported, name in text.imports:
                ahead.add(imported)
                if name and (inside := _text(imported)) is not None and inside.is_package:
                    ahead.add(f"{imported}.{name}")
    return found


def imports_in(text: str) -> set[tuple[str, str]]:
    """Return what a text imports from which modules of this package, apart from what is there for type checkers only.

    A module that is imported itself comes with no name.
    """
    text = FOR_TYPES.sub("", text)
    found = {(module, "") for module in IMPORT_MODULE.findall(text)}
    for module, names in IMPORT_NAMES.findall(text):
        found |= {(module, ""), *((module, name) for name in NAMES.findall(COMMENTS.sub("", names).strip("() \n")))}
    return found


@cache
def _text(module: str) -> ModuleText | None:
    text, is_package = text_of(f"{module}.__init__"), True
    if text is None:
        text, is_package = text_of(module), False
    return None if text is None else ModuleText(hashlib.sha256(text.encode()).hexdigest(), imports_in(text), is_package)


def text_of(module: str) -> str | None:
    """Return the text of a module: of this package, whether imported or not, or of one that is there already."""
    if module.startswith(f"{PACKAGE}."):
        return _text_in_package(module)
    spec = getattr(sys.modules.get(module), "__spec__", None)
    if spec is None:
        return None
    if hasattr(spec.loader, "get_source"):
        return spec.loader.get_source(module)
    try:
        with open(spec.origin, encoding="utf-8") as file:  # a loader of the tests, which rewrites assertions
            return file.read()
    except (OSError, TypeError):
        return None


def _text_in_package(module: str) -> str | None:
    package = sys.modules[PACKAGE]
    loader: Any = package.__spec__.loader if package.__spec__ else None
    try:
        return loader.get_data(os.path.join(package.__path__[0], *module.split(".")[1:]) + ".py").decode()
    except OSError:
        return None
