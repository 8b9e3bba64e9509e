"""`mend timeline` draws what happened to a job: as text, SVG, JSON and a trace for ui.perfetto.dev."""

import json
import os
import unittest
import xml.etree.ElementTree

from cases import Rewrites
from cluster import Lab

SLICE_BEGIN, SLICE_END, INSTANT = 1, 2, 3
SVG = "{http://www.w3.org/2000/svg}"


def varint(data, at):
    """A number and where it ends."""
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return value, at


def message(data):
    """The fields of a message of protobuf: lists of values by number, what has a length as bytes."""
    fields, at = {}, 0
    while at < len(data):
        key, at = varint(data, at)
        match key & 7:
            case 0:
                value, at = varint(data, at)
            case 1:
                value, at = int.from_bytes(data[at:at + 8], "little"), at + 8
            case 2:
                length, at = varint(data, at)
                if at + length > len(data):
                    raise ValueError("a field is longer than its message")
                value, at = data[at:at + length], at + length
            case other:
                raise ValueError(f"wire type {other}")
        fields.setdefault(key >> 3, []).append(value)
    return fields


class Trace:
    """What a trace shows: slices as (process, thread, name, begin, end), and the slices of each flow."""

    def __init__(self, data):
        self.slices, self.flows, self.processes = [], {}, {}
        threads, opened = {}, {}
        for packet in map(message, message(data)[1]):
            if packet[10] != [1]:
                raise ValueError("a packet of another sequence")
            if 60 in packet:
                track = message(packet[60][0])
                if 3 in track:
                    process = message(track[3][0])
                    self.processes[process[1][0]] = process[6][0].decode()
                else:
                    thread = message(track[4][0])
                    threads[track[1][0]] = (self.processes[thread[1][0]], thread[5][0].decode())
                continue
            event, at = message(packet[11][0]), packet[8][0]
            stack = opened.setdefault(event[11][0], [])
            if event[9] == [SLICE_BEGIN]:
                stack.append((event[23][0].decode(), at, event.get(47, [])))
            elif event[9] == [SLICE_END]:
                name, begin, flows = stack.pop()
                self.slices.append((*threads[event[11][0]], name, begin, at))
                for flow in flows:
                    self.flows.setdefault(flow, []).append(self.slices[-1])
            elif event[9] != [INSTANT]:
                raise ValueError(f"an event of type {event[9]}")
        if any(opened.values()):
            raise ValueError("a slice has no end")

    def names(self, process, thread):
        return {name for its, of, name, _, _ in self.slices if (its, of) == (process, thread)}


class OfAJob(Rewrites):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.lab = cls.enterClassContext(Lab(2))

    def timeline(self, *arguments):
        """What it prints, as bytes."""
        done = self.lab.mend("timeline", *arguments)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def trace(self, name):
        path = os.path.join(self.directory, "job.pftrace")
        self.timeline(name, "--output", path)
        with open(path, "rb") as file:
            return Trace(file.read())

    def test_a_checkpoint_and_a_live_move_in_every_format(self):
        job, name = self.rewrite(("-n", "2", "--hosts", "node1,node2"), footprint=64, dirty=2)
        self.lab.verb("checkpoint", name)
        while_it_runs = json.loads(self.timeline(name, "--json"))
        self.assertTrue(while_it_runs["running"])
        self.lab.verb("migrate", name, "1", "--to", "node1", "--mode", "live")
        # It moved while it ran: what it does on both nodes is there before the job ends.
        self.assertIn("running", self.trace(name).names("node1", "rank 1"))
        self.ends_well(job)

        found = json.loads(self.timeline(name, "--json"))
        self.assertEqual((found["job"], found["running"], found["ranks"], found["nodes"]), (name, False, 2, ["node1", "node2"]))
        self.assertEqual([one["operation"] for one in found["operations"]], ["start", "checkpoint", "migration"])
        self.assertEqual({one["outcome"] for one in found["operations"]}, {"done"})
        moved = found["operations"][2]
        self.assertEqual((moved["rank"], moved["from"], moved["to"], moved["live"]), (1, "node2", "node1", True))
        self.assertTrue(moved["rounds"])
        # The rank's channels may be there before its image is: then nobody waits for them.
        phases = [step["phase"] for step in moved["phases"] if step["phase"] not in ("read", "rebuild", "connect")]
        self.assertEqual(phases, ["inspect", "compare", "precopy", "suspend", "move", "resume"])
        [track] = [one for one in found["tracks"] if one["ranks"] == [[1, 1]]]
        done = [(span["node"], span["activity"]) for span in track["spans"]]
        self.assertEqual(done, [
            ("node2", "starting"), ("node2", "running"), ("node2", "checkpoint"), ("node2", "running"), ("node2", "copying"),
            ("node2", "moving"), ("node1", "moving"), ("node1", "running")])
        for before, after in zip(track["spans"], track["spans"][1:]):
            self.assertEqual(before["end"], after["begin"])

        text = self.timeline(name)
        self.assertLessEqual(max(map(len, text.splitlines()[3:])), 100)
        for part in (name, "rank 0", "rank 1", "▓", "checkpoint 1 ", "move of rank 1 from node2 to node1, live", "precopy", "all ranks ended well"):
            self.assertIn(part, text)

        drawing = xml.etree.ElementTree.fromstring(self.timeline(name, "--format", "svg"))
        self.assertEqual(drawing.tag, f"{SVG}svg")
        words = [element.text for element in drawing.iter(f"{SVG}text")]
        for part in ("node1", "node2", "rank 0", "rank 1"):
            self.assertIn(part, words)
        told = [element.text for element in drawing.iter(f"{SVG}title")]
        self.assertTrue(any(one.startswith("rank 1 on node2: running, being copied") for one in told), told)

        trace = self.trace(name)
        self.assertEqual(set(trace.processes.values()) & {"node1", "node2"}, {"node1", "node2"})
        self.assertLessEqual({"running", "running, being copied", "stopped to move", "suspend", "move"}, trace.names("node2", "rank 1"))
        self.assertLessEqual({"running", "stopped to move"}, trace.names("node1", "rank 1"))
        [[source, target]] = trace.flows.values()
        self.assertEqual((source[:3], target[:3]), (("node2", "rank 1", "stopped to move"), ("node1", "rank 1", "stopped to move")))
        self.assertLessEqual(source[4], target[3])


if __name__ == "__main__":
    unittest.main()
