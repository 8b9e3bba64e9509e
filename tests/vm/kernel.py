"""Kernels that are not this machine's: Debian's packages, downloaded and unpacked below target/vm, never installed.

Environment: MEND_VM_KERNEL names another package than linux-image-amd64 stands for (linux-image-rt-amd64, say).
"""

import os
import re
import shutil
import subprocess
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CACHE = os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")), "vm")
PACKAGE = os.environ.get("MEND_VM_KERNEL", "linux-image-amd64")
# What the guest's init needs before it can reach the host's files; all else it loads from there, when asked for.
EARLY = ("virtio_pci", "virtio_console", "virtio_rng", "9pnet_virtio", "9p", "overlay")
INIT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "init.sh")


class NotHere(Exception):
    """What a virtual machine needs cannot be had on this machine."""


def output(*command, **options):
    """What a command prints; a `NotHere` if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, **options)
    except OSError as error:
        raise NotHere(f"{command[0]}: {error.strerror}") from None
    if done.returncode:
        raise NotHere(f"{' '.join(command)}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


def resolve(package):
    """The package that a name stands for today: linux-image-amd64 depends on the newest build."""
    pattern = re.compile(r"linux-image-\d[^ ]*")
    if pattern.fullmatch(package):
        return package
    for line in output("apt-cache", "depends", package).splitlines():
        if match := re.fullmatch(rf"\s*Depends: ({pattern.pattern})", line):
            return match[1]
    raise NotHere(f"apt knows no kernel by the name {package}")


def unpacked(package):
    """The directory in which a package is unpacked, after downloading it the first time."""
    directory = os.path.join(CACHE, package)
    if os.path.isdir(directory):
        return directory
    os.makedirs(CACHE, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as work:
        # The user that apt changes to may not go here; we are content with our own.
        output("apt-get", "download", "--quiet", "-o", "APT::Sandbox::User=", package, cwd=work)
        (archive,) = os.listdir(work)
        tree = os.path.join(work, "tree")
        output("dpkg-deb", "--extract", os.path.join(work, archive), tree)
        shutil.rmtree(os.path.join(tree, "usr", "share"), ignore_errors=True)
        os.rename(tree, directory)
    return directory


def busybox():
    """A program that needs no file but itself."""
    return os.path.join(unpacked("busybox-static"), "bin", "busybox")


class Kernel:
    """One kernel: its `image`, its tree of `modules`, and an `initramfs` that ends up in tests/vm/init.sh."""

    def __init__(self, name=PACKAGE):
        self.package = resolve(name)
        self.directory = unpacked(self.package)
        modules = os.path.join(self.directory, "lib", "modules")
        (self.release,) = os.listdir(modules)
        self.modules = os.path.join(modules, self.release)
        self.image = os.path.join(self.directory, "boot", f"vmlinuz-{self.release}")
        if not os.path.exists(os.path.join(self.modules, "modules.dep")):
            output(busybox(), "depmod", "-b", self.directory, self.release)

    def initramfs(self, path):
        """Writes it to a file."""
        with open(busybox(), "rb") as program, open(INIT, "rb") as init:
            files = [("busybox", 0o755, program.read()), ("init", 0o755, init.read())]
        for number, module in enumerate(self.in_order(EARLY)):
            with open(os.path.join(self.modules, module), "rb") as file:
                files.append((f"modules/{number:02}-{os.path.basename(module)}", 0o644, file.read()))
        with open(path, "wb") as archive:
            archive.write(cpio(files))

    def in_order(self, names):
        """The files of modules and of those they depend on, as they must be loaded. What is built in is none."""
        needs = {}
        with open(os.path.join(self.modules, "modules.dep"), encoding="utf-8") as file:
            for line in file:
                module, _, others = line.partition(":")
                needs[module.strip()] = others.split()
        by_name = {os.path.basename(path).partition(".ko")[0].replace("-", "_"): path for path in needs}
        ordered = []

        def add(path):
            for other in needs[path]:
                add(other)
            if path not in ordered:
                ordered.append(path)

        for name in names:
            if name.replace("-", "_") in by_name:
                add(by_name[name.replace("-", "_")])
        return ordered


def cpio(files):
    """An archive as the kernel takes it for its first root (Documentation/driver-api/early-userspace/buffer-format.rst)."""
    directories = sorted({os.path.dirname(name) for name, _, _ in files} - {""})
    entries = [(name, 0o040755, b"") for name in directories]
    entries += [(name, 0o100000 | mode, content) for name, mode, content in files]
    entries.append(("TRAILER!!!", 0, b""))
    archive = bytearray()
    for number, (name, mode, content) in enumerate(entries, 1):
        encoded = name.encode() + b"\0"
        fields = [number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(encoded), 0]
        archive += b"070701" + b"".join(b"%08x" % value for value in fields) + encoded
        archive += bytes(-len(archive) % 4) + content
        archive += bytes(-len(archive) % 4)
    return bytes(archive)
