"""Sources that `build` completes and compiles; they are read as text, never imported.

What stands above the line "the text from here on is used as it stands" is for readers and linters: the templates that
come before in a module, and the holes that `build` fills.
"""
