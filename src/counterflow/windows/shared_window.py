"""A window that changes no more, as a file that the processes of a host map: its columns and index are in memory once.

    file:  length of the header | its digest | header | ring's columns, each on a page of its own | index

Only a window with a compiled index is worth it, and only who has the same predicate may read it. Compiled code goes
where the index says, so a file is believed only if it is as it was written: its header has a checksum of each array.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import uuid
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from counterflow.windows.store import WindowStore
from counterflow.windows.vectors import Array

PAGE = 1 << 12
CHUNK = 1 << 20  # bytes; those without anything in them take no room in the file
INDEX = ("bands", "heads", "records", "pool", "numbers", "probing_lengths")
RING = ("capacity", "first", "next", "in_order", "offset")
LENGTH_BYTES, DIGEST_BYTES = 8, 16


def write_window(store: WindowStore, path: Path) -> bool:
    """Write a window's file; return False if it is not of the kind that can be shared."""
    window, columns = store.one_window, store.ring.columns
    if window is None or window.access != "index" or any(array.dtype == object for array in columns.values()):
        return False
    index = {name: array for name in INDEX if (array := getattr(window, name)) is not None}
    places: list[tuple[str, str, str, int, tuple[int, ...], int]] = []
    end, contents = 0, []
    for kind, arrays in (("ring", columns), ("index", index)):
        for name, array in arrays.items():
            # Records have fields, whose types the reader knows.
            dtype, shape = ("|u1", (array.nbytes,)) if array.dtype.names else (array.dtype.str, array.shape)
            places.append((kind, name, dtype, end, shape, _checksum(array)))
            contents.append(array)
            end += -(-array.nbytes // PAGE) * PAGE
    ring = {name: getattr(store.ring, name) for name in RING}
    header = json.dumps({"ring": ring, "nulls": store.nulls, "arrays": places}).encode()
    first = _first(len(header))
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(len(header).to_bytes(LENGTH_BYTES, "little") + _digest(header) + header)
            for place, array in zip(places, contents, strict=True):
                _write_sparsely(file, first + place[3], array)
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
    length = int.from_bytes(memory[:LENGTH_BYTES], "little")
    text = memory[LENGTH_BYTES + DIGEST_BYTES : LENGTH_BYTES + DIGEST_BYTES + length]
    if memory[LENGTH_BYTES : LENGTH_BYTES + DIGEST_BYTES] != _digest(text):
        raise ValueError(f"{path} is damaged")
    header, first = json.loads(text), _first(length)
    found: dict[str, dict[str, Array]] = {"ring": {}, "index": {}}
    for kind, name, dtype, begin, shape, checksum in header["arrays"]:
        array = np.frombuffer(memory, dtype, int(np.prod(shape)), first + begin).reshape(shape)
        if _checksum(array) != checksum:
            raise ValueError(f"{path} is damaged")
        found[kind][name] = array
    for name, value in header["ring"].items():
        setattr(store.ring, name, value)
    store.ring.columns = found["ring"]
    window: Any = store.adopt(header["nulls"])
    for name, array in found["index"].items():
        setattr(window, name, array.view(window.kernels.shape.record) if name == "records" else array)


def _first(header_bytes: int) -> int:
    return -(-(LENGTH_BYTES + DIGEST_BYTES + header_bytes) // PAGE) * PAGE


def _digest(header: bytes) -> bytes:
    return hashlib.blake2b(header, digest_size=DIGEST_BYTES).digest()


def _checksum(array: Array) -> int:
    return zlib.crc32(_bytes_of(array).data)


def _bytes_of(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _write_sparsely(file: Any, begin: int, array: Array) -> None:
    raw = _bytes_of(array)
    for at in range(0, len(raw), CHUNK):
        part = raw[at : at + CHUNK]
        if part.any():
            file.seek(begin + at)
            file.write(part)
