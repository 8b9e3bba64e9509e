"""States of random generators as text in fixed memory, which any machine reads: numbers, names and lists, no code."""

import json
import random

import numpy

# A Mersenne Twister's takes some 7 KiB.
ROOM = 16384


def _plain(value):
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, numpy.ndarray):
        return {"__array__": value.tolist(), "type": value.dtype.str[1:]}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return value.item() if isinstance(value, numpy.generic) else value


def _back(value):
    if isinstance(value, dict) and "__array__" in value:
        return numpy.array(value["__array__"], dtype=value["type"])
    if isinstance(value, dict):
        return {key: _back(inner) for key, inner in value.items()}
    return value


def _tuples(value):
    return tuple(_tuples(inner) for inner in value) if isinstance(value, list) else value


# Beside the parts of a state of NumPy's, which know no such name. Checkpoints of earlier releases are without it.
_SEED = "seed_sequence"


def _seed_of(bit_generator):
    """What its children come from. Before NumPy 1.25 it has another name."""
    return getattr(bit_generator, "seed_seq", None) or getattr(bit_generator, "_seed_seq", None)


def _seed_as_plain(name, seed):
    """Which children have been spawned is not in a generator's state, and without it they would be spawned again. None: it can't spawn."""
    if seed is None or type(seed).__name__ == "SeedlessSequence":
        return None
    if type(seed) is not numpy.random.SeedSequence:
        raise TypeError(f"{name}: its seed is a {type(seed).__name__}, which can't be restored: a numpy.random.SeedSequence is needed")
    parts = {"entropy": seed.entropy, "spawn_key": seed.spawn_key, "pool_size": seed.pool_size, "n_children_spawned": seed.n_children_spawned}
    return _plain(parts)


def _seed_back(parts):
    entropy, key = _back(parts["entropy"]), tuple(parts["spawn_key"])
    return numpy.random.SeedSequence(entropy, spawn_key=key, pool_size=parts["pool_size"], n_children_spawned=parts["n_children_spawned"])


def _set(bit_generator, state, seed):
    """Sets both as unpickling does: nothing else sets the second. Older releases of NumPy can't."""
    bit_generator.__setstate__((state, seed))
    if _seed_of(bit_generator) is not seed:
        raise TypeError("its seed stays what it was")


class Generator:
    """One generator and the memory that holds its state at a checkpoint."""

    def __init__(self, name, generator):
        self.name = name
        self.generator = generator
        self.memory = numpy.zeros(ROOM, dtype=numpy.uint8)
        if not isinstance(generator, (numpy.random.Generator, numpy.random.RandomState, random.Random)):
            raise TypeError(f"{name}: numpy.random.Generator, numpy.random.RandomState or random.Random is needed")
        self.store()
        if isinstance(generator, numpy.random.Generator) and _seed_as_plain(name, _seed_of(generator.bit_generator)) is not None:
            try:
                _set(generator.bit_generator, generator.bit_generator.state, _seed_of(generator.bit_generator))
            except Exception as error:
                raise TypeError(f"{name}: which children it has spawned can't be restored by NumPy {numpy.__version__}: a newer one can ({error})") from None

    def store(self):
        """Brings the memory up to date."""
        if isinstance(self.generator, numpy.random.Generator):
            state = dict(self.generator.bit_generator.state)
            state[_SEED] = _seed_as_plain(self.name, _seed_of(self.generator.bit_generator))
        elif isinstance(self.generator, numpy.random.RandomState):
            state = self.generator.get_state(legacy=False)
        else:
            state = self.generator.getstate()
        text = json.dumps(_plain(state)).encode()
        if len(text) > ROOM:
            raise ValueError(f"{self.name}: its state takes {len(text)} bytes, and there is room for {ROOM}")
        self.memory[:] = 0
        self.memory[: len(text)] = numpy.frombuffer(text, dtype=numpy.uint8)

    def load(self):
        """Sets the generator to what the memory holds."""
        state = json.loads(self.memory.tobytes().rstrip(b"\0"))
        if isinstance(self.generator, numpy.random.Generator):
            seed = state.pop(_SEED, None)
            if seed is None:
                self.generator.bit_generator.state = _back(state)
            else:
                _set(self.generator.bit_generator, _back(state), _seed_back(seed))
        elif isinstance(self.generator, numpy.random.RandomState):
            self.generator.set_state(_back(state))
        else:
            self.generator.setstate(_tuples(state))
