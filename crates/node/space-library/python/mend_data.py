"""Files of Mend's data spaces in Python, without a mount: `mend://SPACE/PATH`.

    import mend_data
    with mend_data.open("mend://input/in.dat") as file:
        header = file.read(64)

    import fsspec, pandas                          # what knows fsspec knows these addresses once this module is imported
    pandas.read_csv("mend://input/table.csv")

It stands on libmend-data.so, which it looks for beside itself, one directory above, and where MEND_DATA_LIBRARY says. What a file or directory is, and what can go wrong, is said in
mend_data.h; errors are OSErrors. With `fsspec` installed, `MendFileSystem` is a file system of it; without, `Space` and `open` serve.

In a process made by fork() spaces that it was given are opened anew when they are used, and so are files that are open for reading only, by their path. A file that is open for
writing is refused there (EBADF): open it again.
"""

import contextlib
import ctypes
import errno
import glob
import io
import os
import shutil
import threading

__all__ = ["MendFileSystem", "Space", "open"]

_NAME = 512
# No file is longer than this.
_LONGEST = (1 << 63) - 1
# How many forks lie between this process and the one that loaded the module. Connections that were made before a fork are the parent's.
_forks = 0


class _Stat(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint64), ("changed_ns", ctypes.c_int64), ("mode", ctypes.c_uint32), ("is_directory", ctypes.c_uint8), ("is_staged", ctypes.c_uint8), ("is_lost", ctypes.c_uint8)]


def _library():
    here = os.path.dirname(os.path.abspath(__file__))
    places = [os.path.join(here, "libmend-data.so"), os.path.join(os.path.dirname(here), "libmend-data.so")]
    named = os.environ.get("MEND_DATA_LIBRARY")
    path = named or next((place for place in places if os.path.exists(place)), None)
    if not path:
        raise ImportError(f"libmend-data.so is not in {here} nor above it: set MEND_DATA_LIBRARY to its path")
    library = ctypes.CDLL(path, use_errno=True)
    handle, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64
    stat = ctypes.POINTER(_Stat)
    for name, result, *arguments in (
        ("error", text),
        ("space", handle, text),
        ("leave", None, handle),
        ("stat", ctypes.c_int, handle, text, stat),
        ("list", handle, handle, text),
        ("next", ctypes.c_int, handle, text, ctypes.c_size_t, stat),
        ("end_list", None, handle),
        ("open", handle, handle, text, ctypes.c_int, ctypes.c_uint),
        ("fstat", ctypes.c_int, handle, stat),
        ("pread", ctypes.c_ssize_t, handle, handle, ctypes.c_size_t, number),
        ("pwrite", ctypes.c_ssize_t, handle, handle, ctypes.c_size_t, number),
        ("truncate", ctypes.c_int, handle, number),
        ("sync", ctypes.c_int, handle),
        ("close", ctypes.c_int, handle),
        ("unlink", ctypes.c_int, handle, text),
        ("mkdir", ctypes.c_int, handle, text),
        ("rmdir", ctypes.c_int, handle, text),
        ("rename", ctypes.c_int, handle, text, text),
    ):
        function = getattr(library, f"mend_data_{name}")
        function.restype, function.argtypes = result, arguments
    return library


_lib = _library()


def _failed(path=None):
    number, why = ctypes.get_errno(), _lib.mend_data_error().decode(errors="replace")
    return OSError(number, why, path) if path is not None else OSError(number, why)


def _done(answer, path=None):
    if answer is None or answer == -1:
        raise _failed(path)
    return answer


def _text(path):
    """A path as the library takes it. It would take one with a zero byte for a shorter one, which may be another file's."""
    if "\0" in path:
        raise ValueError("embedded null byte: no path of a data space has one")
    return path.encode()


def _position(number, path):
    """An offset or length as the library takes it, which wraps those that are too large or negative."""
    if number < 0:
        raise OSError(errno.EINVAL, f"{number} is negative", path)
    if number > _LONGEST:
        raise OSError(errno.EFBIG, "no file is that long", path)
    return number


