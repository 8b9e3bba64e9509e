"""The library's messages and moves over mpi4py: what app/lib/mpi is for C. Only the main thread comes here."""

import contextlib
import ctypes
import gc
import os
import sys
import time
import traceback

from mpi4py import MPI

from . import _library
from ._communicators import Communicators

MESSAGE_TAG, MOVE_TAG, FRAGMENT_TAG, RECIPES_TAG, WAKE_TAG = range(1, 6)
PIECE_BYTES = 1 << 30
# `mend run` lets an old process end: none needs another to finalize.
MAY_END = "MEND_JOB" in os.environ
OPEN_MPI = MPI.get_vendor()[0] == "Open MPI"


def _guarded(function):
    """Nothing is raised through C: an error is printed, and told as -1. What handlers of signals raise doesn't come here."""

    def guarded(*arguments):
        try:
            return function(*arguments)
        except Exception:
            traceback.print_exc(file=sys.stderr)
            return -1
        except BaseException as error:
            _library.keep(error)
            return -1

    return guarded


def _tell(error, room, text):
    """Into C's memory."""
    told = text.encode(errors="replace")[: room - 1] + b"\0"
    ctypes.memmove(error, told, len(told))


def _flush():
    for stream in (sys.stdout, sys.stderr):
        # Where there is none, or nobody reads it, the rank goes on in its new process all the same.
        with contextlib.suppress(Exception):
            stream.flush()


