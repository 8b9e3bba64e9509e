"""libmend-app.so by ctypes."""

import _signal
import ctypes
import os
import signal
import threading

OK, RESTORED, SKIP, TAKEN, MOVED = range(5)
REFUSED = -2
HERE = os.path.dirname(os.path.abspath(__file__))


class Error(Exception):
    """What mend_app_error() says."""


class Dimension(ctypes.Structure):
    """One dimension of an array over the ranks, as in mend_app.h."""

    _fields_ = [("kind", ctypes.c_int), *((name, ctypes.c_uint64) for name in ("extent", "global_", "first", "count", "start", "block", "part", "parts")),
                ("indices", ctypes.POINTER(ctypes.c_uint64))]


SEND = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
EXCHANGE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
LEAST = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int64))
END = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
STOP = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)
PREPARE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Move(ctypes.Structure):
    """mend_app_move of mend_app.h."""

    _fields_ = [("count", ctypes.c_int), ("ranks", ctypes.POINTER(ctypes.c_int)), ("hosts", ctypes.POINTER(ctypes.c_char_p)), ("scripts", ctypes.POINTER(ctypes.c_char_p))]


HINDRANCE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
SPAWN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(Move), ctypes.c_void_p, ctypes.c_size_t)
TRANSFER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
SLOT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)


class TransportTable(ctypes.Structure):
    """mend_app_transport of mend_app.h."""

    _fields_ = [("rank", ctypes.c_int), ("size", ctypes.c_int), ("state", ctypes.c_void_p), ("send", SEND), ("receive", EXCHANGE),
                ("broadcast", EXCHANGE), ("least", LEAST), ("end", END), ("stop", STOP),
                ("arriving", ctypes.c_int), ("hindrance", HINDRANCE), ("spawn", SPAWN), ("transfer", TRANSFER), ("done", SLOT), ("settle", SLOT), ("depart", STOP), ("abandon", END)]


def _find():
    named, home = os.environ.get("MEND_APP_LIBRARY"), os.environ.get("MEND_APP_HOME")
    # Beside the package, or with it in target/app or in PREFIX; where `make app` builds it in a checkout, and where it may be installed.
    own = [os.path.join(HERE, "..", "..", "lib"), os.path.join(HERE, "..", "..", "..")]
    directories = [HERE, *([os.path.join(home, "lib")] if home else []), *own, os.path.join(HERE, "..", "..", "..", "target", "app", "lib"), "/usr/local/lib"]
    places = [named] if named else [os.path.join(directory, "libmend-app.so") for directory in directories]
    for place in places:
        if os.path.exists(place):
            return os.path.abspath(place)
    raise ImportError(f"libmend-app.so isn't at {' or '.join(places)}: build it (make app), or name it in MEND_APP_LIBRARY")


_library = ctypes.CDLL(_find())
_text, _number = ctypes.c_char_p, ctypes.c_uint64
for _name, _result, _arguments in (
    ("mend_app_init", ctypes.c_int, [_text, _text]),
    ("mend_app_init_transport", ctypes.c_int, [ctypes.POINTER(TransportTable), _text, _text]),
    ("mend_app_finalize", ctypes.c_int, []),
    ("mend_app_abandon", None, []),
    ("mend_app_restarting", ctypes.c_int, []),
    ("mend_app_arriving", ctypes.c_int, []),
    ("mend_app_migrate", ctypes.c_int, [_text, _text]),
    ("mend_app_departing", None, [PREPARE, ctypes.c_void_p]),
    ("mend_app_newest", _number, []),
    ("mend_app_saved_shape", ctypes.c_int, [_text, ctypes.POINTER(_number)]),
    ("mend_app_variable", ctypes.c_int, [_text, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.POINTER(_number), ctypes.c_int]),
    ("mend_app_array", ctypes.c_int, [_text, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.POINTER(Dimension)]),
    ("mend_app_forget", ctypes.c_int, [_text]),
    ("mend_app_enter", ctypes.c_int, [_text]),
    ("mend_app_leave", ctypes.c_int, []),
    ("mend_app_checkpoint", ctypes.c_int, []),
    ("mend_app_checkpoint_now", ctypes.c_int, []),
    ("mend_app_count", ctypes.c_int, []),
    ("mend_app_request", None, []),
    ("mend_app_prepare", None, [PREPARE, ctypes.c_void_p]),
    ("mend_app_error", _text, []),
    ("mend_app_report", ctypes.c_int, [ctypes.c_int, _text]),
    ("mend_app_settings", _text, []),
    ("mend_app_whole", Dimension, [_number]),
    ("mend_app_block", Dimension, [_number] * 5),
    ("mend_app_cyclic", Dimension, [_number] * 4),
    ("mend_app_list", Dimension, [_number, _number, ctypes.POINTER(_number)]),
):
    getattr(_library, _name).restype = _result
    getattr(_library, _name).argtypes = _arguments


def call(name, *arguments):
    """A function of the library, by its name in mend_app.h, that calls nothing back."""
    return getattr(_library, name)(*arguments)


# What is to be raised when the library has returned: nothing is raised through C.
_kept = []


def keep(error):
    """Has it raised where the program has called the library."""
    _kept.append(error)


def _harmless(handler):
    """The same handler of a signal, but what it raises is kept. It may run in whatever the library has called back, even before that can catch anything."""

    def handle(number, frame):
        try:
            handler(number, frame)
        except BaseException as error:
            keep(error)

    return handle


# Of the module below `signal`, whose functions take longer than the library does.
_SIGNALS = sorted(map(int, signal.valid_signals()))
_seen, _own, _placed = [], {}, {}


def _handlers():
    """The program's own, by signal, and what takes their place."""
    global _seen, _own, _placed
    seen = list(map(_signal.getsignal, _SIGNALS))
    if seen != _seen:
        _seen, _own = seen, {number: handler for number, handler in zip(_SIGNALS, seen) if callable(handler)}
        _placed = {number: _harmless(handler) for number, handler in _own.items()}
    return _own, _placed


def guarded(name, *arguments):
    """The same where the library may call back: then handlers of signals raise nothing before result()."""
    # They run in the main thread alone, and belong to it.
    own, placed = _handlers() if threading.get_ident() == threading.main_thread().ident else ({}, {})
    try:
        for number, handler in placed.items():
            _signal.signal(number, handler)
        return getattr(_library, name)(*arguments)
    finally:
        done = False
        while not done:
            try:
                for number, handler in placed.items():
                    # The program's own may have set another one.
                    if _signal.getsignal(number) is handler:
                        _signal.signal(number, own[number])
                done = True
            except BaseException as error:
                keep(error)


def result(done):
    """What such a function has returned: what is below 0 is raised as an error, and before that what was kept."""
    if _kept:
        error = _kept[0]
        _kept.clear()
        raise error
    if done < 0:
        raise Error(_library.mend_app_error().decode(errors="replace"))
    return done


def check(name, *arguments):
    """Both."""
    return result(guarded(name, *arguments))


def text(value):
    """A C string, or NULL."""
    return None if value is None else os.fsencode(value)


def settings():
    """Every setting with its initial value, as a configuration file."""
    return _library.mend_app_settings().decode()
