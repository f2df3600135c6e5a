"""The functions of a predicate that compiled protocols call by address: `store`, `probe` and `scan`.

They take the address of a block (`block.py`), make arrays of the addresses in it, and call the kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from counterflow.windows.compiled import block

if TYPE_CHECKING:
    from counterflow.windows.compiled.build import Shape

KINDS = {"i4": "int32", "i8": "int64", "u1": "uint8", "u8": "uint64", "f4": "float32", "f8": "float64"}
CALLABLE = 'dict(error_model="numpy", boundscheck=False, _nrt=False)'
SIZES = {"i4": 4, "i8": 8, "u1": 1, "u8": 8, "f4": 4, "f8": 8}
RESTART_ALL, RESTART_CHOSEN, GO_ON = 0, 1, 2  # what `scan` is asked to do


def entry_header() -> str:
    """Positions are part of the text, so another layout of the block is another module."""
    positions = [f"{name} = {value}" for name, value in vars(block).items() if name.isupper()]
    views = [f"view_{name} = viewer({kind})" for name, kind in KINDS.items()]
    return "\n".join(
        [
            "from counterflow.jit import cfunc",
            "from counterflow.windows.compiled.intrinsics import viewer",
            f"CALLABLE = {CALLABLE}",
            *positions,
            *views,
            "view_keys = viewer(float64, 2)",
            f"RESTART_ALL, RESTART_CHOSEN, GO_ON = {RESTART_ALL}, {RESTART_CHOSEN}, {GO_ON}",
        ]
    )


def indexed_entries(shape: Shape, constants: list[str]) -> str:
    """`store` and `probe` of an index; `constants` are the kinds of the predicate's numbers."""
    parts = ["view_record = viewer(RECORD)", _index_of(shape), _store(shape, indexed=True), _probe(shape, constants)]
    return "\n\n\n".join(parts)


def scanned_entries(shape: Shape, constants: list[str]) -> str:
    """`store` without an index, and `scan`."""
    return "\n\n\n".join([_store(shape, indexed=False), _scan(shape, constants)])


def _entry(name: str, doc: str, arguments: str, lines: list[str]) -> str:
    head = ["@cfunc('int64(int64, int64, int64, int64)', **CALLABLE)", f"def {name}(block, {arguments}):"]
    return "\n".join([*head, f'    """{doc}"""', *(f"    {line}" for line in lines)])


def _tuple(values: list[str]) -> str:
    return f"({''.join(f'{value}, ' for value in values)})"


def _index_of(shape: Shape) -> str:
    return "\n".join(
        [
            "@njit(**dict(OPTIONS, forceinline=True))",
            "def index_of(b):",
            f"    bands = view_keys(b[BANDS], {shape.dimensions}, 7)",
            "    heads, records = view_i8(b[HEADS], b[HEADS_SIZE]), view_record(b[RECORDS], b[RECORDS_SIZE])",
            "    return bands, heads, records",
        ]
    )


