"""The version of this package: a module of its own, so that whatever writes files can say who wrote them."""

__version__ = "0.1.0"
