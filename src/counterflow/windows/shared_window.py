"""A window that changes no more, as a file that the processes of a host map: its columns and index are in memory once.

    file:  length of the header | header | ring's columns, each on a page of its own | index

Only a window with a compiled index is worth it, and only who has the same predicate may read it.
"""

from __future__ import annotations

import json
import mmap
import os
import uuid
from pathlib import Path
from typing import Any

import numpy as np

from counterflow.windows.store import WindowStore
from counterflow.windows.vectors import Array

PAGE = 1 << 12
CHUNK = 1 << 20  # bytes; those without anything in them take no room in the file
INDEX = ("bands", "heads", "records", "pool", "numbers", "probing_lengths")
RING = ("capacity", "first", "next", "in_order", "offset")


def write_window(store: WindowStore, path: Path) -> bool:
    """Write a window's file; return False if it is not of the kind that can be shared."""
    window, columns = store.one_window, store.ring.columns
    if window is None or window.access != "index" or any(array.dtype == object for array in columns.values()):
        return False
    index = {name: array for name in INDEX if (array := getattr(window, name)) is not None}
    places: list[tuple[str, str, str, int, tuple[int, ...]]] = []
    end, contents = 0, []
    for kind, arrays in (("ring", columns), ("index", index)):
        for name, array in arrays.items():
            # Records have fields, whose types the reader knows.
            dtype, shape = ("|u1", (array.nbytes,)) if array.dtype.names else (array.dtype.str, array.shape)
            places.append((kind, name, dtype, end, shape))
            contents.append(array)
            end += -(-array.nbytes // PAGE) * PAGE
    ring = {name: getattr(store.ring, name) for name in RING}
    header = json.dumps({"ring": ring, "nulls": store.nulls, "arrays": places}).encode()
    first = _first(len(header))
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            for (_, _, _, begin, _), array in zip(places, contents, strict=True):
                _write_sparsely(file, first + begin, array)
            file.truncate(first + end)
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return True


def read_window(store: WindowStore, path: Path) -> None:
    """Let an empty window be the one that was written. What it changes of it is its own.

    Raises an OSError or a ValueError if the file is not whole.
    """
    with open(path, "rb") as file:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    length = int.from_bytes(memory[:8], "little")
    header = json.loads(memory[8 : 8 + length])
    first = _first(length)
    found: dict[str, dict[str, Array]] = {"ring": {}, "index": {}}
    for kind, name, dtype, begin, shape in header["arrays"]:
        count = int(np.prod(shape))
        found[kind][name] = np.frombuffer(memory, dtype, count, first + begin).reshape(shape)
    for name, value in header["ring"].items():
        setattr(store.ring, name, value)
    store.ring.columns = found["ring"]
    window: Any = store.adopt(header["nulls"])
    for name, array in found["index"].items():
        setattr(window, name, array.view(window.kernels.shape.record) if name == "records" else array)


def _first(header_bytes: int) -> int:
    return -(-(8 + header_bytes) // PAGE) * PAGE


def _write_sparsely(file: Any, begin: int, array: Array) -> None:
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    for at in range(0, len(raw), CHUNK):
        part = raw[at : at + CHUNK]
        if part.any():
            file.seek(begin + at)
            file.write(part)
