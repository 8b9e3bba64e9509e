"""libmend-app.so by ctypes."""

import ctypes
import os

RESTORED, SKIP, TAKEN, MOVED = 1, 2, 3, 4
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
    # Beside the package, where `make app` builds it in a checkout, and where it may be installed.
    directories = [HERE, *([os.path.join(home, "lib")] if home else []), os.path.join(HERE, "..", "..", "..", "target", "app", "lib"), "/usr/local/lib"]
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
    ("mend_app_request", None, []),
    ("mend_app_prepare", None, [PREPARE, ctypes.c_void_p]),
    ("mend_app_error", _text, []),
    ("mend_app_settings", _text, []),
    ("mend_app_whole", Dimension, [_number]),
    ("mend_app_block", Dimension, [_number] * 5),
    ("mend_app_cyclic", Dimension, [_number] * 4),
    ("mend_app_list", Dimension, [_number, _number, ctypes.POINTER(_number)]),
):
    getattr(_library, _name).restype = _result
    getattr(_library, _name).argtypes = _arguments


def call(name, *arguments):
    """A function of the library, by its name in mend_app.h."""
    return getattr(_library, name)(*arguments)


def check(name, *arguments):
    """The same, and what is below 0 is raised."""
    done = call(name, *arguments)
    if done < 0:
        raise Error(_library.mend_app_error().decode(errors="replace"))
    return done


def text(value):
    """A C string, or NULL."""
    return None if value is None else os.fsencode(value)


def settings():
    """Every setting with its initial value, as a configuration file."""
    return _library.mend_app_settings().decode()
