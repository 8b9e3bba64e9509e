"""Tells Mend which time step is done, so that a rank that had to leave a node goes back when that is worth it (docs/back-migration.md).

    from mend_step import mend_step
    for step in range(steps):
        compute()
        mend_step(step + 1, steps)

Without Mend it does nothing. One file, for Python 3.8 and later; it needs nothing but the standard library.
"""

import ctypes
import operator

__all__ = ["mend_step"]


def _find():
    try:
        found = ctypes.CDLL(None).mend_fi_step
    except (AttributeError, OSError, TypeError):
        return None
    found.argtypes, found.restype = [ctypes.c_uint64, ctypes.c_uint64], None
    return found


_TELL = _find()


def mend_step(now, total=0):
    """`now` steps are done of `total`; a total of 0: it is not known. Raises TypeError for what is no whole number, ValueError for one below 0 or from 2**64 on."""
    now, total = operator.index(now), operator.index(total)
    if not (0 <= now < 1 << 64 and 0 <= total < 1 << 64):
        raise ValueError(f"steps are counted from 0, below 2**64: mend_step({now}, {total})")
    if _TELL is not None:
        _TELL(now, total)