class _Handle:
    """What the library gave out. `with` it for a call; it ends when no thread is in one."""

    def __init__(self, raw):
        self._raw, self._calls, self._turn, self.forks = raw, [], threading.Condition(), _forks

    def __enter__(self):
        with self._turn:
            if self._raw is None:
                raise ValueError("I/O operation on closed file")
            self._calls.append(threading.get_ident())
            return self._raw

    def __exit__(self, *_):
        with self._turn:
            self._calls.remove(threading.get_ident())
            self._turn.notify_all()

    def taken(self):
        """The library's handle, which the caller has to end; None if it was taken already, or is that of a parent."""
        if self.forks != _forks:
            return None
        with self._turn:
            if threading.get_ident() in self._calls:
                raise RuntimeError("closed by a signal handler while the same thread is in a call with it")
            raw, self._raw = self._raw, None
            while self._calls:
                self._turn.wait()
        return raw


def _about(stat):
    about = {"size": stat.size, "type": "directory" if stat.is_directory else "file", "mode": stat.mode, "mtime": stat.changed_ns / 1e9, "staged": bool(stat.is_staged)}
    # fsspec, too, has None for a size that is not known.
    return {**about, "size": None, "lost": True} if stat.is_lost else about


def _listed(handle, path):
    listing = _done(_lib.mend_data_list(handle, _text(path)), path)
    name, stat = ctypes.create_string_buffer(_NAME), _Stat()
    found = {}
    try:
        while _done(_lib.mend_data_next(listing, name, _NAME, stat), path):
            found[name.value.decode()] = _about(stat)
    finally:
        _lib.mend_data_end_list(listing)
    return found


class Space:
    """A data space by its name. The same object serves all threads, until it is closed."""

    _open = {}
    _turn = threading.RLock()

    def __new__(cls, name):
        # One for each name and process: a space has a cache, and connections.
        with Space._turn:
            space = cls._open.get(name)
            if space is None:
                space = super().__new__(cls)
                space.name, space._held, space._left = name, None, False
            space._handle()
            cls._open[name] = space
            return space

    def _handle(self):
        if self._left:
            raise ValueError(f"the data space `{self.name}` was closed: Space({self.name!r}) uses it again")
        held = self._held
        if held is not None and held.forks == _forks:
            return held
        with Space._turn:
            if self._held is None or self._held.forks != _forks:
                self._held = _Handle(_done(_lib.mend_data_space(_text(self.name)), self.name))
            return self._held

    def close(self):
        """Leaves the space, for all that have this object: its connections end, and the memory of its cache is free once its last file is closed. `Space(name)` finds it anew
        then, as it has to after `mend data destroy` and `create` of the same name."""
        with Space._turn:
            self._left = True
            if Space._open.get(self.name) is self:
                del Space._open[self.name]
        raw = self._held.taken()
        if raw is not None:
            _lib.mend_data_leave(raw)

    def __enter__(self):
        self._handle()
        return self

    def __exit__(self, *_):
        self.close()

    @staticmethod
    def names():
        """Names of the spaces that are known here."""
        return list(_listed(None, ""))

    def stat(self, path):
        """What is known of a path: size in bytes, type, mode, mtime in seconds, whether it was staged."""
        stat, path_text = _Stat(), _text(path)
        with self._handle() as handle:
            _done(_lib.mend_data_stat(handle, path_text, stat), path)
        return _about(stat)

    def list(self, path=""):
        """The same of what is in a directory, by name. A file of which no target that answers has all is `lost`, and its size None."""
        with self._handle() as handle:
            return _listed(handle, path)

    def unlink(self, path):
        with self._handle() as handle:
            _done(_lib.mend_data_unlink(handle, _text(path)), path)

    def mkdir(self, path):
        with self._handle() as handle:
            _done(_lib.mend_data_mkdir(handle, _text(path)), path)

    def rmdir(self, path):
        with self._handle() as handle:
            _done(_lib.mend_data_rmdir(handle, _text(path)), path)

    def rename(self, path, new):
        with self._handle() as handle:
            _done(_lib.mend_data_rename(handle, _text(path), _text(new)), path)

    def open(self, path, flags=os.O_RDONLY, mode=0o666):
        """A raw file, opened as by os.open."""
        return RawFile(self, path, flags, mode)


