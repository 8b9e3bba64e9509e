"""The library's messages over mpi4py: what app/lib/mpi/mend_app_mpi.c is for C. Only the main thread comes here."""

import ctypes
import sys
import traceback

from mpi4py import MPI

from . import _library

TAG = 1


def _guarded(function):
    """Nothing is raised through C: an error is printed, and told as -1."""

    def guarded(*arguments):
        try:
            return function(*arguments)
        except BaseException:
            traceback.print_exc(file=sys.stderr)
            return -1

    return guarded


class Transport:
    """Holds the duplicated communicator and the functions that the library calls."""

    def __init__(self, comm):
        self.comm = comm.Dup()
        self.sending = []
        self.receiving = None
        self.buffer = None
        self.table = _library.TransportTable(
            rank=self.comm.Get_rank(), size=self.comm.Get_size(), state=None, send=_library.SEND(_guarded(self._send)), receive=_library.EXCHANGE(_guarded(self._receive)),
            broadcast=_library.EXCHANGE(_guarded(self._broadcast)), least=_library.LEAST(_guarded(self._least)), end=_library.END(self._end), stop=_library.STOP(self._stop))

    def _reap(self):
        self.sending = [(request, data) for request, data in self.sending if not request.Test()]

    def _send(self, _, to, address, length):
        data = bytearray(ctypes.string_at(address, length))
        self.sending.append((self.comm.Isend([data, MPI.BYTE], dest=to, tag=TAG), data))
        self._reap()
        return 0

    def _receive(self, _, address, length):
        if self.sending:
            self._reap()
        if self.receiving is None:
            self.buffer = bytearray(length)
            self.receiving = self.comm.Irecv([self.buffer, MPI.BYTE], source=MPI.ANY_SOURCE, tag=TAG)
        if not self.receiving.Test():
            return 0
        ctypes.memmove(address, bytes(self.buffer), length)
        self.receiving = None
        return 1

    def _broadcast(self, _, address, length):
        data = bytearray(ctypes.string_at(address, length))
        self.comm.Bcast([data, MPI.BYTE], root=0)
        ctypes.memmove(address, bytes(data), length)
        return 0

    def _least(self, _, value):
        value[0] = self.comm.allreduce(value[0], op=MPI.MIN)
        return 0

    def _end(self, _):
        for request, _data in self.sending:
            request.Wait()
        if self.receiving is not None:
            self.receiving.Cancel()
            self.receiving.Wait()
        self.comm.Free()

    def _stop(self, _, code):
        sys.stderr.flush()
        self.comm.Abort(code)
