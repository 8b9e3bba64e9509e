"""Portable checkpoints for NumPy and mpi4py programs: a binding of libmend-app.

    import mend_app
    from mpi4py import MPI

    with mend_app.Session(MPI.COMM_WORLD, program="heat 1") as session:
        state = session.scalars(step=0, total=0.0)
        session.array("u", u, mend_app.block(cells, start, count, before=1, after=1))
        while state.step < steps:
            session.checkpoint()
            ...
            state.step += 1

To restart, run the program again: arrays have their values when they are registered, scalars when they are named. Files are those of the C library;
the settings, too (mend-app.conf). Everything is used from the main thread. Errors are raised as mend_app.Error.
"""

import contextlib
import ctypes
import operator
import traceback

import numpy

from . import _library
from ._library import Error, settings
from ._random import Generator

__all__ = ["Error", "Scalars", "Session", "block", "cyclic", "listed", "settings", "whole"]

_INTEGER, _REAL = {1: 1, 2: 2, 4: 3, 8: 4}, {4: 9, 8: 10}
_UNSIGNED, _COMPLEX = {1: 5, 2: 6, 4: 7, 8: 8}, {8: 12, 16: 13}


def _element(dtype):
    """The library's number for a NumPy type. A bool is a byte."""
    kinds = {"i": _INTEGER, "u": _UNSIGNED, "f": _REAL, "c": _COMPLEX, "b": {1: 5}}
    if dtype == numpy.dtype(numpy.longdouble):
        return 11
    number = kinds.get(dtype.kind, {}).get(dtype.itemsize)
    if number is None or not dtype.isnative:
        raise TypeError(f"arrays of {dtype} can't be saved: integers, floating-point and complex numbers and bool of this machine's byte order can")
    return number


def _dimension(function, *counts):
    """Numbers of NumPy's are numbers, too; what is negative would come round to a large one."""
    numbers = [operator.index(count) for count in counts]
    for number in numbers:
        if not 0 <= number < 1 << 64:
            raise ValueError(f"{number}: counts and indices of a dimension are from 0 up, and less than 2**64")
    return _library.call(function, *numbers)


def whole(count):
    """A dimension of which every rank has all `count` elements, with the same values: else the array restarts on the same ranks only."""
    return _dimension("mend_app_whole", count)


def block(count, start, own, before=0, after=0):
    """A dimension of `count` elements over all ranks, of which this rank owns `own` from `start` on, with further ones before and after in memory."""
    return _dimension("mend_app_block", count, start, own, before, after)


def cyclic(count, size, part, parts):
    """A dimension dealt in blocks of `size` elements to `parts` owners in turn, of which this is owner `part`."""
    return _dimension("mend_app_cyclic", count, size, part, parts)


def listed(count, indices):
    """A dimension of `count` elements over all ranks, of which those with the indices given (from 0) are this rank's own: where several ranks list one they have the
    same value for it, or the array restarts on the same ranks only. Indices are read again at each checkpoint: where elements
    trade places, change the indices in place."""
    kept = numpy.ascontiguousarray(_indices(indices), dtype=numpy.uint64)
    made = _library.call("mend_app_list", whole(count).extent, kept.size, kept.ctypes.data_as(ctypes.POINTER(ctypes.c_uint64)))
    made.kept, made.source = kept, indices
    return made


def _indices(source):
    found = numpy.asarray(source)
    if found.size and found.dtype.kind not in "iu":
        raise TypeError(f"indices are integers, not {found.dtype}")
    if found.size and found.min() < 0:
        raise ValueError(f"{found.min()}: indices of a dimension are from 0 up")
    return found


def _list_up_to_date(dimension):
    """The library reads 64-bit numbers without a sign: those of another kind are a copy for it."""
    kept = getattr(dimension, "kept", None)
    if kept is None or numpy.may_share_memory(kept, numpy.asarray(dimension.source)):
        return
    found = _indices(dimension.source)
    if found.size != kept.size:
        raise ValueError(f"a list of {kept.size} indices has {found.size} now")
    kept[...] = found.reshape(kept.shape)


