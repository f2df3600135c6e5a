"""Results of few pairs as Arrow's own messages: compiled code writes all columns at once, and Arrow only reads them.

A batch that is put together of a dozen arrays takes several times as long as the join of a row. A message of as many
rows differs from another one by its values alone: so it is made once, by Arrow, and copied.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from counterflow.engines.local.output.payload import KeptRows
from counterflow.spec.join_spec import JoinSpec
from counterflow.windows.few_rows import FewRows
from counterflow.windows.times import is_plain_time
from counterflow.windows.vectors import Array

ROWS_MAX = 64  # of a message: more rows pay for their arrays
LATER = 2  # as in `compiled.few`: a column with the later tuples' times


class _Form(NamedTuple):
    """A message of so many rows: its words, and where the columns are in it."""

    words: Array
    columns: Array


class Messages:
    """Results of few pairs, whose rows are kept in records."""

    def __init__(self, spec: JoinSpec, rows: tuple[KeptRows, KeptRows]) -> None:
        self.schema, self._rows = spec.output_schema, rows
        self.possible = spec.how == "inner" and is_plain_time(self.schema.field(len(self.schema) - 1).type)
        self._fields: list[tuple[int, int, int]] = []  # of each column: the side, and where it is in a record
        self._forms: dict[int, _Form] = {}

    def settle(self) -> bool:
        """Learn how records are laid out; return whether results can be made of them here."""
        fields, sides = [], [rows.plain_fields for rows in self._rows]
        for side, (rows, known) in enumerate(zip(self._rows, sides, strict=True)):
            if not self.possible or known is None:
                return False
            fields += [(side, *rows.records.place(name)) for _, name in known if name != "time"]
        left, right = (rows.records.place(rows.time_field)[0] for rows in self._rows)
        fields.append((LATER, left, right))
        if fields != self._fields:
            self._fields, self._forms = fields, {}
        return True

    def give(self, few: FewRows, side: int, pairs: int) -> pa.RecordBatch:
        """Return the results of the pairs that rows of a side have just found."""
        form = self._forms.get(pairs) or self._form(pairs)
        message = pa.allocate_buffer(form.words.nbytes)
        few.give(side, pairs, form.words, form.columns, message.address)
        return pa.ipc.read_record_batch(message, self.schema)

    def _form(self, pairs: int) -> _Form:
        arrays = [
            pa.Array.from_buffers(field.type, pairs, [None, pa.py_buffer(bytes(pairs * field.type.bit_width // 8))])
            for field in self.schema
        ]
        message = pa.RecordBatch.from_arrays(arrays, schema=self.schema).serialize()
        read = pa.ipc.read_record_batch(message, self.schema)
        begins = [column.buffers()[1].address - message.address for column in read.columns]
        columns = [(*field, begin) for field, begin in zip(self._fields, begins, strict=True)]
        form = self._forms[pairs] = _Form(np.frombuffer(message, np.int64).copy(), np.array(columns, np.int64))
        return form
