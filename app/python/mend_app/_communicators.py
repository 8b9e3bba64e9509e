"""Communicators that are made again when ranks move: what app/lib/mpi/communicators.c is for C. The objects that a program has stay what they are; their handles
change."""

import ctypes
import sys
import traceback

from mpi4py import MPI


def set_handle(kept, made):
    """Has a program's object stand for another communicator of MPI."""
    ctypes.memmove(MPI._addressof(kept), MPI._addressof(made), MPI._sizeof(kept))


class _Entry:
    def __init__(self, name, kind, parent, arguments, freed=False):
        self.recipe = (name, kind, parent, arguments)
        self.freed = freed
        self.asked = False
        self.kept = None  # the program's object
        self.made = self.fresh = MPI.COMM_NULL

    def make(self, parent):
        _, kind, _, arguments = self.recipe
        if kind == "dup":
            return parent.Dup()
        if kind == "split":
            return parent.Split(*arguments)
        return parent.Create_cart(*arguments, reorder=False)


class Communicators:
    """The world and what was made of it, in the order in which it was made."""

    def __init__(self):
        self.world = MPI.Intracomm()
        self.fresh_world = MPI.COMM_NULL
        self.entries = []
        self.arriving = False
        self.failed = False  # one that is made again couldn't be
        self.world_is_used = False  # by the program: it isn't tied to MPI.COMM_WORLD

    def recipes(self):
        """For the new process of this rank."""
        return [(entry.recipe, entry.freed) for entry in self.entries]

    def load(self, recipes):
        """In a new process."""
        self.arriving = True
        self.entries = [_Entry(*recipe, freed) for recipe, freed in recipes]

    def _number(self, comm):
        if comm is self.world:
            return -1
        for number, entry in enumerate(self.entries):
            if entry.kept is comm:
                return number
        raise ValueError("it can be made of session.world and of what was made of it by the session only")

    def make(self, name, kind, comm, arguments=()):
        """One more; in a process that arrives what was made again, by its name."""
        recipe, again = (name, kind, self._number(comm), arguments), None
        for entry in self.entries:
            if entry.recipe[0] != name:
                continue
            if entry.asked and entry.freed and entry.kept is None if self.arriving else entry.freed:
                # _drop_older has left one entry of several.
                again = entry if self.arriving and kind == "dup" and entry.recipe == recipe else again
                continue
            if not self.arriving or entry.asked:
                raise ValueError(f"communicator {name}: there is one of that name already: free it first")
            if entry.recipe != recipe:
                raise ValueError(f"communicator {name}: it was made in another way before the rank moved")
            return self._give_again(entry)
        if again is not None:
            return self._give_again(again)
        if self.arriving:
            raise ValueError(f"communicator {name}: it wasn't there when the rank moved")
        self._drop_older(recipe)
        entry = _Entry(*recipe[:2], self._number(comm), arguments)
        # One that can't be made isn't made again when ranks move, either.
        entry.made = entry.make(comm)
        self.entries.append(entry)
        entry.kept = self._object(kind)
        set_handle(entry.kept, entry.made)
        return entry.kept

    def _give_again(self, entry):
        entry.asked = True
        entry.kept = self._object(entry.recipe[1])
        set_handle(entry.kept, entry.fresh)
        return entry.kept

    @staticmethod
    def _object(kind):
        return MPI.Cartcomm() if kind == "cart" else MPI.Intracomm()

    def _drop_older(self, recipe):
        """A duplicate that was freed by all who had it, and is made anew."""
        old = next((number for number, entry in enumerate(self.entries) if entry.freed and recipe[1] == "dup" and entry.recipe == recipe), None)
        if old is None or any(entry.recipe[2] == old for entry in self.entries):
            return
        del self.entries[old]
        for entry in self.entries:
            name, kind, parent, arguments = entry.recipe
            entry.recipe = (name, kind, parent - (parent > old), arguments)

    def free(self, comm):
        """Ends one, by all who have it; in a process that arrives later, with the others."""
        entry = self.entries[self._number(comm)] if comm is not self.world else None
        if entry is None:
            raise ValueError("session.world stays to the end")
        if self.arriving and not entry.freed and entry.recipe[1] != "dup":
            raise ValueError(f"communicator {entry.recipe[0]}: it wasn't freed before the rank moved")
        entry.kept = None
        set_handle(comm, MPI.COMM_NULL)
        if self.arriving and not entry.freed:
            # An older one of that name, which isn't in the log: this one is still to be asked for.
            entry.asked = False
            return
        entry.freed = True
        if not self.arriving and entry.made != MPI.COMM_NULL:
            entry.made.Free()

    def attempt(self, make, *arguments):
        """What MPI makes. The others go on to what comes next, and wait there: so this rank does, too, where it fails."""
        try:
            return make(*arguments)
        except MPI.Exception:
            traceback.print_exc(file=sys.stderr)
            self.failed = True
            return MPI.COMM_NULL

    def make_again(self):
        """By all ranks of the new world."""
        for entry in self.entries:
            parent = self.fresh_world if entry.recipe[2] < 0 else self.entries[entry.recipe[2]].fresh
            entry.fresh = self.attempt(entry.make, parent) if parent != MPI.COMM_NULL else MPI.COMM_NULL
        if self.arriving:
            set_handle(self.world, self.fresh_world)

    def settle(self, moved):
        """The new ones take the place of the old ones, or go."""
        for entry in reversed(self.entries):
            gone = entry.made if moved else entry.fresh
            if gone != MPI.COMM_NULL:
                gone.Free()
            if moved:
                entry.made = entry.fresh
                if entry.freed and entry.made != MPI.COMM_NULL:
                    entry.made.Free()
                if entry.kept is not None:
                    set_handle(entry.kept, entry.made)
            entry.fresh = MPI.COMM_NULL
        gone = self.world if moved and not self.arriving else MPI.COMM_NULL if moved else self.fresh_world
        if gone != MPI.COMM_NULL:
            gone.Free()
        if moved:
            set_handle(self.world, self.fresh_world)
        self.fresh_world = MPI.COMM_NULL
        self.arriving = False

    def left_over(self):
        """In a process that arrives: what the program hasn't asked for by its safe point."""
        for entry in self.entries:
            if self.arriving and not entry.asked and not entry.freed:
                return f"the program hasn't made communicator `{entry.recipe[0]}` before its safe point"
        return None

    def end(self):
        """At the session's end, by all ranks."""
        for entry in reversed(self.entries):
            if entry.made != MPI.COMM_NULL:
                entry.made.Free()
                if entry.kept is not None:
                    set_handle(entry.kept, MPI.COMM_NULL)
        self.world.Free()
