"""The memory of a running join as words, by position: one array that all its threads share.

A protocol's state, its queues and its counters lie here; windows lie in arrays of their own, known by address. So a
node is a number, a step of a node is a function of this array, and whoever has the array can step the nodes: threads,
or a simulator that chooses the schedule.

A name begins with the structure that it belongs to. It is added to the first word of such a structure, and to nothing
else: `m[node + w.NODE_DONE]`, `m[segment + w.SEGMENT_STRIDE]`. Header words are used as they are: `m[w.HEADER_STOP]`.
`tests/protocols/test_words.py` holds the package to that.
"""

from counterflow.windows.compiled import block

# --- the header

HEADER_NODES = 0
HEADER_BATCH_ROWS = 1  # rows that a node handles at once, at most
HEADER_SELF = 2  # the address of this array
HEADER_STRATEGY = 3  # how nodes wait (`lockfree.waiting`)
HEADER_FIRST_NODE = 4
HEADER_FEED = 5
HEADER_COLLECT = 6
HEADER_VARIANT = 7  # handshake join: 1 for the first report's form
HEADER_GATE_IN, HEADER_GATE_OUT = 8, 9  # ScaleJoin's; without a second one (0) results go out as they are found
HEADER_DRIVER, HEADER_COLLECTOR = 10, 11  # their waiters
HEADER_SOURCES, HEADER_FIRST_SOURCE = 12, 13  # that add tuples to ScaleJoin's first gate themselves; 0: the feed does
HEADER_TELL = 14  # tuples that a node takes before it tells sources that they may have room
HEADER_STOP = 24
HEADER_FINISHED = 32  # set when the driver has sent everything: handshake join then pushes its tuples through
HEADER_WAKE = 40  # set to let the collector return
HEADER_CROWDED = 48  # not 0 if there are more threads than cores: how many rounds of spinning are left out
HEADER_WORDS = 64

# --- a node; each line of 8 words is written by one thread only

NODE_PHASE = 0  # where a message that could not be handled at once goes on
NODE_KIND, NODE_FIRST, NODE_COUNT, NODE_FIRST_RIGHT, NODE_COUNT_RIGHT = 1, 2, 3, 4, 5  # that message
NODE_SEARCH = 6  # where a search goes on
NODE_OUT_AT = 7  # pairs of a search that are out

NODE_DONE = 8  # and 9: left and right tuples that are done with here, for the collector and the driver
NODE_DONE_AT = 10  # their sum, written last

NODE_NEED = 16  # what it needs of its owner: one of NEED_*
NODE_NEED_AT = 17  # the segment that needs it
NODE_COMPARISONS, NODE_PAIRS = 18, 19
NODE_IN_WINDOW = 20  # pairs of a probing tuple and a stored one in its window: what a nested loop compares

NODE_SIZE = 24  # and 25: rows of its windows, for the neighbours

NODE_OUTBOX, NODE_WAITER = 32, 33
NODE_FROM_LEFT, NODE_FROM_RIGHT, NODE_TO_LEFT, NODE_TO_RIGHT = 34, 35, 36, 37  # rings of messages; 0: none
NODE_SEGMENT = 38  # and 39: its parts of the left and the right window
NODE_STAMPS = 40  # and 41: descriptors of the stamps of left and right tuples
NODE_TRANSIT = 42  # low-latency handshake join: right tuples that were forwarded and not yet acknowledged
NODE_PAST = 43  # and 44: what a node remembers of both sides that stamps tuples itself
NODE_LATEST = 45  # the same: no tuple to come has an earlier time
NODE_UNTOLD = 46  # the same: tuples that it has taken since it told sources that they may have room

NODE_EXPIRED = 48  # and 49: left and right tuples that the driver has declared expired
NODE_MARK = 50  # to 53: per protocol
NODE_NOTIFIED, NODE_NOTIFIED_COUNT = 56, 57  # where the waiters are named of those who may wait for what it has done
NODE_WORDS = 64

