"""Values as the message analysis sees them: one for each rank.

An entry is an integer (or a float) that is known, SAME (not known, but the same on all ranks), OTHER (nothing is known), or a tuple that describes an MPI
object. A vector has an entry for each rank; only those of the ranks that are looked at count."""

import math

SAME, OTHER = "same", "other"
# Constants that a rank is compared with beyond this aren't decided by trying numbers of ranks.
LARGEST = 64
SMALL_FUNCTIONS = {"sqrt": math.sqrt, "floor": math.floor, "ceil": math.ceil, "abs": abs, "labs": abs, "fabs": abs, "cbrt": lambda x: math.copysign(abs(x) ** (1 / 3), x),
                   "lround": round, "round": round, "log2": math.log2}


def known(value):
    """Whether it is a number."""
    return isinstance(value, (int, float))


def uniform(vector, group):
    """Whether it is the same on all ranks of the group."""
    first = vector[group[0]]
    if first == OTHER:
        return False
    return vector.count(first) == len(group) if len(group) == len(vector) else all(vector[rank] == first for rank in group)


def spread(value, ranks):
    """The same entry for all ranks."""
    return (value,) * ranks


def put(old, new, group):
    """Entries of the group from `new`, the others from `old`."""
    if len(group) == len(old):
        return new
    made = list(old)
    for rank in group:
        made[rank] = new[rank]
    return tuple(made)


def join(one, other, group):
    """What holds on two ways that all ranks of the group take together."""
    if all(one[rank] == other[rank] for rank in group):
        return one
    made = list(one)
    both = uniform(one, group) and uniform(other, group) and not isinstance(one[group[0]], tuple) and not isinstance(other[group[0]], tuple)
    for rank in group:
        made[rank] = SAME if both else one[rank] if one[rank] == other[rank] else OTHER
    return tuple(made)


def _divide(a, b):
    if isinstance(a, float) or isinstance(b, float):
        return a / b
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _remainder(a, b):
    return a - b * _divide(a, b)


OPERATORS = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": _divide, "%": _remainder, "<<": lambda a, b: a << b if 0 <= b < 64 else OTHER,
    ">>": lambda a, b: a >> b if b >= 0 else OTHER, "<": lambda a, b: int(a < b), ">": lambda a, b: int(a > b), "<=": lambda a, b: int(a <= b), ">=": lambda a, b: int(a >= b),
    "==": lambda a, b: int(a == b), "!=": lambda a, b: int(a != b), "&": lambda a, b: a & b, "|": lambda a, b: a | b, "^": lambda a, b: a ^ b,
}
COMPARISONS = {"<", ">", "<=", ">=", "==", "!="}


def _apply(operator, a, b):
    try:
        found = OPERATORS[operator](a, b)
    except (ZeroDivisionError, TypeError, OverflowError, KeyError):
        return OTHER
    return found if not isinstance(found, (int, float)) or abs(found) < 2 ** 62 else OTHER


def _entry(operator, a, b, alike):
    """An operator on two entries; `alike`: both are the same on all ranks."""
    if operator == "&&" and (a == 0 or b == 0):
        return 0
    if operator == "||" and ((known(a) and a) or (known(b) and b)):
        return 1
    if not (known(a) and known(b)):
        return SAME if alike else OTHER
    if operator in ("&&", "||"):
        return int(bool(a) and bool(b)) if operator == "&&" else int(bool(a) or bool(b))
    if (operator in COMPARISONS and max(abs(a), abs(b)) > LARGEST) or (operator in ("/", "%", "&", "|", "^") and abs(b) > LARGEST) or (operator == ">>" and b > 6):
        # Other numbers of ranks than those that are tried may decide otherwise.
        return SAME if alike else OTHER
    return _apply(operator, a, b)


def binary(operator, one, other, group):
    """An operator, entry by entry."""
    if uniform(one, group) and uniform(other, group):
        return put(spread(OTHER, len(one)), spread(_entry(operator, one[group[0]], other[group[0]], True), len(one)), group)
    made = [OTHER] * len(one)
    for rank in group:
        made[rank] = _entry(operator, one[rank], other[rank], False)
    return tuple(made)


def unary(operator, one, group):
    """The same for one operand."""
    made = [OTHER] * len(one)
    for rank in group:
        a = one[rank]
        if known(a):
            made[rank] = int(not a) if operator == "!" else -a if operator == "-" else a if operator == "+" else ~a if isinstance(a, int) else OTHER
        else:
            made[rank] = a if a == SAME else OTHER
    return tuple(made)


def balanced_dims(ranks, dims):
    """MPI_Dims_create: entries that are 0 are chosen, as near to each other as can be, in descending order. None: it can't be. Libraries may choose
    otherwise; all choose factors whose product is the number of ranks."""
    left = ranks
    for extent in dims:
        if extent:
            if left % extent:
                return None
            left //= extent
    free = [at for at, extent in enumerate(dims) if not extent]
    if not free:
        return dims if left == 1 else None
    best = None

    def choose(rest, count, largest):
        if count == 1:
            if rest <= largest:
                yield (rest,)
            return
        for factor in range(min(rest, largest), 0, -1):
            if rest % factor == 0:
                for below in choose(rest // factor, count - 1, factor):
                    yield (factor, *below)

    for one in choose(left, len(free), left):
        if best is None or one[0] - one[-1] < best[0] - best[-1]:
            best = one
    made = list(dims)
    for at, extent in zip(free, best):
        made[at] = extent
    return made
