"""What whoever started a job hears of its controller's successor, or that there can be none."""

import os
import signal
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cluster import MEND
from test_failover import Failover


class Succeeded(Failover):
    def test_a_job_whose_directory_no_node_has_says_what_follows(self):
        script = """
            mkdir -p "$MEND_HOME/jobs" && mount -t tmpfs none "$MEND_HOME/jobs" || exit; "$1" run --hosts node1 -- sleep 1000 2> said &
            until grep -s "the job ends if this process is lost" said; do sleep 0.1; done
            kill -KILL $!; wait $!; echo "run $?"; "$1" wait; echo "wait $?"
        """
        unshare = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
        done = self.lab.on("head", "sh", "-c", 'cd "$0"; exec "$@"', self.directory, *unshare, "sh", "-c", script, "sh", MEND)
        self.assertIn("and `mend wait` with exit code 70: no node has", done.stdout, done.stderr)
        self.assertIn("run 137\n", done.stdout, done.stderr)
        self.assertIn("wait 70\n", done.stdout, done.stderr)

    def test_who_started_it_ends_as_if_it_had_been_killed(self):
        """Not with a code that the job may have: the job goes on."""
        job, name = self.start(2, "node1,node2")
        self.kill_controller(name, signal.SIGSTOP)
        self.taken_over(name)
        # `mend lab exec` has stopped as well, and has it go on.
        job.process.send_signal(signal.SIGCONT)
        job.finish(137)
        self.assertIn("another controller has taken", job.stderr())
        self.runs_to_its_end(job, name, 2)


if __name__ == "__main__":
    unittest.main()