NEED_ROOM = 1  # rows in a ring
NEED_POOL = 2  # records of an index
NEED_OUTPUT = 3  # pairs that a kernel writes
NEED_SCAN = 4  # a compiled scan
NEED_OUTBOX = 5  # results that wait for the rest of a batch
NEED_PAST = 6  # tuples that a node remembers

# --- a descriptor of stamps: the mask that makes a slot of a place, the addresses of `low` and `high`, and which tuple
# is at a place: number place * stride + offset (where a node gets only some tuples, their places follow each other)

STAMP_MASK, STAMP_LOW, STAMP_HIGH, STAMP_STRIDE, STAMP_OFFSET, STAMP_WORDS = 0, 1, 2, 3, 4, 8

# --- a segment: a kernel's block (`windows.compiled.block` says what these words mean), and then its place in the join

SEGMENT_FOUND, SEGMENT_LEFT_OVER, SEGMENT_UNSURE, SEGMENT_WAITING = (
    block.FOUND,
    block.LEFT_OVER,
    block.UNSURE,
    block.WAITING,
)
SEGMENT_CHOSEN_COUNT, SEGMENT_COPIES = block.CHOSEN_COUNT, block.COPIES
SEGMENT_FIRST_ROW, SEGMENT_NEXT_ROW = block.FIRST_ROW, block.NEXT_ROW
SEGMENT_RING, SEGMENT_STORED, SEGMENT_PROBING = block.RING, block.STORED, block.PROBING
SEGMENT_HEADS, SEGMENT_HEADS_SIZE, SEGMENT_RECORDS, SEGMENT_RECORDS_SIZE, SEGMENT_POOL, SEGMENT_BANDS = (
    block.HEADS,
    block.HEADS_SIZE,
    block.RECORDS,
    block.RECORDS_SIZE,
    block.POOL,
    block.BANDS,
)
SEGMENT_OLDEST, SEGMENT_NEWEST, SEGMENT_CHOSEN, SEGMENT_BEGINS, SEGMENT_ENDS = (
    block.OLDEST,
    block.NEWEST,
    block.CHOSEN,
    block.BEGINS,
    block.ENDS,
)
SEGMENT_PROBE_KEYS, SEGMENT_WORK, SEGMENT_NUMBERS = block.PROBE_KEYS, block.WORK, block.NUMBERS
SEGMENT_CONSTANTS, SEGMENT_STAGE = block.CONSTANTS, block.STAGE
SEGMENT_OUT_PROBE, SEGMENT_OUT_ROW, SEGMENT_OUT_SIZE = block.OUT_PROBE, block.OUT_ROW, block.OUT_SIZE

SEGMENT_STRIDE, SEGMENT_OFFSET = 40, 41  # row n is tuple n * STRIDE + OFFSET
# A descriptor of the stored tuples' stamps, by row; 0 where only earlier tuples are stored when a probe comes.
SEGMENT_STORED_STAMPS = 42
SEGMENT_STORE, SEGMENT_PROBE, SEGMENT_SCAN = 43, 44, 45  # addresses of the predicate's compiled functions
SEGMENT_SIDE = 46
SEGMENT_CAPACITY = 47
SEGMENT_SHARERS = 48  # segments of other nodes over the same ring, this one included
SEGMENT_SHARE_STEP = 49  # words from one of them to the next
SEGMENT_LABORATORY = 56  # to 63: of whoever measures; no node looks at them
SEGMENT_WORDS = 64

# --- results on their way from a node to the collector, or to the second gate

OUTBOX_SENT, OUTBOX_SEEN, OUTBOX_SIZE, OUTBOX_TAKEN = 0, 1, 2, 8
OUTBOX_DATA, OUTBOX_SPARE = 3, 4  # addresses of the results, and of as much room to sort them
OUTBOX_ROWS = 5  # how many results of a batch should wait for a gate; where it has more, the outbox grows
OUTBOX_WORDS = 16
RESULT_WORDS = 4  # rank of the later tuple and which side it is of, left tuple, right tuple, whether it is unsure

