"""Portable checkpoints in object storage, behind the program."""

import os
import unittest
import unittest.mock

from on_nodes import InLab


class Stored(InLab):
    """A real S3 server, SeaweedFS, on the lab's head node."""

    def prepare(self):
        from object_store import ObjectStore

        self.store = ObjectStore(self.directory)
        self.addCleanup(self.store.end)
        self.enterContext(unittest.mock.patch.dict(os.environ, self.store.variables))

    def setUp(self):
        super().setUp()
        self.store.start(self.lab)

    def test_lost_nodes_files_come_from_the_store(self):
        job, name = self.begin("memory,s3://lab/portable")
        first = self.take(name)
        job.wait_for(lambda: self.listed(name).get(first) == ["memory", "object"], "the store has the first")
        second = self.take(name)
        job.wait_for(lambda: self.listed(name).get(second) == ["memory", "object"], "the store has the second")
        self.lab.kill("node2")
        job.finish(None)
        said = self.again("memory,s3://lab/portable", "node1,node3", second)
        self.assertNotIn("can't be used", said)

    def test_a_store_that_is_away_holds_nobody_up(self):
        self.store.end()
        job, name = self.begin("memory,s3://lab/portable")
        first = self.take(name)
        job.wait_for(lambda: f"s3://lab/portable does not hold the whole portable checkpoint {first}" in job.stderr(), "it is told")
        self.assertEqual(self.listed(name)[first], ["memory"])
        self.store.start(self.lab)
        second = self.take(name)
        job.wait_for(lambda: self.listed(name).get(second) == ["memory", "object"], "the store has the second")
        self.lab.mend("kill", name)
        job.finish(137)
        # The node's own files serve before those of the store.
        self.again("memory,s3://lab/portable", "node1,node2", second)


if __name__ == "__main__":
    unittest.main()
