"""Polynomials in a program's variables, and sections of arrays that they bound."""

from math import gcd

ONE = ()


def constant(number):
    """A polynomial: monomials (sorted symbols) and their coefficients."""
    return {ONE: number} if number else {}


def plus(one, other, factor=1):
    """one + factor * other."""
    if one is None or other is None:
        return None
    made = dict(one)
    for key, number in other.items():
        made[key] = made.get(key, 0) + factor * number
        if not made[key]:
            del made[key]
    return made


def times(one, other):
    """The product; None where one isn't known."""
    if one is None or other is None:
        return None
    made = {}
    for a, x in one.items():
        for b, y in other.items():
            key = tuple(sorted(a + b, key=repr))
            made[key] = made.get(key, 0) + x * y
    return {key: number for key, number in made.items() if number}


def symbols(poly):
    """Symbols in it."""
    return {symbol for key in poly for symbol in key}


def at_least_zero(poly):
    """Whether it is a constant from 0 up."""
    return poly is not None and (not poly or (set(poly) == {ONE} and poly[ONE] >= 0))


def passes(number):
    """How often a loop runs whose bounds say `number`: as often, but never less than 0 times, which a symbol of its own stands for; None where that isn't known."""
    if number is None or never_negative(number):
        return number
    if set(number) == {ONE}:
        return {}
    factor = gcd(*number.values())
    return {(("passes", key_of({key: part // factor for key, part in number.items()}), ()),): factor}


def never_negative(poly):
    """Whether it is made of constants from 0 up and of how often loops run."""
    return all(number >= 0 for number in poly.values()) and all(symbol[0] == "passes" for symbol in symbols(poly))


class Section:
    """Elements of one base. `ranges`: (coefficient, extent), extents inclusive."""

    __slots__ = ("base", "offset", "ranges")

    def __init__(self, base, offset, ranges=()):
        self.base, self.offset, self.ranges = base, offset, tuple(ranges)

    def over(self, symbol, low, high):
        """The union over a loop's variable; None: it can't be told."""
        coefficient, rest = {}, {}
        for key, number in self.offset.items():
            if key.count(symbol) > 1:
                return None
            if symbol in key:
                left = list(key)
                left.remove(symbol)
                coefficient[tuple(left)] = number
            else:
                rest[key] = number
        if any(symbol in symbols(part) for pair in self.ranges for part in pair):
            return None
        if not coefficient:
            return self
        if low is None or high is None:
            return None
        return Section(self.base, plus(rest, times(coefficient, low)), (*self.ranges, (coefficient, plus(high, low, -1))))

    def depends(self, symbol):
        """Whether its elements are others for each value of a loop's variable."""
        return symbol in symbols(self.offset)

    def used(self):
        """All symbols in it."""
        found = symbols(self.offset)
        for coefficient, extent in self.ranges:
            found |= symbols(coefficient) | symbols(extent)
        return found

    def covers(self, other):
        """Whether all of the other one lies in it."""
        if self.base != other.base:
            return False
        distance = plus(other.offset, self.offset, -1)
        length, read = self.length(), other.length()
        if length is not None and read is not None and never_negative(distance) and never_negative(plus(plus(length, distance, -1), read, -1)):
            return True
        mine = sorted(self.ranges, key=_weight, reverse=True)
        theirs = {key_of(coefficient): extent for coefficient, extent in other.ranges}
        if len(theirs) != len(other.ranges) or len({key_of(coefficient) for coefficient, _ in mine}) != len(mine):
            return False
        for coefficient, extent in mine:
            steps = _quotient(distance, coefficient)
            distance = plus(distance, times(coefficient, constant(steps)), -1)
            read = theirs.pop(key_of(coefficient), {})
            if steps < 0 or not at_least_zero(plus(plus(extent, read, -1), constant(steps), -1)):
                return False
        return not distance and not theirs


    def length(self):
        """How many elements it has where they follow each other without gaps, or None."""
        found, left = constant(1), list(self.ranges)
        while left:
            following = next((pair for pair in left if pair[0] == found), None)
            if following is None:
                return None
            left.remove(following)
            found = times(found, passes(plus(following[1], constant(1))))
        return found


def joined(sections):
    """Sections that follow each other without gaps, as one each; the others aren't among them."""
    starts, found = {}, []
    for one in sections:
        length = one.length()
        if length:
            starts.setdefault((one.base, key_of(one.offset)), (one, length))
    for first, length in list(starts.values()):
        parts, end = 1, plus(first.offset, length)
        while (first.base, key_of(end)) in starts and parts < len(starts):
            parts, end = parts + 1, plus(end, starts[first.base, key_of(end)][1])
        if parts > 1:
            found.append(Section(first.base, first.offset, [(constant(1), plus(plus(end, first.offset, -1), constant(1), -1))]))
    return found


def key_of(poly):
    """The same as something that can be compared and kept in sets."""
    return tuple(sorted(poly.items(), key=repr))


def _weight(pair):
    key = max(pair[0], key=len, default=ONE)
    return len(key), abs(pair[0].get(key, 0))


def _quotient(distance, coefficient):
    """How often a coefficient goes into a distance, as a whole number."""
    if not coefficient:
        return 0
    key = max(coefficient, key=len)
    return distance.get(key, 0) // coefficient[key]