# --- the feed: what the driver has, what it has sent, and where tuples enter

FEED_WAY = 0  # how tuples reach the nodes: one of TO_*
FEED_AHEAD = 1  # tuples that the driver may be ahead of the slowest node
FEED_LANES = 2  # and 3: lanes of left and of right tuples
FEED_HEADS = 4  # how many places there are at which tuples enter
FEED_REFILLED = 5  # and 6: the first left and right tuples, which fill windows again: their pairs are known

FEED_OFFERED = 8  # and 9: left and right tuples that lie ready
FEED_BOUND = 10  # and 11: left and right tuples that no tuple after the offered ones meets
FEED_EXPIRED = 12  # and 13: left and right tuples that nodes know to have expired
FEED_TOLD = 14  # the rank at which nodes that get both streams in order were told so

FEED_SENT = 16  # and 17: left and right tuples that nodes have been sent
FEED_AT = 18  # their sum, written last
FEED_CLAIMED = 20  # and 21: left and right tuples that have a slot, or are about to get one

FEED_WORDS = 32
FEED_TABLE = FEED_WORDS  # after it the heads: for each its ring, its node's waiter and its node
HEAD_RING, HEAD_WAITER, HEAD_NODE, HEAD_WORDS = 0, 1, 2, 3

TO_ALL = 0  # every node gets both streams, in order
TO_GATE = 1  # the same through a ScaleGate
TO_LANES = 2  # left tuples enter at heads of their own, right ones at others; first the heads of left lanes

# --- a physical source that adds its tuples to ScaleJoin's first gate itself (`sources`); its thread writes all of it

SOURCE_SIDE = 0
SOURCE_MASK = 1  # makes a slot of its ring of a position
SOURCE_TIMES, SOURCE_PASSES = 2, 3  # addresses, by slot: when a tuple was, and whether it can match at all
SOURCE_COPIED = 4  # the address of a table of the arrays that nodes copy
SOURCE_WAITER = 5

SOURCE_WRITTEN = 8  # tuples that lie ready
SOURCE_ADDED = 9  # tuples that are in the gate, or were
SOURCE_FRONTIER = 10  # what is written later has at least this time
SOURCE_OWES = 11  # whether a promise is due
SOURCE_ENDED = 12  # whether nothing is written any more
SOURCE_WORDS = 16

# --- what a node remembers of one side, in the order that the gate says (`past`): its tuples' times and numbers

PAST_KIND, PAST_SIZE = 0, 1  # the side's window: one of PAST_*, and its rows or its reach
PAST_MASK, PAST_TIMES, PAST_NUMBERS = 2, 3, 4  # by slot of an ordinal, addresses: its time, and the numbers before it
PAST_COPIED = 5  # the address of a table of the arrays that tuples are copied to
PAST_FIRST, PAST_NEXT = 8, 9  # the oldest ordinal in the window, and the ordinal to come
PAST_NUMBER = 10  # the number to come
PAST_WORDS = 16
PAST_IS_ROWS, PAST_IS_DURATION, PAST_IS_EMPTY, PAST_IS_UNBOUNDED = 0, 1, 2, 3

# --- what the collector knows

COLLECT_DONE = 0  # and 1: left and right tuples that all nodes were done with when it looked last
COLLECT_COMPLETE = 2  # and 3: all pairs whose later tuple is a left or a right one before these are out
COLLECT_BOTH = 4  # not 0 if a pair may be found until both its tuples are done with: handshake join
COLLECT_WORDS = 8

# --- messages: kind and three words

ARRIVAL, EXPIRY, ACKNOWLEDGEMENT, EXPEDITION_END, BATCH, TASK = 1, 2, 3, 4, 5, 6

IDLE, WORKED, NEEDS = 0, 1, 2  # what a step says
LEFT, RIGHT = 0, 1
