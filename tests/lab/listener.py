#!/usr/bin/env python3
"""Reads all that passes a node's network, as somebody on the way could, and counts what looks like certain texts.

    listener.py TEXT [TEXT...]

For each line on standard input it prints one of JSON about what passed since the last: the frames' bytes, and for each text how many
frames held it. Works where a raw socket can be had: as root of a lab's namespaces.
"""

import json
import selectors
import socket
import sys

ALL_PROTOCOLS = 3  # ETH_P_ALL


def main():
    texts = [text.encode() for text in sys.argv[1:]]
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
    raw.setblocking(False)
    selector = selectors.DefaultSelector()
    selector.register(raw, selectors.EVENT_READ)
    selector.register(sys.stdin, selectors.EVENT_READ)
    passed, found = 0, [0] * len(texts)
    print("listening", flush=True)
    while True:
        ready = [key.fileobj for key, _ in selector.select()]
        # All that has come is counted before anything is told.
        while True:
            try:
                frame = raw.recv(1 << 17)
            except BlockingIOError:
                break
            passed += len(frame)
            found = [count + (text in frame) for count, text in zip(found, texts)]
        if sys.stdin in ready:
            if not sys.stdin.readline():
                return
            print(json.dumps({"bytes": passed, "found": found}), flush=True)
            passed, found = 0, [0] * len(texts)


if __name__ == "__main__":
    main()
