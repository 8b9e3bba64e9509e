"""A node's health: what it measures is shown, ranks leave it before it dies, and it takes none until it is well again."""

import json
import os
import shutil
import subprocess
import time
import unittest

from cases import Rewrites
from cluster import MEND, PATIENCE, ROOT, VENV, Failed, Lab

# Fast, and only what a test makes sick.
QUICK = {
    "MEND_HEALTH": "on",
    "MEND_HEALTH_INTERVAL_MS": "200",
    "MEND_HEALTH_PLUGIN_INTERVAL_MS": "200",
    "MEND_HEALTH_PLUGIN_TIMEOUT_MS": "3000",
    "MEND_HEALTH_CALM_S": "1",
    "MEND_HEALTH_HORIZON_S": "0",
    "MEND_HEALTH_MARKS": "memory=off,disk=off",
    "MEND_HEALTH_SMARTCTL": "off",
    "MEND_BMC": "off",
}

# A plug-in that says what a file named after the node says: an exit code, and a line.
FOLLOWS = """#!/bin/sh
read -r code line < "DIRECTORY/$(hostname).state" 2>/dev/null || exit 0
echo "$line"
exit "$code"
"""


class Health(Rewrites):
    """Each test has a lab of its own, whose daemons have the settings of the test."""

    def start_lab(self, nodes, **settings):
        self.plugins = os.path.join(self.directory, "plugins")
        os.mkdir(self.plugins, 0o755)
        self.plugin("follows", FOLLOWS.replace("DIRECTORY", self.directory))
        settings = {**QUICK, "MEND_HEALTH_PLUGINS": self.plugins, **settings}
        self.lab = self.enterContext(Lab(nodes, daemons=settings))

    def plugin(self, name, text, mode=0o755):
        path = os.path.join(self.plugins, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, mode)
        return path

    def say(self, node, code, line):
        """The plug-in of a node says this from now on."""
        path = os.path.join(self.directory, f"{node}.state")
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.write(f"{code} {line}\n")
        os.rename(path + ".new", path)

    def until(self, condition, what):
        start = time.monotonic()
        while not (found := condition()):
            if time.monotonic() - start > PATIENCE:
                raise Failed(f"still waiting after {PATIENCE} s for {what}")
            time.sleep(0.05)
        return found

    def health(self, node):
        return json.loads(self.lab.mend("health", node, "--json").stdout)[0]

    def states(self):
        return {node["node"]: node["state"] for node in self.lab.verb("node", "ls")}

    def events(self, name, kind):
        """Events of this kind in a job's journal."""
        return [entry for entry in self.lab.verb("log", name) if entry["event"] == kind]

    def left(self, name, node):
        self.until(lambda: node not in self.lab.places(name), f"ranks leave {node}")

    def test_ranks_leave_a_sick_node_live_and_it_takes_none_until_it_is_well(self):
        self.start_lab(3)
        job, name = self.rewrite(("-n", "4", "--hosts", "node1,node2", "--spares", "node3"), "-x", footprint=16, dirty=1)
        self.assertEqual(self.states(), {"node1": "up", "node2": "up", "node3": "up"})
        self.say("node2", 1, "a fan stands still")
        self.left(name, "node2")
        why = self.events(name, "node_unfit")[0]
        self.assertEqual((why["node"], why["data"]["by"], why["data"]["mode"], why["data"]["ranks"]), ("node2", "health", "live", [[2, 3]]))
        self.assertIn("a fan stands still", why["data"]["why"])
        self.assertEqual({event["data"]["by"] for event in self.events(name, "migration_asked")}, {"health"})
        self.assertTrue(all(event["data"]["precopied"] for event in self.events(name, "migration_committed")))
        self.assertIn("is sick: plugin:follows: a fan stands still", self.lab.mend("log", name).stdout)
        self.assertIn("node node2 is sick", job.stderr())
        self.assertEqual(self.states()["node2"], "sick")
        # Nothing goes there, by name or by choice.
        refused = self.lab.mend("migrate", name, "0", "--to", "node2")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("node node2 takes no ranks", refused.stderr)
        self.lab.verb("migrate", name, "0")
        self.assertNotIn("node2", self.lab.places(name))
        said = self.lab.mend("run", "-n", "1", "--hosts", "node1", "--spares", "node2", "--", "true", cwd=self.directory)
        self.assertIn("left out: node node2, which is sick", said.stderr)
        self.say("node2", 0, "it turns again")
        self.until(lambda: self.events(name, "node_fit"), "node2 is well again")
        self.lab.verb("migrate", name, "0", "--to", "node2")
        self.ends_well(job)

    def test_past_a_high_mark_ranks_leave_frozen_and_a_node_that_dies_then_costs_nothing(self):
        self.start_lab(3)
        job, name = self.rewrite(("-n", "2", "--hosts", "node1,node2", "--spares", "node3"), "-x", footprint=16, dirty=1)
        self.say("node2", 2, "the processor burns")
        warned = time.monotonic()
        self.left(name, "node2")
        time.sleep(max(0, warned + 5 - time.monotonic()))
        self.lab.kill("node2")
        self.assertEqual(self.events(name, "node_unfit")[0]["data"]["mode"], "frozen")
        self.assertEqual([event["data"]["precopied"] for event in self.events(name, "migration_committed")], [None])
        self.ends_well(job)
        self.assertEqual(self.events(name, "goes_on"), [])
        lost = self.events(name, "node_lost")
        self.assertTrue(all(event["data"]["ranks"] == [] for event in lost), lost)

    def test_without_another_node_ranks_run_on_and_a_drained_one_is_none(self):
        self.start_lab(2)
        job, name = self.rewrite(("-n", "2", "--hosts", "node1", "--spares", "node2"), "-x", footprint=4, dirty=1)
        self.lab.verb("drain", "node2")
        self.say("node1", 1, "it hums")
        stays = self.until(lambda: self.events(name, "nowhere_to_go"), "that there is nowhere to go")
        self.assertEqual((stays[0]["node"], stays[0]["data"]["ranks"]), ("node1", [[0, 1]]))
        self.assertIn("no other node that takes ranks", job.stderr())
        self.assertEqual(self.lab.places(name), ["node1", "node1"])
        self.assertEqual(self.states(), {"node1": "sick", "node2": "drained"})
        self.assertEqual(self.lab.verb("drain"), ["node2"])
        # They go as soon as there is a node, and nobody says it again.
        self.lab.verb("undrain", "node2")
        self.left(name, "node1")
        self.ends_well(job)
        self.assertEqual(len(self.events(name, "nowhere_to_go")), 1)

    def test_plug_ins_that_hang_or_could_be_changed_are_named_and_run_as_the_daemon_s_user(self):
        self.start_lab(1)
        self.plugin("hangs", "#!/bin/sh\necho before\nsleep 600\n")
        self.plugin("open", "#!/bin/sh\nexit 2\n", 0o777)
        self.plugin("whoami", "#!/bin/sh\necho \"$(id -u)\"\nexit 1\n")
        self.plugin("json", "#!/bin/sh\necho '{\"sensors\": [{\"name\": \"inlet\", \"value\": 31.5, \"unit\": \"°C\", \"low\": 40, \"high\": 50}]}'\n")
        self.plugin("not-executable", "exit 2\n", 0o644)

        def failures():
            found = self.health("node1")
            named = {one["source"]: one["error"] for one in found["unread"] if one["failed"]}
            return found, named if {"plugin:hangs", "plugin:open"} <= set(named) else None

        found, named = self.until(lambda: (lambda both: both if both[1] else None)(failures()), "what failed is named")
        self.assertIn("took longer than 3000 ms and was killed", named["plugin:hangs"])
        self.assertIn("may be written by others", named["plugin:open"])
        self.assertIn(os.path.join(self.plugins, "open"), named["plugin:open"])
        sensors = {sensor["sensor"]: sensor for sensor in found["sensors"]}
        self.assertEqual((sensors["plugin:json/inlet"]["value"], sensors["plugin:json/inlet"]["low"]), (31.5, 40.0))
        self.assertIn(f"plugin:whoami: {os.getuid()}", found["why"])
        self.assertNotIn("plugin:not-executable", sensors)
        self.assertEqual(found["state"], "sick")
        os.remove(os.path.join(self.plugins, "open"))
        self.until(lambda: all(one["source"] != "plugin:open" for one in self.health("node1")["unread"]), "nothing is said of one that is gone")
        os.chmod(self.plugins, 0o777)
        self.until(lambda: any(one["source"].startswith("plugins:") for one in self.health("node1")["unread"]), "the directory is refused")

    def test_a_filling_disk_and_memory_pressure_are_noticed_by_their_marks(self):
        root = os.path.join(self.work, "root")
        os.makedirs(os.path.join(root, "proc", "pressure"), exist_ok=True)

        def press(share):
            path = os.path.join(root, "proc", "pressure", "memory")
            with open(path + ".new", "w", encoding="ascii") as file:
                file.write(f"some avg10=1.00 avg60=0.00 avg300=0.00 total=0\nfull avg10={share:.2f} avg60=0.00 avg300=0.00 total=0\n")
            os.rename(path + ".new", path)

        press(1)
        self.start_lab(1, MEND_HEALTH_ROOT=root, MEND_HEALTH_MARKS="memory=20/60,disk=0.001/100.5", MEND_HEALTH_DISKS=self.work)
        found = self.until(lambda: (lambda one: one if one["state"] == "sick" else None)(self.health("node1")), "the disk is past its low mark")
        self.assertIn(f"disk:{self.work} is ", found["why"])
        self.assertEqual(found["grade"], "low")
        press(70)
        found = self.until(lambda: (lambda one: one if one["grade"] == "high" else None)(self.health("node1")), "the pressure is past its high mark")
        self.assertIn("memory:pressure is 70%, high mark 60", found["why"])
        press(1)
        self.until(lambda: self.health("node1")["grade"] == "low", "the pressure is gone")
        shown = self.lab.mend("health", "node1")
        self.assertEqual(shown.returncode, 1)
        self.assertIn("memory:pressure", shown.stdout)

    def test_a_predictor_says_when_and_one_that_fails_is_named(self):
        predictor = os.path.join(self.directory, "predictor")
        with open(predictor, "w", encoding="utf-8") as file:
            file.write(
                "#!/usr/bin/env python3\nimport json, sys\nasked = json.load(sys.stdin)\n"
                "assert asked['low'] == 0.001 and asked['history'][-1][1] > 0, asked\nprint(777)\n"
            )
        os.chmod(predictor, 0o755)
        self.start_lab(1, MEND_HEALTH_MARKS="memory=off,disk=0.001/100.5", MEND_HEALTH_DISKS=self.work, MEND_HEALTH_PREDICTOR=predictor)
        found = self.until(lambda: (lambda one: one if one["left_s"] else None)(self.health("node1")), "the predictor's time")
        self.assertTrue(700 < found["left_s"] <= 777, found["left_s"])
        with open(predictor, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\necho soon\n")
        self.until(lambda: any("`soon`" in one["error"] for one in self.health("node1")["unread"]), "the predictor is named")

    def test_a_real_bmc_warns_over_ipmi(self):
        missing = [program for program in ("ipmi_sim", "ipmitool") if not shutil.which(program)]
        if missing:
            os.write(2, f"skipped: a BMC over IPMI: {', '.join(missing)} is not installed (tests/setup.sh installs it as root)\n".encode())
            return
        password = self.key_file("password", "secret")
        self.start_lab(
            3, MEND_BMC="127.0.0.1:9623", MEND_BMC_USER="mend", MEND_BMC_PASSWORD_FILE=password, MEND_BMC_INTERVAL_MS="200"
        )
        bmc = Bmc(self, "node2")
        job, name = self.rewrite(("-n", "2", "--hosts", "node1,node2", "--spares", "node3"), "-x", footprint=16, dirty=1)
        cpu = self.until(lambda: next((one for one in self.health("node2").get("sensors", []) if one["sensor"] == "bmc:CPU Temp"), None), "its sensors")
        self.assertEqual((cpu["value"], cpu["unit"], cpu["low"], cpu["high"]), (50.0, "°C", 85.0, 95.0))
        fan = next(one for one in self.health("node2")["sensors"] if one["sensor"] == "bmc:FAN 1")
        self.assertEqual((fan["low"], fan["high"]), (1000.0, 800.0))
        # The others' BMC does not answer; that makes nobody sick.
        self.until(lambda: any(one["source"] == "bmc" and one["failed"] for one in self.health("node1")["unread"]), "a BMC that is silent is named")
        self.assertEqual(self.health("node1")["state"], "up")
        bmc.set("temperature", 90)
        self.left(name, "node2")
        why = self.events(name, "node_unfit")[0]["data"]
        self.assertIn("bmc:CPU Temp is 90 °C, low mark 85", why["why"])
        bmc.set("temperature", 50)
        self.until(lambda: self.events(name, "node_fit"), "it has cooled down")
        bmc.end()
        self.ends_well(job)


    def test_the_example_plug_in_reads_redfish(self):
        emulator = shutil.which("sushy-emulator", path=os.pathsep.join([os.path.join(VENV, "bin"), os.environ["PATH"]]))
        if not emulator:
            os.write(2, b"skipped: a BMC over Redfish: sushy-emulator is not installed (pip install sushy-tools)\n")
            return
        self.start_lab(1, MEND_REDFISH="http://127.0.0.1:8765")
        shutil.copy(os.path.join(ROOT, "docs", "examples", "redfish"), self.plugins)
        self.until(lambda: any(one["source"] == "plugin:redfish" for one in self.health("node1")["unread"]), "nobody answers yet, and that is named")
        command = [MEND, "lab", "exec", "--name", self.lab.name, "node1", "--", emulator, "--fake", "-i", "127.0.0.1", "-p", "8765"]
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, env=self.lab.environment, cwd=self.directory)
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)

        def cpu():
            return next((one for one in self.health("node1")["sensors"] if one["sensor"] == "plugin:redfish/CPU Temp"), None)

        found = self.until(cpu, "its sensors")
        self.assertEqual((found["unit"], found["low"], found["high"]), ("°C", 42.0, 45.0))
        self.assertEqual([one for one in self.health("node1")["unread"] if one["source"] == "plugin:redfish"], [])


