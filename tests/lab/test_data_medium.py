"""`mend data` on media that fail: a file system on a device whose end is gone gives EIO. That takes root and a loop device."""

import os
import subprocess
import unittest

from cases import MIB
from test_data import DAMAGED, UNREACHABLE, Data

# Inodes with room for the attribute.
EXT4 = ["mkfs.ext4", "-q", "-F", "-b", "4096", "-I", "1024", "-O", "^has_journal", "-E", "packed_meta_blocks=1,lazy_itable_init=0"]


class Medium(Data):
    def system(self, *command):
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def mount(self, *command):
        self.system("mount", *command)
        self.addCleanup(subprocess.run, ["umount", command[-1]], check=False)

    def mounted(self):
        """An ext4 on a loop device, mounted once: the namespaces of other labs keep copies of a mount. Its image and its place."""
        if os.geteuid() != 0:
            self.skipTest("a file system on a loop device: only root can set up one")
        disk, place = os.path.join(self.directory, "disk"), os.path.join(self.directory, "mnt")
        with open(disk, "wb") as file:
            file.truncate(64 * MIB)
        os.mkdir(place)
        try:
            self.system(*EXT4, disk)
            device = self.system("losetup", "--find", "--show", disk)
        except (OSError, subprocess.CalledProcessError) as error:
            self.skipTest(f"a file system on a loop device: {error}")
        self.addCleanup(subprocess.run, ["losetup", "-d", device], check=False)
        self.mount(device, place)
        return disk, place

    def test_lost_blocks_are_overwritten_in_place(self):
        self.content = self.random.randbytes(30 * MIB + 4321)
        self.write("source.dat", self.content)
        disk, place = self.mounted()
        self.path = os.path.join(place, "in.dat")
        self.data("stage", "file://" + self.source, self.path)
        inode = os.stat(self.path).st_ino
        with open(self.path, "rb") as file:
            os.fsync(file)
            # Metadata is packed at the front: what is lost are blocks of the file, its last one among them. A write brings them back.
            os.truncate(disk, 20 * MIB)
            # The file system stays mounted: the namespaces of other labs have a copy of its mount, with which it can't be mounted anew.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with self.assertRaises(OSError):
            self.read()
        # The file is staged in parallel, and where the system then writes its parts is its own business: what is lost may be several ranges.
        self.assertEqual({kind for _, kind in self.found()}, {"unreadable"})
        done = self.data("repair", self.path)
        self.assertIn("repaired", done.stdout)
        self.assertEqual((self.read(), os.stat(self.path).st_ino), (self.content, inode))
        self.assertEqual(self.found(code=0), [])

    def test_a_stranger_s_companion_is_not_believed(self):
        if os.geteuid() != 0:
            self.skipTest("another user's file: only root can make one")
        os.chmod(self.directory, 0o777)
        self.write("in put.dat", self.content)
        self.data("sources", self.path, "--add", "file://" + self.source)
        record = os.getxattr(self.path, "user.mend.source")
        os.removexattr(self.path, "user.mend.source")
        beside = self.write(".in put.dat.mend-source", record)
        self.assertEqual(self.found(code=0), [])
        os.chown(beside, 12345, 12345)
        done = self.data("check", self.path, code=1)
        self.assertIn("it is user 12345's, who does not own the file", done.stderr)
        # Nor are another user's references to credentials followed.
        os.chown(self.path, 12345, 12345)
        self.data("sources", self.path, "--add", "file://" + self.source, "--credentials", "env:MEND_TEST")
        os.truncate(self.path, 5)
        done = self.data("repair", self.path, code=UNREACHABLE)
        self.assertIn("another user wrote that its credentials are in env:MEND_TEST", done.stderr)

    def test_no_room(self):
        _, place = self.mounted()
        self.content = self.random.randbytes(80 * MIB)
        self.write("source.dat", self.content)
        self.path = os.path.join(place, "in.dat")
        done = self.data("stage", "file://" + self.source, self.path, code=1)
        self.assertIn("No space left on device", done.stderr)
        self.assertIn("make room there", done.stderr)
        self.assertFalse(os.path.exists(self.path))

    def test_a_file_system_without_attributes(self):
        if os.geteuid() != 0:
            self.skipTest("a file system without attributes: only root can mount one")
        place = os.path.join(self.directory, "mnt")
        os.mkdir(place)
        self.mount("-t", "ramfs", "ramfs", place)
        self.path = os.path.join(place, "in.dat")
        self.data("stage", "file://" + self.source, self.path)
        self.assertEqual(sorted(os.listdir(place)), [".in.dat.mend-source", "in.dat"])
        self.spoil(3 * MIB)
        self.data("check", place, code=DAMAGED)
        self.data("repair", place)
        self.assertEqual(self.read(), self.content)
        self.data("mv", self.path, os.path.join(place, "other.dat"))
        self.assertIn("1 whole", self.data("check", place).stdout)


# Its tests are run where they stand.
del Data

if __name__ == "__main__":
    unittest.main()
