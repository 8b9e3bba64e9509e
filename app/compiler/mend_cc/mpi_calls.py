"""What MPI functions do to the state of the message analysis (lockstep.py)."""

from . import values
from .evaluate import Ends
from .externals import MPI, SAME_EVERYWHERE, STARTS_OR_ENDS, buffer_bytes, letter
from .memory import Mark
from .values import OTHER, SAME, known, spread


class Calls:
    """The part of Lockstep that knows MPI."""

    def mpi(self, name, call, arguments, state, group):
        """One call by all ranks of the group; the value is MPI_SUCCESS."""
        letters, kind, *peers = MPI[name]
        if name == "MPI_Abort":
            raise Ends
        if call.place is not None and any(path == call.place.file and start <= call.place.start < end for path, start, end in self.program.parallel):
            self.program.cannot_see(call.place, "messages within a parallel region of threads")
            state.sent = None
        self._results(name, call, arguments, state, group, letters)
        getattr(self, f"_do_{kind}", self._do_local)(call, arguments, state, group, peers)
        return spread(SAME if name == "MPI_Wtick" else OTHER if name == "MPI_Wtime" else 0, self.ranks)

    def _results(self, name, call, arguments, state, group, letters):
        """Memory that it writes: the same on all ranks for some collectives of all, else unknown."""
        for access in self.memory.accesses(call):
            if access.kind == "call":
                self._havoc(access.targets, state, group)
        if MPI[name][1] in STARTS_OR_ENDS:
            for place in self.memory.persistent("write"):
                for leaf in self.memory.leaves(place):
                    if not isinstance(leaf[0], Mark):
                        self._write_leaf(leaf, spread(OTHER, self.ranks), state, group, False)
        alike = SAME_EVERYWHERE.get(name, ())
        for at, argument in enumerate(call.args[1:]):
            # What these give is stored below, where it goes to; other elements of an array keep their values.
            if letter(letters, at) not in "wWbo" or name == "MPI_Dims_create" or (name == "MPI_Cart_shift" and argument.op == "addr"):
                continue
            together = at in alike and not self.split and len(group) == self.ranks and self._all_ranks(name, arguments, group)
            if letter(letters, at) in "Wo" and argument.op == "addr" and MPI[name][1] not in STARTS_OR_ENDS and buffer_bytes(name, call.args[1:], at) is None:
                # One variable, or one element of an array.
                self._write(argument.args[0], spread(SAME if together else OTHER, self.ranks), state, group)
                continue
            targets = self.memory.given(name, call.args[1:], at)
            dummy = self._dummy(arguments[at], group)
            if dummy is not None:
                targets = {dummy} | self.memory.besides(name, call.args[1:], at)
            leaves = [leaf for place in targets for leaf in self.memory.leaves(place)]
            for leaf in leaves:
                if isinstance(leaf[0], Mark) or (letter(letters, at) == "o" and leaf[0].type is not None and leaf[0].type.scalar().name == "MPI_Request"):
                    continue
                whole = len(leaves) == 1 and self.single.type(leaf) is not None and self.single.type(leaf).kind != "array" and argument.op == "addr"
                self._write_leaf(leaf, spread(SAME if together else OTHER, self.ranks), state, group, whole)

    def _all_ranks(self, name, arguments, group):
        if name in ("MPI_Init", "MPI_Init_thread", "MPI_Initialized", "MPI_Get_version", "MPI_Comm_size"):
            return True
        at = {"MPI_Bcast": 4, "MPI_Ibcast": 4, "MPI_Allreduce": 5, "MPI_Iallreduce": 5, "MPI_Allgather": 6, "MPI_Allgatherv": 7}[name]
        return all(size == self.ranks for _, size, _ in (self._comm(arguments[at][rank], rank) for rank in group))

    # ---- communicators ----

    def _comm(self, entry, rank):
        """(this rank in it, its size, what Cartesian it is) of a communicator's value; OTHER where it isn't known."""
        world = self.program.constants.get("comm_world")
        if isinstance(entry, tuple) and entry[0] == "comm":
            return entry[1:]
        if known(entry) and entry == world:
            return rank, self.ranks, None
        if isinstance(entry, tuple) and entry[0] == "ptr" and getattr(entry[1], "name", None) == world:
            return rank, self.ranks, None
        return OTHER, OTHER, None

    def _store(self, argument, entries, state, group):
        """A result through a pointer to one variable."""
        inner = argument.args[0] if argument.op == "addr" else None
        if inner is not None:
            self._write(inner, tuple(entries), state, group)
            return
        pointers = self._eval(argument, state, group)
        for rank in group:
            pointer = pointers[rank]
            kind = self.single.type(pointer[1:3]) if isinstance(pointer, tuple) and pointer[0] == "ptr" else None
            if kind is not None:
                self._set(pointer[1:] if kind.kind == "array" else pointer[1:3], tuple(entries), state, (rank,))

    def _numbers(self, pointer, count, state, rank):
        """Integers that a pointer leads to, or None."""
        if not isinstance(pointer, tuple) or pointer[0] != "ptr" or not isinstance(count, int):
            return None
        found = []
        for at in range(count):
            entry = state.env.get((pointer[1], pointer[2], pointer[3] + at), state.env.get((pointer[1], pointer[2])))
            found.append(entry[rank] if entry else OTHER)
        return found if all(isinstance(one, int) for one in found) else None

    def _do_local(self, *_):
        pass

    _do_setup = _do_end = _do_collective = _do_make = _do_local

    def _do_rank(self, call, arguments, state, group, _peers):
        self._store(call.args[2], [self._comm(arguments[0][rank], rank)[0] if rank in group else OTHER for rank in range(self.ranks)], state, group)

    def _do_size(self, call, arguments, state, group, _peers):
        entries = [self._comm(arguments[0][rank], rank)[1] if rank in group else OTHER for rank in range(self.ranks)]
        self._store(call.args[2], entries, state, group)

    def _do_dup(self, call, arguments, state, group, _peers):
        self._store(call.args[2], [("comm", *self._comm(arguments[0][rank], rank)) for rank in range(self.ranks)], state, group)

    def _do_split(self, call, arguments, state, group, _peers):
        made = [OTHER] * self.ranks
        colors, keys = arguments[1], arguments[2]
        if len(group) == self.ranks and all(known(colors[rank]) and known(keys[rank]) and self._comm(arguments[0][rank], rank)[:2] == (rank, self.ranks) for rank in group):
            for rank in group:
                members = sorted((keys[other], other) for other in group if colors[other] == colors[rank])
                if colors[rank] != self.program.constants.get("undefined"):
                    made[rank] = ("comm", [other for _, other in members].index(rank), len(members), None)
        self._store(call.args[4], made, state, group)

    def _do_dims(self, call, arguments, state, group, _peers):
        for rank in group:
            count, size = arguments[1][rank], arguments[0][rank]
            given = self._numbers(arguments[2][rank], count, state, rank)
            made = values.balanced_dims(size, given) if given is not None and isinstance(size, int) else None
            if made is None:
                for place in self.memory.targets(call.args[3]):
                    self._write_leaf(place, spread(OTHER, self.ranks), state, (rank,), False)
            self._numbers_written(arguments[2][rank], made, state, rank)

    def _numbers_written(self, pointer, numbers, state, rank):
        if numbers is not None and isinstance(pointer, tuple) and pointer[0] == "ptr":
            for at, number in enumerate(numbers):
                self._set((pointer[1], pointer[2], pointer[3] + at), spread(number, self.ranks), state, (rank,))

    def _do_cart(self, call, arguments, state, group, _peers):
        made = [OTHER] * self.ranks
        for rank in group:
            dims = self._numbers(arguments[2][rank], arguments[1][rank], state, rank)
            periods = self._numbers(arguments[3][rank], arguments[1][rank], state, rank)
            place, size, _ = self._comm(arguments[0][rank], rank)
            product = 1
            for extent in dims or ():
                product *= extent
            # With reorder ranks may be others than before.
            if dims and periods and product == size and arguments[4][rank] == 0:
                made[rank] = ("comm", place, size, (tuple(dims), tuple(periods)))
        self._store(call.args[6], made, state, group)

    @staticmethod
    def _coordinates(place, dims):
        found = []
        for extent in reversed(dims):
            found.append(place % extent)
            place //= extent
        return found[::-1]

    def _neighbour(self, place, cart, dimension, way):
        dims, periods = cart
        at = self._coordinates(place, dims)
        at[dimension] += way
        if not 0 <= at[dimension] < dims[dimension]:
            if not periods[dimension]:
                return self.program.constants.get("proc_null", OTHER)
            at[dimension] %= dims[dimension]
        number = 0
        for one, extent in zip(at, dims):
            number = number * extent + one
        return number

    def _do_cart_shift(self, call, arguments, state, group, _peers):
        source, target = [OTHER] * self.ranks, [OTHER] * self.ranks
        for rank in group:
            place, _, cart = self._comm(arguments[0][rank], rank)
            dimension, way = arguments[1][rank], arguments[2][rank]
            if cart and isinstance(dimension, int) and isinstance(way, int) and 0 <= dimension < len(cart[0]):
                source[rank] = self._neighbour(place, cart, dimension, -way)
                target[rank] = self._neighbour(place, cart, dimension, way)
        self._store(call.args[4], source, state, group)
        self._store(call.args[5], target, state, group)

    def _do_cart_coords(self, call, arguments, state, group, _peers):
        for rank in group:
            _, _, cart = self._comm(arguments[0][rank], rank)
            if cart and isinstance(arguments[1][rank], int):
                self._numbers_written(arguments[3][rank], self._coordinates(arguments[1][rank], cart[0]), state, rank)

    def _do_cart_rank(self, call, arguments, state, group, _peers):
        made = [OTHER] * self.ranks
        for rank in group:
            _, _, cart = self._comm(arguments[0][rank], rank)
            at = self._numbers(arguments[1][rank], len(cart[0]), state, rank) if cart else None
            if at and all(0 <= one < extent for one, extent in zip(at, cart[0])):
                made[rank] = 0
                for one, extent in zip(at, cart[0]):
                    made[rank] = made[rank] * extent + one
        self._store(call.args[3], made, state, group)

    # ---- messages ----

    def _count(self, peers, sign, state, group):
        """Messages to or from these peers: 1 each, 0 for MPI_PROC_NULL."""
        null = self.program.constants.get("proc_null")
        for rank in group:
            if not known(peers[rank]):
                state.sent = None
            elif state.sent is not None and peers[rank] != null:
                state.sent += sign

    def _do_send(self, _call, arguments, state, group, peers):
        self._count(arguments[peers[0]], 1, state, group)

    def _do_recv(self, _call, arguments, state, group, peers):
        self._count(arguments[peers[0]], -1, state, group)

    def _do_sendrecv(self, _call, arguments, state, group, peers):
        self._count(arguments[peers[0]], 1, state, group)
        self._count(arguments[peers[1]], -1, state, group)

    def _do_isend(self, call, arguments, state, group, peers):
        self._open(call, arguments[-1], state, group)
        self._count(arguments[peers[0]], 1, state, group)

    def _do_irecv(self, call, arguments, state, group, peers):
        # Counted as received now: as long as its request is open no place is safe.
        self._open(call, arguments[-1], state, group)
        self._count(arguments[peers[0]], -1, state, group)

    def _do_icollective(self, call, arguments, state, group, _peers):
        self._open(call, arguments[-1], state, group)

    def _open(self, _call, pointers, state, group):
        opened = list(state.open)
        for rank in group:
            pointer = pointers[rank]
            key = pointer[1:] if isinstance(pointer, tuple) and pointer[0] == "ptr" else None
            if key is None or key in opened[rank]:
                # A request that is overwritten is never waited for.
                state.sent = None
            opened[rank] = opened[rank] | {key}
        state.open = tuple(opened)

    def _close(self, pointers, counts, state, group):
        opened = list(state.open)
        for rank in group:
            pointer, count = pointers[rank], counts[rank]
            if isinstance(pointer, tuple) and pointer[0] == "ptr" and isinstance(count, int):
                opened[rank] = opened[rank] - {(pointer[1], pointer[2], pointer[3] + at) for at in range(min(count, 4096))}
        state.open = tuple(opened)

    def _do_wait(self, _call, arguments, state, group, _peers):
        self._close(arguments[0], spread(1, self.ranks), state, group)

    def _do_waitall(self, _call, arguments, state, group, _peers):
        self._close(arguments[1], arguments[0], state, group)

    def _do_some(self, *_):
        # Which of the requests are done isn't known: they stay open.
        pass

    def _do_unclear(self, _call, _arguments, state, _group, _peers):
        state.sent = None

    def _do_request_free(self, _call, arguments, state, group, _peers):
        for rank in group:
            pointer = arguments[0][rank]
            if not (isinstance(pointer, tuple) and pointer[0] == "ptr") or pointer[1:] in state.open[rank]:
                state.sent = None

    def _do_send_init(self, _call, arguments, state, group, peers):
        self._prepare(arguments, peers, 1, state, group)

    def _do_recv_init(self, _call, arguments, state, group, peers):
        self._prepare(arguments, peers, -1, state, group)

    def _prepare(self, arguments, peers, sign, state, group):
        """A persistent request: what starting it will send or receive."""
        null = self.program.constants.get("proc_null")
        for rank in group:
            pointer, peer = arguments[-1][rank], arguments[peers[0]][rank]
            if not (isinstance(pointer, tuple) and pointer[0] == "ptr") or not known(peer):
                continue
            made = ("request", 0 if peer == null else sign)
            self._set(("request", *pointer[1:]), spread(made, self.ranks), state, (rank,))

    def _do_start(self, call, arguments, state, group, _peers):
        self._start_some(call, arguments[0], spread(1, self.ranks), state, group)

    def _do_startall(self, call, arguments, state, group, _peers):
        self._start_some(call, arguments[1], arguments[0], state, group)

    def _start_some(self, _call, pointers, counts, state, group):
        opened = list(state.open)
        for rank in group:
            pointer, count = pointers[rank], counts[rank]
            if not (isinstance(pointer, tuple) and pointer[0] == "ptr" and isinstance(count, int)):
                state.sent = None
                continue
            for at in range(count):
                key = (pointer[1], pointer[2], pointer[3] + at)
                entry = state.env.get(("request", *key))
                if entry is None or not isinstance(entry[rank], tuple) or entry[rank][0] != "request" or key in opened[rank]:
                    state.sent = None
                    continue
                opened[rank] = opened[rank] | {key}
                state.sent = None if state.sent is None else state.sent + entry[rank][1]
        state.open = tuple(opened)