class Transport:
    """Holds the library's communicators and the functions that it calls."""

    def __init__(self, comm):
        self.communicators = Communicators()
        self.sending = []
        self.receiving, self.buffers = [], []
        self.slots = [[], [], [], []]
        self.merged = self.between = self.fresh = self.before = MPI.COMM_NULL
        self.peer = self.sleeper = -1
        self.hindered = None
        # Processes that this one starts don't arrive.
        arriving = os.environ.pop("MEND_APP_ARRIVES", None) is not None
        if arriving:
            self.comm = MPI.COMM_NULL
            try:
                rank, size = self._arrive()
            except Exception:
                traceback.print_exc(file=sys.stderr)
                print("mend-app: the new process of a rank that moves can't reach the old ones", file=sys.stderr, flush=True)
                MPI.COMM_WORLD.Abort(1)
                raise
        else:
            self.comm = comm.Dup()
            self.communicators.world = comm.Dup()
            rank, size, self.processes = self.comm.rank, self.comm.size, MPI.COMM_WORLD.size
        self.table = _library.TransportTable(
            rank=rank, size=size, state=None, send=_library.SEND(_guarded(self._send)), receive=_library.EXCHANGE(_guarded(self._receive)),
            broadcast=_library.EXCHANGE(_guarded(self._broadcast)), least=_library.LEAST(_guarded(self._least)), end=_library.END(self._end), stop=_library.STOP(self._stop),
            arriving=int(arriving), hindrance=_library.HINDRANCE(self._hindrance), spawn=_library.SPAWN(_guarded(self._spawn)),
            transfer=_library.TRANSFER(_guarded(self._transfer)), done=_library.SLOT(_guarded(self._done)), settle=_library.SLOT(_guarded(self._settle)),
            depart=_library.STOP(self._depart), abandon=_library.END(_guarded(self._abandon)))

    # Messages between ranks.

    def _reap(self):
        self.sending = [(request, data) for request, data in self.sending if not request.Test()]

    def _send(self, _, to, address, length):
        data = bytearray(ctypes.string_at(address, length))
        self.sending.append((self.comm.Isend([data, MPI.BYTE], dest=to, tag=MESSAGE_TAG), data))
        self._reap()
        return 0

    def _listen(self, source, length):
        self.buffers[source] = bytearray(length)
        self.receiving[source] = self.comm.Irecv([self.buffers[source], MPI.BYTE], source=source, tag=MESSAGE_TAG)

    def _receive(self, _, address, length):
        if self.sending:
            self._reap()
        if not self.receiving:
            # Each source by itself: with MPI.ANY_SOURCE MPICH 5 loses messages of processes that were spawned.
            sources = self.comm.size if self.comm.rank == 0 else 1
            self.receiving, self.buffers = [MPI.REQUEST_NULL] * sources, [None] * sources
            for source in range(sources):
                if source != self.comm.rank:
                    self._listen(source, length)
        source, done = MPI.Request.Testany(self.receiving)
        if not done or source == MPI.UNDEFINED:
            return 0
        ctypes.memmove(address, bytes(self.buffers[source]), length)
        self._listen(source, length)
        return 1

    def _broadcast(self, _, address, length):
        data = bytearray(ctypes.string_at(address, length))
        self.comm.Bcast([data, MPI.BYTE], root=0)
        ctypes.memmove(address, bytes(data), length)
        return 0

    def _least(self, _, value):
        mine, least = (bytearray(int(value[0]).to_bytes(8, sys.byteorder, signed=True)) for _ in range(2))
        request = self.comm.Iallreduce([mine, MPI.INT64_T], [least, MPI.INT64_T], op=MPI.MIN)
        looks = 0
        while not request.Test():
            looks += 1
            if looks > 50:
                time.sleep(20e-6 if looks < 500 else 1e-3)
        value[0] = int.from_bytes(least, sys.byteorder, signed=True)
        return 0

    def _end_messages(self):
        for request, _data in self.sending:
            if not request.Test():
                request.Free()
        for request in self.receiving:
            if request != MPI.REQUEST_NULL:
                request.Cancel()
                request.Wait()
        self.sending, self.receiving, self.buffers = [], [], []

    def _end(self, _):
        for request, _data in self.sending:
            request.Wait()
        self._end_messages()
        self.communicators.end()
        self.comm.Free()
        self._wake()

    def _abandon(self, _):
        """The communicators stay: to free them takes all ranks."""
        self._end_messages()
        self._wake()

    def _stop(self, _, code):
        sys.stderr.flush()
        self.comm.Abort(code)

    # Moves.

    def _hindrance(self, _):
        """What a move can't take along, as text in memory that stays."""
        try:
            why = self._hindered_by()
        except BaseException as error:
            if not isinstance(error, Exception):
                _library.keep(error)
            why = f"what is open can't be seen ({type(error).__name__}: {error})"
        self.hindered = None if why is None else ctypes.create_string_buffer(why.encode(errors="replace"))
        return None if why is None else ctypes.addressof(self.hindered)

    def _hindered_by(self):
        """Files and communicators that the session didn't make aren't seen here."""
        why = self.communicators.left_over()
        # A process that arrives may use it after its safe point only.
        if why is None and not self.communicators.world_is_used and not self.communicators.arriving:
            why = "the program doesn't use session.world: with MPI.COMM_WORLD ranks can't move"
        own = {id(request) for request in self.receiving} | {id(request) for request, _data in self.sending} | {id(request) for slot in self.slots for request in slot}
        for thing in gc.get_objects() if why is None else ():
            # isinstance() would ask what a proxy stands for, which may be gone.
            if issubclass(type(thing), MPI.Win) and thing != MPI.WIN_NULL:
                why = f"window `{thing.Get_name()}` is open: free it before the safe point"
            elif issubclass(type(thing), MPI.Request) and thing != MPI.REQUEST_NULL and id(thing) not in own:
                why = f"a request ({type(thing).__name__}) is open: wait for its end before the safe point, and free it if it is persistent"
        return why

    def _make_worlds(self, place):
        color, made = MPI.UNDEFINED if place < 0 else 0, self.communicators
        made.failed = False
        made.fresh_world, self.fresh = (made.attempt(self.merged.Split, color, max(place, 0)) for _ in range(2))
        # Where one hasn't its worlds, the others would wait for it in what is made of them.
        if not self.merged.allreduce(made.failed, op=MPI.LOR) and place >= 0:
            made.make_again()
        return not made.failed

    def _has_slots(self, more):
        """Open MPI waits for ever where it has no slot left for a process."""
        universe = MPI.COMM_WORLD.Get_attr(MPI.UNIVERSE_SIZE) if OPEN_MPI else None
        oversubscribes = os.environ.get("OMPI_MCA_rmaps_base_oversubscribe", "").startswith("1") or "OVERSUBSCRIBE" in os.environ.get("OMPI_MCA_rmaps_base_mapping_policy", "")
        return universe is None or oversubscribes or self.processes + more <= universe

    def _spawn(self, _, move, error, room):
        move = move[0]
        ranks = [move.ranks[i] for i in range(move.count)]
        if not self._has_slots(len(ranks)):
            _tell(error, room, "Open MPI has no slots left for new processes: start the job with more (--host node1:4,node2:4), or with --oversubscribe")
            return -1
        infos = []
        for i in range(move.count):
            infos.append(MPI.Info.Create())
            if move.hosts[i]:
                infos[-1].Set("host", move.hosts[i].decode())
        self.comm.Set_errhandler(MPI.ERRORS_RETURN)
        try:
            scripts = [[move.scripts[i].decode()] for i in range(move.count)]
            self.between = self.comm.Spawn_multiple(["/bin/sh"] * move.count, scripts, [1] * move.count, infos, root=0)
        except MPI.Exception as why:
            _tell(error, room, f"MPI can't start new processes here: {str(why).strip().splitlines()[-1]}")
            return -1
        finally:
            for info in infos:
                info.Free()
        self.merged = self.between.Merge(high=False)
        self.processes += len(ranks)
        self.merged.bcast((self.comm.size, ranks, self.processes), root=0)
        rank = self.comm.rank
        self.peer = self.comm.size + ranks.index(rank) if rank in ranks else -1
        if self.peer >= 0:
            self.merged.send(self.communicators.recipes(), dest=self.peer, tag=RECIPES_TAG)
        if self._make_worlds(-1 if self.peer >= 0 else rank):
            return 0
        _tell(error, room, "the communicators can't be made again")
        return -2

    def _arrive(self):
        """The same in a new process: its parents are the old ones."""
        self.between = MPI.Comm.Get_parent()
        self.merged = self.between.Merge(high=True)
        size, ranks, self.processes = self.merged.bcast(None, root=0)
        self.peer = ranks[MPI.COMM_WORLD.rank]
        self.communicators.load(self.merged.recv(source=self.peer, tag=RECIPES_TAG))
        if not self._make_worlds(self.peer):
            raise RuntimeError("the communicators can't be made again")
        return self.peer, size

    def _transfer(self, _, slot, sends, fragment, address, length):
        tag = FRAGMENT_TAG if fragment else MOVE_TAG
        self.slots[slot] = []
        for at in range(0, max(length, 1), PIECE_BYTES):
            piece = [MPI.memory.fromaddress(address + at, min(PIECE_BYTES, length - at)), MPI.BYTE]
            self.slots[slot].append(self.merged.Isend(piece, dest=self.peer, tag=tag) if sends else self.merged.Irecv(piece, source=self.peer, tag=tag))
        return 0

    def _done(self, _, slot):
        if self.slots[slot] and not MPI.Request.Testall(self.slots[slot]):
            return 0
        self.slots[slot] = []
        return 1

    def _drop_messages(self):
        """What the other process has sent and this one hasn't received: MPICH frees no communicator that has such messages, while Open MPI lets them be."""
        self.merged.Set_errhandler(MPI.ERRORS_RETURN)
        while self.peer >= 0 and not OPEN_MPI and self.merged.Iprobe(source=self.peer):
            try:
                self.merged.Recv([bytearray(0), MPI.BYTE], source=self.peer)
            except MPI.Exception as why:
                if why.Get_error_class() != MPI.ERR_TRUNCATE:
                    return

    def _settle(self, _, moved):
        if self.merged == MPI.COMM_NULL:
            return 0
        for slot in range(len(self.slots)):
            if not self._done(None, slot):
                for request in self.slots[slot]:
                    if request != MPI.REQUEST_NULL:
                        request.Cancel()
                        request.Free()
                self.slots[slot] = []
        arrives = self.communicators.arriving
        if not moved:
            self._drop_messages()
        self.communicators.settle(moved)
        if moved:
            if self.comm != MPI.COMM_NULL:
                self._end_messages()
                self.comm.Free()
            self.comm = self.fresh
            if MAY_END:
                self.merged.Free()
            elif arrives:
                self.before, self.sleeper = self.merged, self.peer
            # Where this rank moves: how its old process is woken.
            if MAY_END or arrives or self.peer < 0:
                self.merged = MPI.COMM_NULL
        else:
            for comm in (self.fresh, self.merged):
                if comm != MPI.COMM_NULL:
                    comm.Free()
            self.merged = MPI.COMM_NULL
            self.between.Disconnect()
        self.fresh = MPI.COMM_NULL
        return 0

    def _wake(self):
        if self.before != MPI.COMM_NULL:
            self.before.Send([bytearray(0), MPI.BYTE], dest=self.sleeper, tag=WAKE_TAG)
        self.before = MPI.COMM_NULL

    def _depart(self, _, sleeps):
        # What has been printed isn't kept until the job's end.
        _flush()
        nap = 1e-3
        while sleeps and not MAY_END:
            time.sleep(nap)
            nap = min(2 * nap, 0.1)
            if self.merged.Iprobe(source=self.peer, tag=WAKE_TAG):
                self.merged.Recv([bytearray(0), MPI.BYTE], source=self.peer, tag=WAKE_TAG)
                break
        self._wake()
        _flush()
        MPI.Finalize()
        # Python's own end would run the program's handlers.
        ctypes.CDLL(None).exit(0)
