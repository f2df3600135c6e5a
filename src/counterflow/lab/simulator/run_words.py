"""The simulator's own state as words, by position: beside a machine's memory, what has happened so far."""

RANDOM = 0  # the generator's state
CHOICES = 1  # how many times an actor was chosen
PUNCTUATION = 4  # all pairs whose later tuple has a lower rank are out, the collector has said
FINISHED = 5  # whether the driver has said that nothing more comes
PAIRS = 6  # results that were collected
FAILURE, FAILED_AT, FAILED_WITH = 7, 8, 9  # what is wrong, at which actor, and a number that tells more
LAST_RANK, LAST_EARLIER = 10, 11  # of the last result, where results come in order
PHASE, PHASE_LEFT = 12, 13  # of the schedule, and choices that are left of it
REPLAYED = 14  # choices taken from a trace
CLOSED = 15  # sources that have ended
RESTING = 16  # a bit for each node that could do nothing since anybody did something
STATE_WORDS = 24

# --- what can be wrong

NOTHING, WRONG_PAIR, TWICE, MISSED, TOO_LATE, OUT_OF_ORDER, NOT_IN_TURN, EXPIRED_EARLY, TOO_MUCH, STUCK, TOO_LONG = (
    range(11)
)
MEANINGS = {
    WRONG_PAIR: "a pair was found that does not match, or is not in the window",
    TWICE: "a pair was found twice",
    MISSED: "a pair was not found",
    TOO_LATE: "a pair came after the punctuation that said it was complete",
    OUT_OF_ORDER: "a result came out of order",
    NOT_IN_TURN: "a queue did not deliver tuples one after the other",
    EXPIRED_EARLY: "a node forgot a tuple that another one still had to meet",
    TOO_MUCH: "the windows hold more than they may",
    STUCK: "nobody can move, and the join has not ended",
    TOO_LONG: "the join does not end",
}
