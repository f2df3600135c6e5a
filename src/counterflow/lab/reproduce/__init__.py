"""The papers' experiments again: measured on the cores there are, simulated above, and marked as either."""