def _forked():
    global _forks
    # Another thread of the parent may have had its turn: nobody would end it here.
    _forks, Space._turn = _forks + 1, threading.RLock()


os.register_at_fork(after_in_child=_forked)


class RawFile(io.RawIOBase):
    """An open file without a buffer."""

    def __init__(self, space, path, flags, mode):
        super().__init__()
        self._held = None
        self._space, self._path, self._flags, self._at = space, path, flags, 0
        self._held = self._opened(flags, mode)
        self.name = f"mend://{space.name}/{path.strip('/')}"

    def _opened(self, flags, mode):
        with self._space._handle() as space:
            return _Handle(_done(_lib.mend_data_open(space, _text(self._path), flags, mode), self._path))

    def readable(self):
        return self._flags & os.O_ACCMODE != os.O_WRONLY

    def writable(self):
        return self._flags & os.O_ACCMODE != os.O_RDONLY

    def seekable(self):
        return True

    def _size(self):
        stat = _Stat()
        with self._handle() as file:
            _done(_lib.mend_data_fstat(file, stat), self._path)
        return stat.size

    def _handle(self):
        held = self._held
        if held is None:
            raise ValueError("I/O operation on closed file")
        if held.forks == _forks:
            return held
        if self.writable():
            raise OSError(errno.EBADF, "it was opened for writing before fork(), and is the parent's: open it again in this process", self._path)
        anew = self._opened(os.O_RDONLY, 0)
        with Space._turn:
            if self._held is held:
                self._held = anew
                return anew
        # Another thread was faster, or has closed the file.
        _lib.mend_data_close(anew.taken())
        return self._handle()

    def seek(self, offset, whence=os.SEEK_SET):
        base = {os.SEEK_SET: lambda: 0, os.SEEK_CUR: lambda: self._at, os.SEEK_END: self._size}[whence]()
        if base + offset < 0:
            raise OSError(errno.EINVAL, "nothing is before the beginning", self._path)
        self._at = base + offset
        return self._at

    def tell(self):
        return self._at

    def pread(self, length, offset):
        """Bytes from an offset on; fewer at the end."""
        into = bytearray(length)
        return bytes(memoryview(into)[: self._read(into, offset)])

    def _read(self, into, offset):
        if not len(into):
            return 0
        place = (ctypes.c_char * len(into)).from_buffer(into)
        with self._handle() as file:
            return _done(_lib.mend_data_pread(file, ctypes.byref(place), len(into), _position(offset, self._path)), self._path)

    def readall(self):
        pieces = []
        # A checkpoint waits for calls to end: none reads all of a large file.
        while piece := self.pread(_PIECE, self._at):
            pieces.append(piece)
            self._at += len(piece)
        return b"".join(pieces)

    def readinto(self, into):
        with memoryview(into).cast("B") as view:
            done = self._read(view, self._at)
        self._at += done
        return done

    def write(self, data):
        with memoryview(data).cast("B") as view:
            # What cannot be changed has no address that ctypes gives.
            content = bytes(view) if view.readonly else (ctypes.c_char * len(view)).from_buffer(view)
            with self._handle() as file:
                done = _done(_lib.mend_data_pwrite(file, content, len(view), _position(self._at, self._path)), self._path) if len(view) else 0
        self._at += done
        if self._flags & os.O_APPEND:
            # An error here must not look like one of writing: what is there would be appended once more.
            with contextlib.suppress(OSError):
                self._at = self._size()
        return done

    def truncate(self, size=None):
        size = _position(self._at if size is None else size, self._path)
        with self._handle() as file:
            _done(_lib.mend_data_truncate(file, size), self._path)
        return size

    def sync(self):
        """What was written is durable on two targets then."""
        with self._handle() as file:
            _done(_lib.mend_data_sync(file), self._path)

    def close(self):
        held = getattr(self, "_held", None)
        # Other threads may read or write: the handle is gone once they are done.
        file = held.taken() if held is not None else None
        self._held = None
        super().close()
        if file is not None:
            _done(_lib.mend_data_close(file), self._path)