class Scalars:
    """Named numbers, read and set as attributes; each keeps the type of its first value."""

    def __init__(self, cells):
        object.__setattr__(self, "_cells", cells)

    def __getattr__(self, name):
        # Who makes a copy asks before there is anything in it.
        cell = self.__dict__.get("_cells", {}).get(name)
        if cell is None:
            raise AttributeError(f"no scalar is named {name}")
        return cell.item()

    def __setattr__(self, name, value):
        if name not in self._cells:
            raise AttributeError(f"no scalar is named {name}: name it in Session.scalars")
        cell = self._cells[name]
        if cell.dtype.kind in "iu":
            # NumPy's own integers and arrays of them would be cut off in silence.
            value = self._integer(name, cell.dtype, value)
        elif numpy.ndim(value) or not numpy.can_cast(numpy.min_scalar_type(value), cell.dtype, "same_kind"):
            raise TypeError(f"{name} is {cell.dtype}, and {value!r} isn't")
        cell[()] = value

    @staticmethod
    def _integer(name, dtype, value):
        try:
            number = int(value) if isinstance(value, numpy.bool_) else operator.index(value)
        except TypeError:
            raise TypeError(f"{name} is {dtype}, and {value!r} isn't") from None
        bounds = numpy.iinfo(dtype)
        if not bounds.min <= number <= bounds.max:
            raise OverflowError(f"{name} is {dtype}, from {bounds.min} to {bounds.max}, and {number} is not in it")
        return number

    def __dir__(self):
        return list(self._cells)


