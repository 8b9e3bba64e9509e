"""Ranks that start others (`MPI_Comm_spawn`): where they go, what is told of them, and that they are ranks like all."""

import os
import signal
import unittest

from cases import InDirectory
from cluster import Lab, compile_mpi, intel_environment
from test_conformance import ended_in_first_rounds
from test_failover import Failover
from test_healing import Heals

# Spawns what its arguments say (how many, the host, a program and its words), and ends as they do.
STARTER = """
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int count, char **words) {
    MPI_Comm parent, children;
    MPI_Info info;
    int *universe, flag, rank;
    MPI_Init(&count, &words);
    MPI_Comm_get_parent(&parent);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (parent != MPI_COMM_NULL) {
        char host[MPI_MAX_PROCESSOR_NAME], mark;
        int length, code = atoi(words[1]);
        MPI_Get_processor_name(host, &length);
        printf("child %d on %s: %s, input %zd\\n", rank, host, getenv("MEND_TEST_WORD"), read(0, &mark, 1));
        fflush(stdout);
        MPI_Comm_disconnect(&parent);
        if (code == 0) MPI_Finalize();
        exit(code);
    }
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_UNIVERSE_SIZE, &universe, &flag);
    MPI_Info_create(&info);
    if (*words[2]) MPI_Info_set(info, "host", words[2]);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    int done = MPI_Comm_spawn(words[3], words + 4, atoi(words[1]), info, 0, MPI_COMM_WORLD, &children, MPI_ERRCODES_IGNORE);
    if (rank == 0) printf("universe %d, spawned %d\\n", flag ? *universe : -1, done == MPI_SUCCESS), fflush(stdout);
    if (done == MPI_SUCCESS) MPI_Comm_disconnect(&children);
    for (int i = 0; i < 600 && done == MPI_SUCCESS && atoi(words[4]); i++) usleep(100000);
    MPI_Finalize();
    return 0;
}
"""


# Has its process manager start two processes, as MPI_Comm_spawn does, and never accepts their connection.
SILENT = """
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int count, char **words) {
    char port[MPI_MAX_PORT_NAME], text[4096];
    MPI_Init(&count, &words);
    MPI_Open_port(MPI_INFO_NULL, port);
    int length = snprintf(text, sizeof text, "mcmd=spawn\\nnprocs=2\\nexecname=%s\\ntotspawns=1\\nspawnssofar=1\\nargcnt=0\\npreput_num=1\\n"
                          "preput_key_0=PARENT_ROOT_PORT_NAME\\npreput_val_0=%s\\ninfo_num=0\\nendcmd\\n", words[0], port);
    length = write(atoi(getenv("PMI_FD")), text, length) == length ? read(atoi(getenv("PMI_FD")), text, sizeof text - 1) : 0;
    printf("%.*s", length, text), fflush(stdout);
    for (;;) pause();
}
"""


# Spawns a child as soon as there is a file `spawn`; both stay until there is a file `go`. With an argument another child comes first, which ends at once.
LATE = """
#include <mpi.h>
#include <unistd.h>
static void wait_for(const char *file) {
    while (access(file, F_OK)) usleep(10000);
}
int main(int count, char **words) {
    MPI_Comm parent, child;
    MPI_Init(&count, &words);
    MPI_Comm_get_parent(&parent);
    if (parent == MPI_COMM_NULL) {
        char *brief[] = {"brief", NULL};
        wait_for("spawn");
        if (count > 1) {
            MPI_Comm_spawn(words[0], brief, 1, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &child, MPI_ERRCODES_IGNORE);
            MPI_Comm_disconnect(&child);
        }
        MPI_Comm_spawn(words[0], MPI_ARGV_NULL, 1, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &child, MPI_ERRCODES_IGNORE);
    }
    if (parent == MPI_COMM_NULL || count == 1) wait_for("go");
    MPI_Comm_disconnect(parent == MPI_COMM_NULL ? &child : &parent);
    MPI_Finalize();
    return 0;
}
"""


