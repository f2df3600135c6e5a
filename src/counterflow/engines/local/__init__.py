"""The in-process engine. Rows flow through it in this order:

    input/     what the user gave, as batches of one schema: sources, their reader threads, bounded queues
    order      late rows out, all others in the total order
    stamps     each tuple's number, rank and horizon
    core       pairs of numbers, found by one thread or, in `parallel`, by an algorithm's nodes
    output/    pairs as rows, in the order and at the time at which they are certain

`engine` has the two entries: `join_tables` does this at once, `join_streams` in the threads of a `stream_join`.
"""
