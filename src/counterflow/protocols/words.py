"""The memory of a running join as words, by position: one array that all its threads share.

A protocol's state, its queues and its counters lie here; windows lie in arrays of their own, known by address. So a
node is a number, a step of a node is a function of this array, and whoever has the array can step the nodes: threads,
or a simulator that chooses the schedule.
"""

# --- the header

NODES = 0
BATCH_ROWS = 1  # rows that a node handles at once, at most
SELF = 2  # the address of this array
STRATEGY = 3  # how nodes wait (`lockfree.waiting`)
FIRST_NODE = 4
LANES = 5  # and 6: rows and columns of DP-Join's layout
VARIANT = 7  # handshake join: 1 for the first report's form
GATE_IN, GATE_OUT = 8, 9  # ScaleJoin's; no second one (0): results go to the collector as they are found
DRIVER, COLLECTOR = 10, 11  # their waiters
HEADS = 12  # and 13: nodes from one lane to the next, of left and of right tuples
STOP = 24
QUIET = 14  # and 15: two tuples before these do not look for each other; for measurements, to fill windows quickly
CROWDED = 48  # not 0 if there are more threads than cores: how many rounds of spinning are left out
WAKE = 40  # set to let the collector return
FINISHED = 32  # set when the driver has sent everything: handshake join then pushes its tuples through
HEADER_WORDS = 64

# --- a node, from its first word on; each line of 8 words is written by one thread only

PHASE = 0  # where a message that could not be handled at once goes on
KIND, FIRST, COUNT, FIRST_RIGHT, COUNT_RIGHT = 1, 2, 3, 4, 5  # that message
SEARCH = 6  # where a search goes on
OUT_AT = 7  # pairs of a search that are out

DONE = 8  # and 9: left and right tuples that are done with here, for the collector and the driver

NEED = 16  # what it needs of its owner: see below
NEED_AT = 17  # the segment
COMPARISONS, PAIRS = 18, 19
IN_WINDOW = 20  # stored tuples in the windows of those that were looked for partners of: what a nested loop compares

SIZE = 24  # and 25: rows of its windows, for the neighbours

OUTBOX, WAITER = 32, 33
FROM_LEFT, FROM_RIGHT, TO_LEFT, TO_RIGHT = 34, 35, 36, 37  # rings; 0: none
SEGMENT = 38  # and 39: its parts of the left and the right window
STAMPS = 40  # and 41: the driver's stamps of left and right tuples, a descriptor: see below
TRANSIT = 42  # low-latency handshake join: right tuples that were forwarded and not yet acknowledged

EXPIRED = 48  # and 49: left and right tuples that the driver has declared expired
MARK = 50  # to 53: per protocol
NOTIFIED = 56  # to 63: waiters of those who may wait for this node; 0: none
NOTIFIED_MAX = 8
NODE_WORDS = 64

# A descriptor of stamps: how to make a slot of a place, addresses of `low` and `high`, and which tuple is at a place:
# number place * stride + offset. (Where a node gets only some tuples, their places follow each other nevertheless.)
STAMP_MASK, STAMP_LOW, STAMP_HIGH, STAMP_STRIDE, STAMP_OFFSET, STAMP_WORDS = 0, 1, 2, 3, 4, 8

# Rows in a ring, records, pairs that a kernel writes, a compiled scan, results that wait for the rest of a batch.
NEED_ROOM, NEED_POOL, NEED_OUTPUT, NEED_SCAN, NEED_OUTBOX = 1, 2, 3, 4, 5

# --- a segment: a kernel's block (`windows.compiled.block`), and then

STRIDE, OFFSET = 40, 41  # row n is tuple n * STRIDE + OFFSET
STORED_STAMPS = (
    42  # a descriptor of the stored tuples' stamps, by row; 0 where only earlier tuples are stored when a probe comes
)
STORE, PROBE, SCAN = 43, 44, 45  # addresses of the predicate's compiled functions
SIDE = 46
CAPACITY = 47
SHARERS, SHARE_STEP = (
    48,
    49,
)  # segments of other nodes over the same ring: how many in all, and words from one to the next
SEGMENT_WORDS = 64

# --- results: from a node to the collector, or to the second gate

OUTBOX_SENT, OUTBOX_SEEN, OUTBOX_SIZE, OUTBOX_TAKEN = 0, 1, 2, 8
OUTBOX_DATA, OUTBOX_SPARE = 3, 4  # addresses of the results, and of as much room to sort them
OUTBOX_ROWS = 5  # how many results of a batch should wait for a gate; where it has more, the outbox grows
OUTBOX_WORDS = 16
RESULT_WORDS = 4  # rank of the later tuple and which side it is of, left tuple, right tuple, whether it is unsure

# --- messages: kind and three words

ARRIVAL, EXPIRY, ACKNOWLEDGEMENT, EXPEDITION_END, BATCH, TASK = 1, 2, 3, 4, 5, 6

IDLE, WORKED, NEEDS = 0, 1, 2  # what a step says
LEFT, RIGHT = 0, 1
