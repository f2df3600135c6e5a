"""The join on Spark, in four folders.

    query      from DataFrames to the plan that Spark runs, and its stateful operator
    state      what a cell keeps: durable chunks, copies of them, and windows in a worker's memory
    cell       one cell's join, which knows nothing of Spark
    session    the Java that Spark needs, a session on this machine, and its Python workers

Imports go down: `query` knows `state`, `state` knows `cell`, and none of the others knows `query`.
"""