_FLAGS = {"r": os.O_RDONLY, "w": os.O_WRONLY | os.O_CREAT | os.O_TRUNC, "x": os.O_WRONLY | os.O_CREAT | os.O_EXCL, "a": os.O_WRONLY | os.O_CREAT | os.O_APPEND}
# Bytes that a buffered file asks for at once.
_BUFFER = 1 << 20
# Bytes of a whole file that are read at once.
_PIECE = 8 << 20


def _flags(mode):
    letters = mode.replace("b", "").replace("t", "").replace("+", "")
    if letters not in _FLAGS or len(set(mode)) != len(mode) or {"b", "t"} <= set(mode):
        raise ValueError(f"invalid mode: {mode!r}: one of r, w, x and a, with + for reading and writing, and b or t")
    flags = _FLAGS[letters]
    return flags & ~os.O_ACCMODE | os.O_RDWR if "+" in mode else flags


def _split(address):
    """Space and path of an address."""
    space, _, path = address.removeprefix("mend://").strip("/").partition("/")
    return space, path


def open(address, mode="rb", buffering=-1, encoding=None, errors=None, newline=None):
    """Opens `mend://SPACE/PATH` as the built-in open does a path. What differs: without a mode it is binary ("rb"); a buffer has 1 MiB unless its size is given; there is no closefd
    and no opener."""
    flags, binary = _flags(mode), "b" in mode
    if binary and (encoding, errors, newline) != (None, None, None):
        raise ValueError("a binary file has no encoding, errors or newline: leave the b out of its mode for text")
    if buffering == 0 and not binary:
        raise ValueError("text has a buffer: add b to the mode, or use buffering=1, which writes line by line")
    name, path = _split(address)
    raw = Space(name).open(path, flags)
    try:
        if flags & os.O_APPEND:
            raw.seek(0, os.SEEK_END)
        if buffering == 0:
            return raw
        kind = io.BufferedRandom if "+" in mode else io.BufferedReader if raw.readable() else io.BufferedWriter
        # One byte stands for lines in text, and for no size in binary, as in the built-in one.
        buffered = kind(raw, buffering if buffering > 1 else _BUFFER)
        return buffered if binary else io.TextIOWrapper(buffered, encoding, errors, newline, line_buffering=buffering == 1)
    except BaseException:
        raw.close()
        raise


try:
    import fsspec
    from fsspec.spec import AbstractFileSystem
    from fsspec.transaction import Transaction
except ImportError:
    MendFileSystem = None
