#!/usr/bin/env python3
"""Runs a command on another kernel: in a virtual machine, as root there, on this machine's own files.

    vm.py [--kernel PACKAGE] [--memory MIB] [--cpus N] [--minutes N] [--append WORDS] [--package NAME]... COMMAND [ARGUMENT...]

The guest sees all files of this machine that the user who runs this can read. What it writes stays in its memory and is gone with
it. Files of packages that are named are there, too, though they are not installed here. It has a loopback network, the working directory and PATH of the caller, and variables that begin with MEND_. MEND_VM_EMULATED says
that all is emulated. The exit code is the command's; 125 if there can be no virtual machine, or it died.

Needs qemu-system-x86_64 (Debian: qemu-system-x86), apt-get and dpkg-deb to fetch a kernel, and a user who may use /dev/kvm;
without the last all is emulated, several times slower. Root is not needed.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile

from kernel import PACKAGE, ROOT, Kernel, NotHere, unpacked

QEMU = "qemu-system-x86_64"
COULD_NOT = 125


def hardware():
    """None if guests can run on this machine's processor itself, else why not."""
    if not os.path.exists("/dev/kvm"):
        return "there is no /dev/kvm"
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "this user may not use /dev/kvm (group kvm)"
    # Without either, /dev/kvm runs kernels alone that know of it.
    if not any(os.path.isdir(f"/sys/module/{name}") for name in ("kvm_intel", "kvm_amd")):
        return "/dev/kvm is neither kvm_intel nor kvm_amd"
    return None


def possible():
    """None if there can be virtual machines, else why not."""
    if os.uname().machine != "x86_64":
        return f"guests are x86_64, this machine is {os.uname().machine}"
    missing = [name for name in (QEMU, "apt-get", "apt-cache", "dpkg-deb") if not shutil.which(name)]
    if missing:
        return f"no {', no '.join(missing)}" + (" (as root: apt-get install qemu-system-x86)" if QEMU in missing else "")
    return None


class Died(Exception):
    """The guest ended without a word about its command."""


class Guest:
    """A virtual machine as it will be started, for one command each time."""

    def __init__(self, kernel, memory=4096, cpus=None, append="", packages=()):
        self.kernel, self.memory, self.append = kernel, memory, append
        self.packages = [unpacked(name) for name in packages]
        self.cpus = cpus or os.cpu_count()
        self.emulated = hardware()

    def options(self, control):
        """Of the emulator."""
        processor = ["-accel", "tcg,thread=multi", "-cpu", "max"] if self.emulated else ["-accel", "kvm", "-cpu", "host"]
        shared = "local,security_model=none,multidevs=remap"
        return [
            *processor, "-smp", str(self.cpus), "-m", str(self.memory),
            "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
            "-kernel", self.kernel.image, "-initrd", os.path.join(control, "initramfs"),
            "-append", f"console=ttyS0 quiet panic=-1 {self.append}",
            "-serial", f"file:{os.path.join(control, 'console')}",
            "-device", "virtio-rng-pci", "-device", "virtio-serial-pci",
            "-device", "virtserialport,chardev=output", "-chardev", "stdio,id=output,signal=off",
            "-virtfs", f"{shared},path=/,mount_tag=host,readonly=on",
            "-virtfs", f"{shared},path={control},mount_tag=control",
        ]

    def run(self, command, minutes=None, stdout=None):
        """Runs a command to its end and returns its exit code. A `Died` if the guest, or the time, ends before that."""
        with tempfile.TemporaryDirectory(prefix="mend-vm-") as control:
            passed = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME") or name.startswith("MEND_")}
            if self.emulated:
                passed["MEND_VM_EMULATED"] = "1"
            words = ["exec", "env", "-i", *(f"{name}={value}" for name, value in passed.items()), *command]
            here = os.getcwd()
            # What is needed of a directory in whose place the guest has one of its own.
            kept = sorted({place + "\n" for place in (here, ROOT) if place.startswith("/tmp/")})
            # What is a link to a directory in the guest stays one.
            added = "".join(f"/bin/tar -C {shlex.quote(place)} -cf - . | /bin/tar -C / --keep-directory-symlink -xf -\n" for place in self.packages)
            files = {"command": f"{added}cd {shlex.quote(here)}\n{shlex.join(words)}\n", "modules": self.kernel.modules + "\n", "kept": "".join(kept)}
            for name, content in files.items():
                with open(os.path.join(control, name), "w", encoding="utf-8") as file:
                    file.write(content)
            self.kernel.initramfs(os.path.join(control, "initramfs"))
            # An input that ends would close the output's port, too.
            with subprocess.Popen([QEMU, *self.options(control)], stdin=subprocess.PIPE, stdout=stdout) as machine:
                try:
                    code = machine.wait(minutes and 60 * minutes)
                except subprocess.TimeoutExpired:
                    raise Died(f"the command did not end within {minutes} minutes") from None
                finally:
                    machine.kill()
            try:
                with open(os.path.join(control, "status"), encoding="ascii") as file:
                    return int(file.read())
            except (FileNotFoundError, ValueError):
                with open(os.path.join(control, "console"), encoding="utf-8", errors="replace") as file:
                    last = "".join(file.readlines()[-20:])
                raise Died(f"the guest died (emulator's exit code {code}); its last words:\n{last}") from None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", default=PACKAGE, help="Debian's package, or one that depends on it (default %(default)s)")
    parser.add_argument("--memory", type=int, default=4096, metavar="MIB")
    parser.add_argument("--cpus", type=int)
    parser.add_argument("--minutes", type=float, help="kill it after that time")
    parser.add_argument("--append", default="", help="for the kernel's command line")
    parser.add_argument("--package", action="append", default=[], metavar="NAME", help="Debian's, whose files the guest has in addition")
    parser.add_argument("--possible", action="store_true", help="say why not, if there can be no virtual machine here, and end")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    if not arguments.command and not arguments.possible:
        parser.error("which command?")
    try:
        if why := possible():
            raise NotHere(why)
        kernel = Kernel(arguments.kernel)
        if arguments.possible:
            return 0
        guest = Guest(kernel, arguments.memory, arguments.cpus, arguments.append, arguments.package)
        if guest.emulated:
            print(f"vm.py: emulated, which is slow: {guest.emulated}", file=sys.stderr, flush=True)
        return guest.run(arguments.command, arguments.minutes)
    except (NotHere, Died) as error:
        print(f"vm.py: {error}", file=sys.stderr)
        return COULD_NOT


if __name__ == "__main__":
    sys.exit(main())
