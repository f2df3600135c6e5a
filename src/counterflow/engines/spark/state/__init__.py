"""A cell's state: durable chunks, copies of them, and the worker process that keeps the windows in memory."""