else:

    _NO_TRANSACTIONS = "data spaces have no transactions, files are seen as they are written: write to another name, and mv it when all is there"

    class _NoTransaction(Transaction):
        def start(self):
            raise io.UnsupportedOperation(_NO_TRANSACTIONS)

    class _Reader(io.BufferedReader):
        """A file as fsspec's own functions read it: they ask it for its size."""

        @property
        def size(self):
            return self.raw._size()

    class MendFileSystem(AbstractFileSystem):
        """Data spaces as a file system of fsspec; their names are its first directories."""

        protocol = "mend"
        root_marker = ""
        transaction_type = _NoTransaction

        @classmethod
        def _strip_protocol(cls, path):
            if isinstance(path, list):
                return [cls._strip_protocol(one) for one in path]
            return str(path).removeprefix("mend://").strip("/")

        @staticmethod
        def _at(path):
            name, path = _split(path)
            if not name:
                raise OSError(errno.EPERM, "data spaces are made and removed by `mend data create` and `destroy`", path)
            return Space(name), path

        def ls(self, path, detail=True, **_):
            path = self._strip_protocol(path)
            if not path:
                found = [{"name": name, "size": 0, "type": "directory"} for name in Space.names()]
            else:
                space, inner = self._at(path)
                about = space.stat(inner)
                found = [{"name": path, **about}] if about["type"] == "file" else [{"name": f"{path}/{name}", **one} for name, one in space.list(inner).items()]
            return found if detail else [one["name"] for one in found]

        def info(self, path, **_):
            path = self._strip_protocol(path)
            if not path:
                return {"name": "", "size": 0, "type": "directory"}
            space, inner = self._at(path)
            return {"name": path, **space.stat(inner)}

        def _open(self, path, mode="rb", block_size=None, autocommit=True, **_):
            if not autocommit and mode != "rb":
                raise io.UnsupportedOperation(_NO_TRANSACTIONS)
            if mode == "rb":
                return _Reader(open(f"mend://{path}", mode, 0), block_size or _BUFFER)
            return open(f"mend://{path}", mode, block_size or _BUFFER)

        def cat_file(self, path, start=None, end=None, **_):
            space, inner = self._at(self._strip_protocol(path))
            with space.open(inner) as file:
                size = file._size()
                start, end, _step = slice(start, end).indices(size)
                return file.pread(max(end - start, 0), start)

        def modified(self, path):
            import datetime

            return datetime.datetime.fromtimestamp(self.info(path)["mtime"], tz=datetime.timezone.utc)

        def rm_file(self, path):
            space, inner = self._at(self._strip_protocol(path))
            space.unlink(inner)

        _rm = rm_file

        def rm(self, path, recursive=False, maxdepth=None):
            for one in reversed(self.expand_path(path, recursive=recursive, maxdepth=maxdepth)):
                if recursive and self.isdir(one):
                    # A space itself stays, empty.
                    if "/" in one or not one:
                        self.rmdir(one)
                else:
                    self.rm_file(one)

        def mkdir(self, path, create_parents=True, **_):
            space, inner = self._at(self._strip_protocol(path))
            space.mkdir(inner)

        def makedirs(self, path, exist_ok=False):
            try:
                self.mkdir(path)
            except FileExistsError:
                if not exist_ok:
                    raise

        def rmdir(self, path):
            space, inner = self._at(self._strip_protocol(path))
            space.rmdir(inner)

        def start_transaction(self):
            raise io.UnsupportedOperation(_NO_TRANSACTIONS)

        def cp_file(self, path1, path2, **_):
            path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
            if path1 == path2:
                raise OSError(errno.EINVAL, "both are the same file", path1)
            if self.isdir(path1):
                if not self.isdir(path2):
                    self.makedirs(path2, exist_ok=True)
                return
            with open(f"mend://{path1}", buffering=0) as source, open(f"mend://{path2}", "wb", _PIECE) as target:
                shutil.copyfileobj(source, target, _PIECE)

        def mv(self, path1, path2, recursive=True, maxdepth=None, **_):
            """Moves a file or a directory, into the second one if that is a directory. Files within a space get another name; all else is copied, and then removed."""
            if maxdepth is not None or not isinstance(path1, str) or not isinstance(path2, str) or glob.has_magic(path1):
                raise ValueError("mv moves one file, or all of one directory: call it for each")
            one, other = self._strip_protocol(path1), self._strip_protocol(path2)
            if self.isdir(other):
                other = f"{other}/{one.rpartition('/')[2]}"
            (space, inner), (target, name) = self._at(one), self._at(other)
            if not inner or not name:
                raise OSError(errno.EPERM, "a data space is not moved, and nothing takes its place: move what is in it", path1)
            if one == other:
                return
            if self.info(one)["type"] == "file":
                found = {one: self.info(one)}
                if space is target:
                    space.rename(inner, name)
                    return
            else:
                if other.startswith(f"{one}/"):
                    raise OSError(errno.EINVAL, f"{other} would lie in what is moved", path1)
                found = {one: self.info(one), **self.find(one, withdirs=True, detail=True)}
            staged = next((path for path, about in found.items() if about.get("staged")), None)
            if staged is not None:
                raise OSError(errno.EPERM, f"{staged} was staged, and is not removed so: copy it instead", path1)
            for path in found:
                self.cp_file(path, other + path[len(one) :])
            # Only what was copied: others may have put more there.
            for path, about in reversed(found.items()):
                with contextlib.suppress(FileNotFoundError):
                    (self.rmdir if about["type"] == "directory" else self.rm_file)(path)

    fsspec.register_implementation("mend", MendFileSystem, clobber=True)
