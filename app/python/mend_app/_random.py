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


class Generator:
    """One generator and the memory that holds its state at a checkpoint."""

    def __init__(self, name, generator):
        self.name = name
        self.generator = generator
        self.memory = numpy.zeros(ROOM, dtype=numpy.uint8)
        if not isinstance(generator, (numpy.random.Generator, numpy.random.RandomState, random.Random)):
            raise TypeError(f"{name}: numpy.random.Generator, numpy.random.RandomState or random.Random is needed")
        self.store()

    def store(self):
        """Brings the memory up to date."""
        if isinstance(self.generator, numpy.random.Generator):
            state = self.generator.bit_generator.state
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
            self.generator.bit_generator.state = _back(state)
        elif isinstance(self.generator, numpy.random.RandomState):
            self.generator.set_state(_back(state))
        else:
            self.generator.setstate(_tuples(state))