# Spawns a child on the host of its argument, which sends five messages and ends; receives them when there is a file `go`.
LEFT = """
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>
int main(int count, char **words) {
    MPI_Comm parent, child;
    MPI_Info info;
    int number, all = 0;
    MPI_Init(&count, &words);
    MPI_Comm_get_parent(&parent);
    if (parent != MPI_COMM_NULL) {
        for (number = 1; number <= 5; number++) MPI_Send(&number, 1, MPI_INT, 0, 0, parent);
    } else {
        MPI_Info_create(&info);
        MPI_Info_set(info, "host", words[1]);
        MPI_Comm_spawn(words[0], MPI_ARGV_NULL, 1, info, 0, MPI_COMM_WORLD, &child, MPI_ERRCODES_IGNORE);
        while (access("go", F_OK)) usleep(10000);
        for (int i = 0; i < 5; i++) {
            MPI_Recv(&number, 1, MPI_INT, 0, 0, child, MPI_STATUS_IGNORE);
            all = 10 * all + number;
        }
        printf("got %d\\n", all);
    }
    MPI_Finalize();
    return 0;
}
"""


def compiled(directory, name="starter", text=STARTER):
    source = os.path.join(directory, f"{name}.c")
    with open(source, "w", encoding="utf-8") as file:
        file.write(text)
    return compile_mpi(source, os.path.join(directory, name))


class Places(InDirectory):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.lab = cls.enterClassContext(Lab(3))
        cls.starter = compiled(cls.work)

    def spawn(self, ranks, hosts, *words, expected=0):
        """What is printed, sorted."""
        self.lab.set("MEND_TEST_WORD", "heard")
        job = self.lab.start(self.directory, "run", "-n", str(ranks), "--hosts", hosts, "--", self.starter, *words)
        job.finish(expected)
        return sorted(job.stdout().splitlines()), job

    def test_where_there_is_room(self):
        said, _ = self.spawn(2, "node1:2,node2:2,node3:3", "4", "", self.starter, "0")
        self.assertEqual(said[-1], "universe 7, spawned 1")
        self.assertEqual([line.partition(": ")[2] for line in said[:-1]], ["heard, input 0"] * 4)
        self.assertEqual({line.split()[3] for line in said[:-1]}, {"node2:", "node3:"})

    def test_where_the_program_says(self):
        said, _ = self.spawn(1, "node1,node2,node3", "3", "node3,node2", self.starter, "0")
        self.assertEqual([line.split()[1::2][:2] for line in said[:-1]], [["0", "node3:"], ["1", "node2:"], ["2", "node3:"]])
        said, job = self.spawn(2, "node1,node2", "1", "elsewhere", self.starter, "0")
        # Where no host has slots, the size of the universe is not known.
        self.assertIn("universe -1, spawned 0", said)
        self.assertIn("gets an MPI error: elsewhere is not a node of the job\n  hint: `mend ps` lists its nodes", job.stderr())

    def test_a_child_that_fails_ends_the_job_as_any_rank(self):
        said, job = self.spawn(1, "node1,node2", "1", "node2", self.starter, "7", expected=7)
        self.assertEqual(said[0], "child 0 on node2: heard, input 0")
        self.assertIn("rank 1 on node2 exited with code 7", job.stderr())

    def test_children_whose_parent_does_not_accept_them_end(self):
        self.lab.set("MPIR_CVAR_CH4_COMM_CONNECT_TIMEOUT", "2")
        self.addCleanup(self.lab.set, "MPIR_CVAR_CH4_COMM_CONNECT_TIMEOUT", None)
        job = self.lab.start(self.directory, "run", "-n", "1", "--hosts", "node1,node2", "--", compiled(self.work, "silent", SILENT))
        job.finish(None)
        self.assertIn("cmd=spawn_result rc=0", job.stdout())
        self.assertIn("timed out", job.stderr())
        self.assertRegex(job.stderr(), r"rank [12] on node\d exited with code")


