#!/usr/bin/env python3
"""An HTTP server of one file that gives so many bytes a second in all, whatever the number of those who ask: `paced_source.py FILE PORT MB_A_SECOND`.

It says `ready` when it can be asked, and how many bytes it has given when SIGTERM ends it.
"""

import http.server
import os
import re
import signal
import sys
import threading
import time

PIECE = 16 << 10


class Pace:
    """Lets bytes pass at a rate; none are saved up while nobody asks."""

    def __init__(self, rate):
        self.rate, self.free_at, self.lock, self.given = rate, 0.0, threading.Lock(), 0

    def pass_through(self, count):
        with self.lock:
            self.free_at = max(self.free_at, time.monotonic()) + count / self.rate
            wait = self.free_at - time.monotonic()
            self.given += count
        if wait > 0:
            time.sleep(wait)


class Source(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def head(self):
        """Sends what precedes the bytes; where they begin and end."""
        size = os.fstat(self.server.file.fileno()).st_size
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        first, last = (int(asked[1]), min(int(asked[2]), size - 1)) if asked else (0, size - 1)
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.send_header("Content-Length", str(last + 1 - first))
        self.send_header("ETag", '"1"')
        self.end_headers()
        return first, last + 1

    def do_HEAD(self):
        self.head()

    def do_GET(self):
        at, end = self.head()
        while at < end:
            piece = os.pread(self.server.file.fileno(), min(PIECE, end - at), at)
            self.server.pace.pass_through(len(piece))
            try:
                self.wfile.write(piece)
            except OSError:
                # Whoever asked is gone.
                self.close_connection = True
                return
            at += len(piece)


def main():
    path, port, rate = sys.argv[1:]
    server = http.server.ThreadingHTTPServer(("0.0.0.0", int(port)), Source)
    server.daemon_threads = True
    server.pace = Pace(float(rate) * 1e6)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(print(server.pace.given, flush=True)))
    with open(path, "rb") as server.file:
        print("ready", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
