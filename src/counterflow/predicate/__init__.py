"""Predicates: parsed from SQL or Python expressions, bound to columns and types, and taken apart for access paths."""
