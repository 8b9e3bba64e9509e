#!/usr/bin/env python3
"""Runs a command as an ordinary user, also when root runs the tests.

    as_user.py COMMAND [ARGUMENT...]

As an ordinary user it just runs the command. As root it runs it with user and group 1000, no further groups, and HOME
and TMPDIR in a fresh directory that is removed afterwards. The checkout and the Python that runs this may lie
where that user cannot go (below root's home, say): then the closed directory is replaced, in a mount namespace of the
command's own, by an empty open one in which only the checkout, Python, MEND_BIN and MEND_VENV appear, each at the path
it always has. So
paths that were compiled or linked in stay true, and nothing is copied. The checkout is not writable to the user.

Where /dev/fuse is root's alone, the user gets it open to all, as clusters have it, unless the kernel refuses that.

The exit code is the command's, 128 + N if signal N ended it, 125 if it could not be set up.
"""

import ctypes
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile

USER = 1000
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# mount(2), unshare(2).
CLONE_NEWNS, MS_REC, MS_SLAVE, MS_BIND = 0x00020000, 0x4000, 1 << 19, 4096
libc = ctypes.CDLL(None, use_errno=True)


def mount(source, target, kind, flags, data=None):
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    if libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3]) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"mount on {target}: {os.strerror(error)}")


def open_to_all(directory):
    """Whether anybody may go through and list `directory` itself."""
    mode = os.stat(directory).st_mode
    return mode & stat.S_IROTH and mode & stat.S_IXOTH


def pass_on(child, number):
    try:
        os.kill(child, number)
    except ProcessLookupError:
        # It has ended this very moment.
        pass


def closed_ancestor(path):
    """The topmost directory on the way to `path` that others cannot pass, or None."""
    parts = path.strip("/").split("/")
    for depth in range(1, len(parts)):
        ancestor = "/" + "/".join(parts[:depth])
        if not os.stat(ancestor).st_mode & stat.S_IXOTH:
            return ancestor
    return None


def uncover(trees):
    """Makes `trees` reachable for everybody, in a mount namespace that only this process and its children see."""
    closed = {}
    for tree in trees:
        ancestor = closed_ancestor(tree)
        if ancestor:
            closed.setdefault(ancestor, set()).add(tree)
    if not closed:
        return
    if libc.unshare(CLONE_NEWNS) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"a mount namespace for the ordinary user: {os.strerror(error)}")
    # What is unmounted outside goes here, too.
    mount(None, "/", None, MS_REC | MS_SLAVE)
    for ancestor, below in closed.items():
        held = {tree: os.open(tree, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) for tree in below}
        mount("open", ancestor, "tmpfs", 0, "mode=0755,size=1m")
        for tree, descriptor in sorted(held.items()):
            os.makedirs(tree, mode=0o755, exist_ok=True)
            mount(f"/proc/self/fd/{descriptor}", tree, None, MS_BIND | MS_REC)
            os.close(descriptor)


def open_fuse(base):
    """Gives the user /dev/fuse as udev makes it on clusters, where it is root's alone: another node of it, in a mount namespace of the command's own."""
    if not os.path.exists("/dev/fuse") or os.stat("/dev/fuse").st_mode & 0o006 == 0o006:
        return
    if libc.unshare(CLONE_NEWNS) != 0:
        return
    mount(None, "/", None, MS_REC | MS_SLAVE)
    devices = f"{base}/dev"
    os.mkdir(devices, mode=0o755)
    mount("open", devices, "tmpfs", 0, "mode=0755,size=1m")
    os.mknod(f"{devices}/fuse", 0o666 | stat.S_IFCHR, os.stat("/dev/fuse").st_rdev)
    os.chmod(f"{devices}/fuse", 0o666)
    mount(f"{devices}/fuse", "/dev/fuse", None, MS_BIND)


def usable_path(path):
    """The directories of a PATH through which the user can go."""
    usable = []
    for directory in path.split(os.pathsep):
        if os.path.isdir(directory) and not closed_ancestor(directory) and open_to_all(directory):
            usable.append(directory)
    # This very Python first, under its own name: what PATH held may be a wrapper that the user cannot read.
    python = os.path.dirname(os.path.realpath(sys.executable))
    return os.pathsep.join(dict.fromkeys([python, *usable, "/usr/sbin", "/usr/bin", "/sbin", "/bin"]))


def become(base, command):
    """In the child: everything between fork and exec."""
    os.umask(0o022)
    open_fuse(base)
    named = [os.path.realpath(os.environ[name]) for name in ("MEND_BIN", "MEND_VENV") if os.environ.get(name)]
    uncover({ROOT, os.path.realpath(sys.base_prefix), *named})
    if not open_to_all(ROOT):
        raise OSError(f"{ROOT} is not readable for others, so no ordinary user can test it: chmod -R a+rX {ROOT}")
    of_root = ("SUDO_", "XDG_", "CARGO", "RUSTUP", "MEND_HOME", "MEND_SECRET_FILE")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(of_root)}
    environment["PATH"] = usable_path(environment.get("PATH", ""))
    environment.update(HOME=f"{base}/home", TMPDIR=f"{base}/tmp", USER="mend", LOGNAME="mend")
    here = os.getcwd()
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)
    # The working directory by its path, which may now lead through the uncovered tree.
    os.chdir(here if os.access(here, os.X_OK) else environment["HOME"])
    os.execvpe(command[0], command, environment)


def run(command):
    if os.geteuid() != 0:
        return subprocess.run(command, check=False).returncode
    base = tempfile.mkdtemp(prefix="mend-user-", dir="/tmp")
    try:
        os.chmod(base, 0o755)
        for name in ("home", "tmp"):
            os.mkdir(f"{base}/{name}", mode=0o700)
            os.chown(f"{base}/{name}", USER, USER)
        child = os.fork()
        if child == 0:
            try:
                become(base, command)
            except OSError as error:
                print(f"as_user.py: {error}", file=sys.stderr, flush=True)
            finally:
                os._exit(125)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: pass_on(child, number))
        # Ctrl-C reaches the child by itself (one foreground group); what is left to do here is to clean up after it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status)
    finally:
        shutil.rmtree(base, ignore_errors=True)


def main():
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    sys.stdout.flush()
    code = run(sys.argv[1:])
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