class Session:
    """The library, from the start to the end of a `with` block. Only one at a time.

    `comm` is a communicator of mpi4py, whose ranks all start a session, or None; `program` names program and version, and a checkpoint of another one is
    refused; `configuration` is the file of settings.

    Where an exception leaves the block, this rank waits for nobody, and the other ranks wait for it at their next checkpoint or at their end: catch it outside, and end
    the job (`comm.Abort`).
    """

    def __init__(self, comm=None, program=None, configuration=None):
        # By context and name, as the library has them.
        self._path = ()
        self._kept = {}
        self._generators = {}
        self._transport = None
        if comm is None:
            done = _library.guarded("mend_app_init", _library.text(program), _library.text(configuration))
        else:
            from ._transport import Transport

            self._transport = Transport(comm)
            done = _library.guarded("mend_app_init_transport", self._transport.table, _library.text(program), _library.text(configuration))
        try:
            _library.result(done)
        except BaseException:
            # Nobody gets this session.
            if done >= 0:
                _library.guarded("mend_app_abandon")
            raise
        self._prepare = _library.PREPARE(lambda _: self._bring_up_to_date())
        _library.call("mend_app_prepare", self._prepare, None)
        self._release = None

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is None:
            self.close()
        else:
            if self.arriving:
                # This process ends here, since its rank stays where it was.
                traceback.print_exception(kind, error, trace)
            # The other ranks may never come to the end.
            _library.guarded("mend_app_abandon")
            self._kept.clear()
            _library.result(_library.OK)

    def close(self):
        """Waits until all ranks are here and all is written."""
        _library.check("mend_app_finalize")
        self._kept.clear()

    def _bring_up_to_date(self):
        try:
            for generator in self._generators.values():
                generator.store()
            for dimension in {id(dimension): dimension for _, dimensions in self._kept.values() for dimension in dimensions}.values():
                _list_up_to_date(dimension)
        except BaseException as error:
            # Else the checkpoint would have what was there before.
            _library.keep(error)
            _library.call("mend_app_report", _library.REFUSED, _library.text(f"{type(error).__name__}: {error}"))

    @property
    def restarting(self):
        """Whether a saved state is being restored: from the start until the first safe point in the saved contexts."""
        return bool(_library.call("mend_app_restarting"))

    @property
    def newest(self):
        """Number of the newest checkpoint that counts, or 0."""
        return _library.call("mend_app_newest")

    def saved_shape(self, name):
        """Shape of an array in the checkpoint that is being restored, of this rank; None if there is none."""
        extents = (ctypes.c_uint64 * 7)()
        count = _library.call("mend_app_saved_shape", _library.text(name), extents)
        return tuple(extents[:count]) if count >= 0 else None

    def array(self, name, values, *dimensions, replicated=False):
        """Registers a NumPy array. True: its values were restored.

        With dimensions it is spread over the ranks; otherwise private to each rank, or replicated. It must be contiguous in C's order and may not be
        resized; the session keeps it alive.
        """
        if not isinstance(values, numpy.ndarray) or not values.flags.c_contiguous or not values.flags.writeable:
            raise TypeError(f"{name}: a writeable NumPy array in C's order is needed")
        if isinstance(values, numpy.ma.MaskedArray):
            raise TypeError(f"{name}: a masked array can't be registered, for its mask would be lost: register its .data and its .mask")
        element, address = _element(values.dtype), ctypes.c_void_p(values.ctypes.data)
        if dimensions:
            shape = tuple(dimension.extent for dimension in dimensions)
            if replicated or shape != values.shape:
                raise ValueError(f"{name}: its shape is {values.shape}, and that of its distribution {shape}; what is spread isn't replicated")
            for dimension in dimensions:
                _list_up_to_date(dimension)
            spread = (_library.Dimension * len(dimensions))(*dimensions)
            done = _library.guarded("mend_app_array", _library.text(name), address, element, len(dimensions), spread)
        else:
            extents = (ctypes.c_uint64 * max(values.ndim, 1))(*values.shape)
            done = _library.guarded("mend_app_variable", _library.text(name), address, element, values.ndim, extents, int(replicated))
        if done >= 0:
            self._kept[self._path, name] = (values, dimensions)
        return _library.result(done) == _library.RESTORED

    def scalars(self, replicated=True, **values):
        """Registers numbers by name, with their first values; returns them as attributes, restored where a state is."""
        cells = {}
        for name, value in values.items():
            if not isinstance(value, (bool, int, float, complex, numpy.generic)):
                raise TypeError(f"{name}: a number is needed, not {type(value).__name__}")
            cells[name] = numpy.array(value, dtype=numpy.int64 if type(value) is int else None)
            self.array(name, cells[name], replicated=replicated)
        return Scalars(cells)

    def generator(self, name, generator, replicated=False):
        """Registers a random generator, numpy.random.Generator, RandomState or random.Random. True: its state was restored."""
        made = Generator(name, generator)
        restored = self.array(name, made.memory, replicated=replicated)
        if restored:
            made.load()
        self._generators[self._path, name] = made
        return restored

    @contextlib.contextmanager
    def context(self, name):
        """A part of the program. What it yields is False where the saved run had done with it: then do nothing in it."""
        if _library.result(_library.call("mend_app_enter", _library.text(name))) == _library.SKIP:
            yield False
            return
        before = self._path
        self._path = (*before, name)
        try:
            yield True
        finally:
            _library.call("mend_app_leave")
            for kept in (self._kept, self._generators):
                for key in [key for key in kept if key[0] == self._path]:
                    del kept[key]
            self._path = before

    def forget(self, name):
        """Ends a registration of this context."""
        _library.check("mend_app_forget", _library.text(name))
        self._generators.pop((self._path, name), None)
        self._kept.pop((self._path, name), None)

    def checkpoint(self, now=False):
        """A safe point: nothing is under way between ranks. "restored", "taken", "moved", or None. With `now` all ranks take a checkpoint here."""
        if not now and _library.call("mend_app_count") == _library.OK:
            return None
        done = _library.check("mend_app_checkpoint_now" if now else "mend_app_checkpoint")
        if done == _library.RESTORED:
            return "restored"
        return {_library.TAKEN: "taken", _library.MOVED: "moved"}.get(done)

    @property
    def world(self):
        """The ranks' communicator, whose object stays the same when ranks move. A program whose ranks shall be able to move uses it in place of MPI.COMM_WORLD."""
        communicators = self._communicators()
        communicators.world_is_used = True
        return communicators.world

    def _communicators(self):
        if self._transport is None:
            raise ValueError("this session has no communicator")
        return self._transport.communicators

    @property
    def arriving(self):
        """True in the new process of a rank that moves, until its state is there. The other ranks wait meanwhile: nothing may be sent to or awaited from them."""
        return bool(_library.call("mend_app_arriving"))

    def dup(self, name, comm):
        """A duplicate of `world` or of what was made here; made again when ranks move, as `split` and `cart`."""
        return self._communicators().make(name, "dup", comm)

    def split(self, name, comm, color=0, key=0):
        """As MPI.Comm.Split."""
        return self._communicators().make(name, "split", comm, (color, key))

    def cart(self, name, comm, dims, periods=None):
        """As MPI.Intracomm.Create_cart, without reordering."""
        dims = list(dims)
        return self._communicators().make(name, "cart", comm, (dims, [bool(period) for period in periods or [False] * len(dims)]))

    def free(self, comm):
        """Ends one of these, by all ranks that have it."""
        self._communicators().free(comm)

    def migrate(self, ranks, hosts=""):
        """Asks for a move of ranks ("1,4-6" or "all") to hosts (names separated by commas); one rank calls it. Ranks move at a later safe point, where `checkpoint` returns
        "moved"."""
        _library.check("mend_app_migrate", _library.text(ranks), _library.text(hosts))

    def departing(self, release):
        """Has `release()` called in the old process of a rank that has moved, to let go of what isn't registered; it sleeps to the job's end."""
        self._release = _library.PREPARE(lambda _: release())
        _library.call("mend_app_departing", self._release, None)

    def request(self):
        """Asks for a checkpoint, on all ranks, as a signal does."""
        _library.call("mend_app_request")
