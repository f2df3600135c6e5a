"""The papers' experiments again: measured on the cores that there are, simulated above, and marked as which."""