class Bmc:
    """OpenIPMI's simulator of a BMC, on a node, with a temperature and a fan whose values are in files."""

    LAN = """name "bmc"
set_working_mc 0x20
  startlan 1
    addr 127.0.0.1 9623
    priv_limit admin
    allowed_auths_callback none md2 md5 straight
    allowed_auths_user none md2 md5 straight
    allowed_auths_operator none md2 md5 straight
    allowed_auths_admin none md2 md5 straight
    guid a123456789abcdefa123456789abcdef
  endlan
  user 2 true "mend" "secret" admin 10 none md2 md5 straight
"""
    # IPMI 2.0, table 43-1: full sensor records. CPU: non-critical at 85, critical at 95 °C. Fan: times 100; 1000, 800, 500 RPM.
    COMMANDS = """mc_setbmc 0x20
mc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02
sel_enable 0x20 1000 0x0a
sensor_add 0x20 0 1 1 1 poll 100 file "DIRECTORY/temperature"
main_sdr_add 0x20 00 00 0x51 0x01 0x33 0x20 00 0x01 0x03 0x01 0x67 0x88 0x01 0x01 0xc0 0x0f 0xc0 0x7f 0x38 0x38 00 0x01 00 00 0x01 00 00 00 00 00 0x03 0x60 0xb0 00 0xb0 00 0x69 0x5f 0x55 00 00 00 00 00 00 00 00 0xc8 'C 'P 'U 0x20 'T 'e 'm 'p
sensor_set_threshold 0x20 0 1 settable 111000 0x69 0x5f 0x55 00 00 00
sensor_set_event_support 0x20 0 1 enable scanning per-state 000111111000000 000111111000000 000111111000000 000111111000000
sensor_add 0x20 0 2 4 1 poll 100 file "DIRECTORY/fan"
main_sdr_add 0x20 00 00 0x51 0x01 0x30 0x20 00 0x02 0x1d 0x01 0x67 0x88 0x04 0x01 0x00 0x70 0x00 0x70 0x07 0x07 00 0x12 00 00 0x64 00 00 00 00 00 0x03 0x60 0xb0 00 0xb0 00 00 00 00 0x05 0x08 0x0a 00 00 00 00 00 0xc5 'F 'A 'N 0x20 '1
sensor_set_threshold 0x20 0 2 settable 000111 00 00 00 0x05 0x08 0x0a
sensor_set_event_support 0x20 0 2 enable scanning per-state 000000000111111 000000000111111 000000000111111 000000000111111
mc_enable 0x20
"""

    def __init__(self, test, node):
        self.directory = os.path.join(test.directory, f"bmc-{node}")
        os.makedirs(os.path.join(self.directory, "state"))
        self.set("temperature", 50)
        self.set("fan", 80)
        for name, text in (("lan.conf", self.LAN), ("commands", self.COMMANDS.replace("DIRECTORY", self.directory))):
            with open(os.path.join(self.directory, name), "w", encoding="ascii") as file:
                file.write(text)
        files = ["-c", f"{self.directory}/lan.conf", "-f", f"{self.directory}/commands", "-s", f"{self.directory}/state"]
        command = [MEND, "lab", "exec", "--name", test.lab.name, node, "--", "ipmi_sim", "-n", *files]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, env=test.lab.environment)
        test.addCleanup(self.end)

    def set(self, name, value):
        path = os.path.join(self.directory, name)
        with open(path + ".new", "w", encoding="ascii") as file:
            file.write(hex(value))
        os.rename(path + ".new", path)

    def end(self):
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait()


if __name__ == "__main__":
    unittest.main()
