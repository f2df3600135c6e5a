"""Every error a user can cause: one class per kind of mistake; each message names the fault and the way out."""


class CounterflowError(Exception):
    """Base of all errors raised by Counterflow."""


class ColumnError(CounterflowError):
    """A column is unknown, ambiguous, clashes with another, or has a type the join cannot use."""


class PredicateError(CounterflowError):
    """The predicate cannot be parsed, or its types do not fit together."""


class EvaluationError(CounterflowError):
    """The predicate is well-formed but has no value for some pair: a division by zero, a cast that fails."""


class WindowError(CounterflowError):
    """A window is missing, negative, unbounded where it must not be, or of the wrong unit."""


class TimeError(CounterflowError):
    """A time column is missing, of an unusable type, or holds a null."""


class OptionError(CounterflowError):
    """An option (`how`, `suffix`, `engine`, `layout`, ...) has a value that is not one of its values."""


class InputError(CounterflowError):
    """The inputs are of a kind that Counterflow cannot join, or of two different kinds."""


class UnsupportedError(CounterflowError):
    """A meaningful request that this engine does not serve yet; the message says which one does."""


class MissingDependencyError(CounterflowError):
    """An optional package or program is needed for this; the message says how to install it."""


class StateError(CounterflowError):
    """A checkpoint was written by another join, or is damaged."""
