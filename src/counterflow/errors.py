"""Every error a user can cause: one class per kind of mistake; each message names the fault and the way out."""


class CounterflowError(Exception):
    """Base of all errors raised by Counterflow.

    >>> import counterflow as cf
    >>> try:
    ...     cf.Local(algorithm="handshak")
    ... except cf.CounterflowError as error:
    ...     print(error)
    unknown algorithm 'handshak'; did you mean 'handshake'? (there are: auto, kang, celljoin, ...)
    """


class ColumnError(CounterflowError):
    """A column is unknown, ambiguous, clashes with another, or has a type the join cannot use.

    >>> import counterflow as cf, pyarrow as pa
    >>> table = pa.table({"t": [1], "x": [2]})
    >>> cf.window_join(table, table, where="l.y = r.x", time="t", window=1)
    Traceback (most recent call last):
    counterflow.errors.ColumnError: no column 'y' in the left input (there are: t, x)
    """


class PredicateError(CounterflowError):
    """The predicate cannot be parsed, or its types do not fit together.

    >>> import counterflow as cf
    >>> bool(cf.left.x == cf.right.x)
    Traceback (most recent call last):
    counterflow.errors.PredicateError: 'l.x = r.x' has no truth value in Python: combine conditions with & | ~ ...
    """


class EvaluationError(CounterflowError):
    """The predicate is well-formed but has no value for some pair: a division by zero, a cast that fails.

    >>> import counterflow as cf, pyarrow as pa
    >>> table = pa.table({"t": [1], "x": [0]})
    >>> cf.window_join(table, table, where="1 / (l.x + r.x) > 0", time="t", window=1)
    Traceback (most recent call last):
    counterflow.errors.EvaluationError: division by zero in '(1.0D / cast((l.x + r.x) AS DOUBLE))': guard it, or ...
    """


class WindowError(CounterflowError):
    """A window is missing, negative, unbounded where it must not be, or of the wrong unit.

    >>> import counterflow as cf
    >>> cf.rows(0)
    Traceback (most recent call last):
    counterflow.errors.WindowError: rows(0): the number of rows must be a positive integer of at most 64 bits
    """


class TimeError(CounterflowError):
    """A time column is missing, of an unusable type, or holds a null.

    >>> import counterflow as cf
    >>> cf.watermark("noon")
    Traceback (most recent call last):
    counterflow.errors.TimeError: cf.watermark('noon'): give a datetime, or an integer in the time column's unit
    """


class OptionError(CounterflowError):
    """An option (`how`, `suffix`, `engine`, `layout`, ...) has a value that is not one of its values.

    >>> import counterflow as cf
    >>> cf.Local(workers=0)
    Traceback (most recent call last):
    counterflow.errors.OptionError: workers=0: must be a positive integer
    """


class InputError(CounterflowError):
    """The inputs are of a kind that Counterflow cannot join, or of two different kinds.

    >>> import counterflow as cf
    >>> cf.window_join(1, 2, where="l.x = r.x", time="t", window=1)
    Traceback (most recent call last):
    counterflow.errors.InputError: the left input is a int: expected a Spark DataFrame, an Arrow, pandas or ...
    """


class UnsupportedError(CounterflowError):
    """A meaningful request that this engine does not serve yet; the message says which one does.

    >>> import counterflow as cf
    >>> stream = cf.stream([[{"t": 1, "x": 2}]])
    >>> cf.window_join(stream, stream, where="l.x = r.x", time="t", window=1, engine=cf.Simulated())
    Traceback (most recent call last):
    counterflow.errors.UnsupportedError: engine=cf.Simulated(...) joins tables: join streams with cf.Local(...)
    """


class MissingDependencyError(CounterflowError):
    """An optional package or program is needed for this; the message says how to install it."""


class StateError(CounterflowError):
    """A checkpoint was written by another join, or is damaged.

    >>> import counterflow as cf, pathlib, tempfile
    >>> left, right = cf.stream([[{"t": 1, "x": 2}]]), cf.stream([[{"t": 1, "x": 2}]])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pathlib.Path(folder, "join.checkpoint").write_text("nonsense") and None
    ...     engine = cf.Local(checkpoint=folder)
    ...     cf.window_join(left, right, where="l.x = r.x", time="t", window=1, engine=engine)
    Traceback (most recent call last):
    counterflow.errors.StateError: ...join.checkpoint is no checkpoint of a join: give another folder, or move ...
    """