def _store(shape: Shape, indexed: bool) -> str:
    """Rows start, start + stride, ... of the arena become the rows from NEXT_ROW on; returns how many are stored."""
    dtypes = shape.dtypes(shape.stored_columns)
    lines = [
        "b = view_i8(block, BLOCK_WORDS)",
        f"arena, ring = view_i8(b[STORED], ARENA_COLUMNS + {len(dtypes)}), view_i8(b[RING], 4 + {len(dtypes)})",
        f"stage = view_i8(b[STAGE], ARENA_COLUMNS + {len(dtypes)})",
        "mask, ring_mask, first = arena[ARENA_MASK], ring[0], b[NEXT_ROW]",
        "if b[DONE] == 0:",
    ]
    for k, dtype in enumerate(dtypes):
        lines += [
            f"    from_{k} = view_{dtype}(arena[ARENA_COLUMNS + {k}], mask + 1)",
            f"    to_{k} = view_{dtype}(ring[1 + {k}], ring_mask + 1)",
            f"    staged_{k} = view_{dtype}(stage[ARENA_COLUMNS + {k}], count)",
            "    for i in range(count):",
            f"        value = from_{k}[(start + i * stride) & mask]",
            f"        staged_{k}[i] = value",
            "    if b[COPIES] != 0:",
            "        for i in range(count):",
            f"            to_{k}[(first + i) & ring_mask] = staged_{k}[i]",
        ]
    if not indexed:
        return _entry("store", "See `_store` in entries.", "start, stride, count", [*lines, "    pass", "return count"])
    lines += [
        "    from_hash, from_usable = view_u8(arena[ARENA_HASH], mask + 1), view_u1(arena[ARENA_USABLE], mask + 1)",
        "    to_hash, to_usable = view_u8(stage[ARENA_HASH], count), view_u1(stage[ARENA_USABLE], count)",
        f"    from_keys = view_keys(arena[ARENA_KEYS], {shape.dimensions}, mask + 1)",
        f"    to_keys = view_keys(stage[ARENA_KEYS], {shape.dimensions}, count)",
        "    for i in range(count):",
        "        slot = (start + i * stride) & mask",
        "        to_hash[i], to_usable[i] = from_hash[slot], from_usable[slot]",
        f"        for k in range({shape.dimensions}):",
        "            to_keys[k, i] = from_keys[k, slot]",
        "    if b[COPIES] != 0:  # for an index that is made anew",
        f"        ring_hash = view_u8(ring[1 + {len(dtypes)}], ring_mask + 1)",
        f"        ring_usable = view_u1(ring[2 + {len(dtypes)}], ring_mask + 1)",
        f"        ring_keys = view_keys(ring[3 + {len(dtypes)}], {shape.dimensions}, ring_mask + 1)",
        "        for i in range(count):",
        "            place = (first + i) & ring_mask",
        "            ring_hash[place], ring_usable[place] = to_hash[i], to_usable[i]",
        f"            for k in range({shape.dimensions}):",
        "                ring_keys[k, place] = to_keys[k, i]",
        "hashes, usable = view_u8(stage[ARENA_HASH], count), view_u1(stage[ARENA_USABLE], count)",
        f"keys = view_keys(stage[ARENA_KEYS], {shape.dimensions}, count)",
        f"columns = {_tuple([f'view_{d}(stage[ARENA_COLUMNS + {k}], count)' for k, d in enumerate(dtypes)])}",
        "bands, heads, records = index_of(b)",
        "pool, numbers = view_i8(b[POOL], 40), view_i8(b[NUMBERS], 64)",
        "done = append(",
        "    b[DONE], count, hashes, keys, usable, bands, columns, heads, records, pool, numbers, b[FIRST_ROW], first",
        ")",
        "b[DONE] = 0 if done == count else done",
        "return done",
    ]
    return _entry("store", "See `_store` in entries.", "start, stride, count", lines)


def _probing(shape: Shape, kinds: list[str]) -> list[str]:
    """The probing rows' columns: `count` of them from the arena's slot on."""
    dtypes = shape.dtypes(shape.probe_columns)
    constants = [
        f"{'view_i8' if kind == 'int64' else 'view_f8'}(b[CONSTANTS] + 8 * {i}, 1)[0]" for i, kind in enumerate(kinds)
    ]
    columns = [f"view_{d}(arena[ARENA_COLUMNS + {k}] + {SIZES[d]} * slot, count)" for k, d in enumerate(dtypes)]
    return [
        "b, status = view_i8(block, BLOCK_WORDS), view_i8(block, 8)",
        f"arena = view_i8(b[PROBING], ARENA_COLUMNS + {len(dtypes) + 2 * len(shape.scan_keys)})",
        "mask = arena[ARENA_MASK]",
        "slot = first & mask",
        f"columns = {_tuple(columns)}",
        f"constants = {_tuple(constants)}",
        "oldest, newest = view_i8(b[OLDEST], count), view_i8(b[NEWEST], count)",
        "out_probe, out_row = view_i8(b[OUT_PROBE], b[OUT_SIZE]), view_i8(b[OUT_ROW], b[OUT_SIZE])",
    ]


