"""Sources that `build` completes and compiles; they are read as text, never imported."""
