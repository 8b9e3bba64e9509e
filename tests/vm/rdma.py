"""A device for RDMA made of software (`rdma_rxe`) on a network device that leads nowhere: what a guest has for tests/lab/test_rdma.py.

The network device has several addresses, so that there can be several "nodes"; what goes from one to another never leaves the device.
"""

import os
import resource
import socket
import struct
import subprocess

# What takes part of rdma-core: programs are linked to the first two, which load the driver of the third.
PACKAGES = ("libibverbs1", "librdmacm1", "ibverbs-providers", "libnl-3-200", "libnl-route-3-200")
ADDRESSES = ("10.117.0.1", "10.117.0.2", "10.117.0.3")
MODULES = ("dummy", "rdma_rxe", "ib_uverbs", "rdma_ucm")
NETWORK_DEVICE = "rdma-net"
DEVICE = "rxe0"
BUSYBOX = "/run/vm/busybox"
# rdma_netlink.h
NETLINK_RDMA = 20
NEWLINK = 5 << 10 | 3  # RDMA_NL_NLDEV, RDMA_NLDEV_CMD_NEWLINK
DEVICE_NAME, NETWORK_NAME, LINK_TYPE = 2, 51, 65  # RDMA_NLDEV_ATTR_…
# netlink.h
NLM_F_REQUEST, NLM_F_ACK = 1, 4


def attribute(number, text):
    """A netlink attribute that is a string."""
    value = text.encode() + b"\0"
    length = 4 + len(value)
    return struct.pack("=HH", length, number) + value + bytes(-length % 4)


def link(name, kind, network):
    """What `rdma link add NAME type KIND netdev NETWORK` does."""
    body = attribute(DEVICE_NAME, name) + attribute(LINK_TYPE, kind) + attribute(NETWORK_NAME, network)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_RDMA) as netlink:
        netlink.send(struct.pack("=IHHII", 16 + len(body), NEWLINK, NLM_F_REQUEST | NLM_F_ACK, 1, 0) + body)
        (error,) = struct.unpack_from("=i", netlink.recv(4096), 16)
    if error:
        raise OSError(-error, f"{name}: {os.strerror(-error)}")


def provide():
    """Makes the device. Its addresses. From here on whoever uses it may lock as much memory as it takes, as on nodes of clusters."""
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    for module in MODULES:
        subprocess.run([BUSYBOX, "modprobe", module], check=True)
    commands = [["link", "add", NETWORK_DEVICE, "type", "dummy"], ["link", "set", NETWORK_DEVICE, "up"]]
    commands += [["addr", "add", f"{address}/24", "dev", NETWORK_DEVICE] for address in ADDRESSES]
    for command in commands:
        subprocess.run([BUSYBOX, "ip", *command], check=True)
    link(DEVICE, "rxe", NETWORK_DEVICE)
    return ADDRESSES
