"""One cell's join, which knows nothing of Spark."""
