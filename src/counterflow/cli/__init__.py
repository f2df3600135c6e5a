"""The command line: parse, call the public API, print. Results to stdout, everything else to stderr."""

from counterflow.cli.main import main

__all__ = ["main"]