class Stays(Heals):
    """Jobs with a world of two that stays."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.program = compile_mpi(os.path.join("conformance", "spawn.c"), os.path.join(cls.work, "spawn"))

    def setUp(self):
        super().setUp()
        self.argv = [self.program, "-u", "go"]

    def started(self, ranks, hosts, *more):
        """Until the first rounds are over, after which nothing more is spawned: there are two children."""
        job, name = self.start(ranks, hosts, *more)
        ended = lambda: sum(rank["ended"] for rank in self.status(name))
        job.wait_for(lambda: ended() == ended_in_first_rounds(ranks), "the first rounds are over")
        return job, name

    def status(self, name):
        return next(job for job in self.lab.verb("ps") if job["id"] == name)["status"]["ranks"]

    def living(self, name):
        return [(rank["rank"], rank["world"], rank["world_rank"]) for rank in self.status(name) if not rank["ended"]]

    def host(self, name, rank):
        return self.status(name)[rank]["host"]

    def ends(self, job, ranks):
        job.let_go()
        job.finish()
        self.assertEqual(job.stdout(), f"spawn: right with {ranks} ranks\n")

    def disturbed(self, ranks):
        """Saved, moved, healed and restarted."""
        job, name = self.started(ranks, "node1,node2", "--spares", "node3,node4")
        self.assertEqual(self.living(name)[ranks:], [(ranks, 1, 0), (ranks + 1, 1, 1)])
        shown = self.lab.mend("ps").stdout
        self.assertIn(f"{ranks}=1.0", shown)
        self.assertNotIn("=2.0", shown)
        self.lab.verb("checkpoint", name)
        for rank in (ranks, 0, ranks + 1):
            to = "node4" if self.host(name, rank) != "node4" else "node3"
            self.lab.verb("migrate", name, str(rank), "--to", to)
        self.lab.verb("checkpoint", name)
        self.lab.kill_daemon(self.host(name, ranks))
        self.again(job, name, 1)
        self.assertEqual(len(self.living(name)), ranks + 2)
        self.lab.verb("checkpoint", name)
        self.assertEqual(self.lab.mend("kill", name).returncode, 0)
        job.finish(137)
        job = self.lab.start(job.directory, "restart", name, "--hosts", "node1")
        self.lab.running(job)
        self.assertEqual({rank["host"] for rank in self.status(name) if not rank["ended"]}, {"node1"})
        self.lab.verb("checkpoint", name)
        self.ends(job, ranks)
        log = [one["event"] for one in self.lab.verb("log", name)]
        self.assertIn("world_spawned", log)
        self.assertIn("spawn_failed", log)


class Worlds(Stays):
    def test_of_one_rank(self):
        self.disturbed(1)

    def test_of_two(self):
        self.disturbed(2)

    def test_of_four(self):
        self.disturbed(4)

    def test_checkpoints_and_moves_while_worlds_come_and_go(self):
        job, name = self.start(2, "node1,node2", "--spares", "node3")
        for _ in range(6):
            self.lab.verb("checkpoint", name)
            # In the middle of a move a peer may end that was to stop for it: then the rank stays, and runs on.
            moved = self.lab.mend("migrate", name, "1")
            self.assertTrue(moved.returncode == 0 or "its agent went away" in moved.stderr or "closed their channels" in moved.stderr, moved.stderr)
            self.assertFalse("closed their channels" in moved.stderr and "TIMEOUT" in moved.stderr, moved.stderr)
        self.assertTrue(self.lab.kill_rank(self.host(name, 0), 0, signal.SIGKILL))
        self.again(job, name, 1)
        self.lab.verb("checkpoint", name)
        self.ends(job, 2)

    def test_images_in_the_memory_of_partners(self):
        job, name = self.started(2, "node1,node2,node3", "--tiers", "memory,partner")
        self.lab.verb("checkpoint", name)
        job.wait_for(lambda: self.lab.verb("checkpoints", name)[-1]["tiers"] == ["memory", "partner"], "partners have their copies")
        self.lab.kill_daemon(self.host(name, 2))
        self.again(job, name, 1)
        self.ends(job, 2)


class Late(Heals):
    def ranks(self, name):
        return next(one for one in self.lab.verb("ps") if one["id"] == name)["status"]["ranks"]

    def spawns(self):
        with open(os.path.join(self.directory, "spawn"), "w", encoding="utf-8"):
            pass

    def test_images_behind_the_place_of_one_that_has_ended_are_copied(self):
        self.argv = [compiled(self.work, "late", LATE), "brief"]
        self.spawns()
        job, name = self.start(2, "node1,node2,node3", "--spares", "node4", "--tiers", "memory,partner")
        job.wait_for(lambda: [bool(rank["ended"]) for rank in self.ranks(name)] == [False, False, True, False], "one child has ended, another one runs")
        for _ in range(3):
            self.lab.verb("checkpoint", name)
            job.wait_for(lambda: self.lab.verb("checkpoints", name)[-1]["tiers"] == ["memory", "partner"], "partners have their copies")
        self.lab.kill_daemon(self.ranks(name)[3]["host"])
        self.again(job, name, 1)
        job.let_go()
        job.finish()

    def test_a_child_of_after_the_checkpoint_makes_room_for_the_next_one(self):
        self.argv = [compiled(self.work, "late", LATE)]
        job, name = self.start(2, "node1")
        self.lab.verb("checkpoint", name)
        self.spawns()
        states = lambda: [rank["state"] for rank in self.ranks(name)]
        job.wait_for(lambda: states() == ["running"] * 3, "the child runs")
        # The child, which is of no checkpoint, has stood still; the next one is rank 2, too, and has its process id.
        self.assertTrue(self.lab.kill_rank("node1", 1, signal.SIGKILL))
        self.again(job, name, 1)
        job.wait_for(lambda: states() == ["running"] * 3, "another child runs")
        job.let_go()
        job.finish()
        self.assertNotIn("MPI error", job.stderr())

    def moves_along(self, host):
        self.argv = [compiled(self.work, "left", LEFT), host]
        job, name = self.start(1, "node1,node2", "--spares", "node3")
        job.wait_for(lambda: [bool(rank["ended"]) for rank in self.ranks(name)] == [False, True], "the child has ended")
        self.lab.verb("migrate", name, "0", "--to", "node3")
        job.let_go()
        job.finish()
        self.assertEqual(job.stdout(), "got 12345\n")

    def test_what_a_child_sent_before_it_ended_moves_along(self):
        self.moves_along("node1")

    def test_what_a_child_elsewhere_sent_before_it_ended_moves_along(self):
        self.moves_along("node2")


class Intel(Stays):
    def setUp(self):
        super().setUp()
        self.lab.environment |= intel_environment()

    def test_of_two(self):
        self.disturbed(2)


class Lost(Failover, Stays):
    def test_its_controller(self):
        job, name = self.started(2, "node1,node2", "--spares", "node3")
        for times in (1, 2):
            self.kill_controller(name)
            self.taken_over(name, times)
            self.assertEqual(len(self.living(name)), 4)
            self.lab.verb("checkpoint", name)
        job.finish(128 + signal.SIGKILL)
        self.lab.verb("migrate", name, "3", "--to", "node1" if self.host(name, 3) != "node1" else "node2")
        self.touch("go")
        waited = self.lab.mend("wait", name)
        self.assertEqual(waited.returncode, 0, waited.stderr)
        self.assertEqual(job.stdout() + self.logs(name).stdout, "spawn: right with 2 ranks\n")


if __name__ == "__main__":
    unittest.main()
