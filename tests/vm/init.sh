#!/busybox sh
# The first process of a guest: finds the host's files, runs the command that lies in the control directory there, and
# leaves its exit status beside it. See vm.py, which started this.
b=/busybox
fail() {
  echo "init: $*" >/dev/ttyS0
  $b poweroff -f
}

if [ "$$" = 1 ] && [ ! -d /run/vm ]; then
  $b mkdir -p /dev /proc /host /fresh /new
  $b mount -t devtmpfs dev /dev || fail "no /dev"
  $b mount -t proc proc /proc
  for module in /modules/*; do
    $b insmod "$module" || fail "$module cannot be loaded"
  done
  # The host's files, read-only; what is written goes to memory.
  $b mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro host /host || fail "no files of the host"
  $b mount -t tmpfs -o size=90% fresh /fresh
  $b mkdir /fresh/files /fresh/work
  $b mount -t overlay -o lowerdir=/host,upperdir=/fresh/files,workdir=/fresh/work root /new || fail "no root directory"
  $b mount --move /dev /new/dev
  $b mount --move /proc /new/proc
  $b mount -t sysfs sys /new/sys
  $b mount -t cgroup2 cgroup /new/sys/fs/cgroup
  $b mount -t tmpfs -o mode=755,size=90% run /new/run
  $b mkdir -p /new/dev/pts /new/dev/shm /new/run/vm/control
  $b mount -t devpts -o mode=620,ptmxmode=666 pts /new/dev/pts
  $b mount -t tmpfs -o mode=1777,size=90% shm /new/dev/shm
  $b mount -t 9p -o trans=virtio,version=9p2000.L,cache=none control /new/run/vm/control || fail "no command"
  $b cp /busybox /init /new/run/vm/
  $b mkdir /new/run/vm/bin
  for name in modprobe ip; do
    $b ln -s /run/vm/busybox /new/run/vm/bin/$name
  done
  exec $b switch_root /new /run/vm/busybox sh /run/vm/init
fi

b=/run/vm/busybox
exec 2>/dev/ttyS0 >&2
$b ln -sf /proc/self/fd /dev/fd
$b hostname vm
# Where the kernel looks for modules.
read -r modules </run/vm/control/modules
$b mkdir -p "/lib/modules/$($b uname -r)"
$b mount --bind "$modules" "/lib/modules/$($b uname -r)" || fail "no modules"
# A place for files of a moment, with what is needed of the one that it covers.
$b mkdir /run/vm/fresh
$b mount -t tmpfs -o mode=1777,size=90% tmp /run/vm/fresh
while read -r place; do
  $b mkdir -p "/run/vm/fresh/${place#/tmp/}"
  $b mount --bind "$place" "/run/vm/fresh/${place#/tmp/}" || fail "no $place"
done </run/vm/control/kept
$b mount --rbind /run/vm/fresh /tmp
echo /run/vm/bin/modprobe >/proc/sys/kernel/modprobe
/run/vm/bin/ip link set lo up
for port in /dev/vport*p1; do
  output=$port
done
$b mkfifo /run/vm/output
$b cat /run/vm/output >"$output" &
copying=$!
/run/vm/busybox sh /run/vm/control/command >/run/vm/output 2>&1 </dev/null &
wait $!
echo $? >/run/vm/control/status
# Whatever the command left behind may hold its output.
for _ in 1 2 3 4 5 6 7 8 9 10; do
  kill -0 $copying 2>/dev/null || break
  $b sleep 0.1
done
$b poweroff -f