def _probe(shape: Shape, constants: list[str]) -> str:
    dimensions = shape.dimensions
    lines = [
        *_probing(shape, constants),
        f"keys = view_keys(b[PROBE_KEYS], {dimensions}, count)",
        "if restart != 0:",
        f"    arena_keys = view_keys(arena[ARENA_KEYS], {dimensions}, mask + 1)",
        f"    for k in range({dimensions}):",
        "        for i in range(count):",
        "            keys[k, i] = arena_keys[k, slot + i]",
        "    for k in range(8):",
        "        status[k] = 0",
        "hashes = view_u8(arena[ARENA_HASH] + 8 * slot, count)",
        "usable = view_u1(arena[ARENA_USABLE] + slot, count)",
        "bands, heads, records = index_of(b)",
        "chains, over = view_chains(b[CHAINS], 3, 64 * 17 + 64), view_i8(b[CHOSEN], count)",
        "probe_rows(",
        "    count, hashes, keys, usable, bands, oldest, newest, columns, constants, heads, records, b[FIRST_ROW],",
        "    chains, out_probe, out_row, over, status,",
        ")",
        "return int64(status[AT] == count and status[WAITING] == 0)",
    ]
    entry = _entry(
        "probe", "Pairs of the probes from `first` on; 1 when all are found.", "first, count, restart", lines
    )
    return "\n\n\n".join(["view_chains = viewer(int64, 2)\nprobe_rows = probe", entry])


def _scan(shape: Shape, constants: list[str]) -> str:
    columns, keys = shape.dtypes(shape.stored_columns), [dtype for dtype, _ in shape.scan_keys]
    names = [shape.stored_columns.index(column) for column in shape.scan_columns]
    after = len(shape.dtypes(shape.probe_columns))

    def bounds(offset: int) -> str:
        at = [f"ARENA_COLUMNS + {after + offset + k}" for k in range(len(keys))]
        return _tuple([f"view_{d}(arena[{a}] + {SIZES[d]} * slot, count)" for a, d in zip(at, keys, strict=True)])

    def ring(numbers: list[int]) -> str:
        return _tuple([f"view_{columns[k]}(ring[1 + {k}] + {SIZES[columns[k]]} * at, length)" for k in numbers])

    lines = [
        *_probing(shape, constants),
        f"ring = view_i8(b[RING], 1 + {len(columns)})",
        f"lower, upper = {bounds(0)}, {bounds(len(keys))}",
        "all_chosen = view_i8(b[CHOSEN], count)",
        "if job != GO_ON:",
        "    if job == RESTART_ALL:",
        "        b[CHOSEN_COUNT] = count",
        "        for i in range(count):",
        "            all_chosen[i] = i",
        "    b[SPAN], status[AT], status[AT_BLOCK], status[UNSURE], status[FOUND] = 0, 0, 0, 0, 0",
        "n = b[CHOSEN_COUNT]",
        "chosen, begins, ends = view_i8(b[CHOSEN], n), view_i8(b[BEGINS], n), view_i8(b[ENDS], n)",
        "first_row, next_row, capacity = b[FIRST_ROW], b[NEXT_ROW], ring[0] + 1",
        "turn = first_row + capacity - (first_row & ring[0])",
        "while b[SPAN] < 2:",
        "    base = first_row if b[SPAN] == 0 else turn",
        "    length = min(next_row, turn) - base if b[SPAN] == 0 else next_row - base",
        "    if length > 0:",
        "        for c in range(n):",
        "            begins[c] = max(oldest[chosen[c]] - base, 0)",
        "            ends[c] = min(newest[chosen[c]] + 1 - base, length)",
        "        at = base & ring[0]",
        f"        keys, stored = {ring(names)}, {ring(list(range(len(columns))))}",
        "        scan_rows(",
        "            chosen, begins, ends, keys, lower, upper, columns, base, length, stored, constants,",
        "            out_probe, out_row, status,",
        "        )",
        "        if status[AT_BLOCK] < length:",
        "            return 0",
        "    b[SPAN] += 1",
        "    status[AT], status[AT_BLOCK] = 0, 0",
        "return 1",
    ]
    entry = _entry("scan", "Pairs of the chosen probes; 1 when all are found.", "first, count, job", lines)
    return "\n\n\n".join(["scan_rows = scan", entry])
