"""Spark's processes: the Java that they need, a session on this machine, and its Python workers."""

from counterflow.engines.spark.session.java import ensure_java
from counterflow.engines.spark.session.session import local_session

__all__ = ["ensure_java", "local_session"]
