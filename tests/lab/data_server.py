"""An HTTP server of one file whose faults can be told: it ignores ranges, sends other bytes, stalls, breaks off, changes.

    data_server.py FILE PORT TOLD PAUSE      serves FILE, PAUSE seconds before each 64 KiB; TOLD is a file with how much was sent
"""

import http.server
import os
import re
import sys
import threading
import zlib

PIECE = 64 << 10


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        """Clients that are killed are what the tests are about."""


class DataServer:
    """Serves `content` under any path. The attributes may be changed at any time."""

    def __init__(self, content):
        self.content = content
        self.etag = '"1"'
        self.ranges = True
        self.head = True
        # Offset of a byte that is sent changed.
        self.corrupt = None
        # Answers with a body that are sent in part, then broken off; -1: all of them.
        self.break_off = 0
        # Answers with a body that stand still after their first piece; -1: all.
        self.stall = 0
        # Seconds before each piece.
        self.pause = 0.0
        # Called with the number of bytes that were sent so far.
        self.watch = lambda sent: None
        self.sent = 0
        self.requests = []
        self.lock = threading.Lock()
        self.gone = threading.Event()

    def __enter__(self):
        self.server = Server(("127.0.0.1", 0), handler(self))
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.gone.set()
        self.server.shutdown()
        self.server.server_close()

    def uri(self, name="in.dat"):
        return f"http://127.0.0.1:{self.server.server_address[1]}/{name}"

    def takes(self, fault):
        """Whether the next answer has this fault."""
        with self.lock:
            left = getattr(self, fault)
            if left > 0:
                setattr(self, fault, left - 1)
            return left != 0


def handler(of):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_HEAD(self):
            if not of.head:
                return self.send_error(403)
            self.send_response(200)
            self.send_header("Content-Length", str(len(of.content)))
            self.send_header("ETag", of.etag)
            self.end_headers()

        def do_GET(self):
            content, asked = of.content, re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            of.requests.append(self.headers.get("Range"))
            first, last = 0, len(content) - 1
            if asked and of.ranges:
                first, last = int(asked[1]), min(int(asked[2]), last)
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
            else:
                self.send_response(200)
            self.send_header("Content-Length", str(last + 1 - first))
            self.send_header("ETag", of.etag)
            self.end_headers()
            broken, stalled = of.takes("break_off"), of.takes("stall")
            at = first
            while at <= last:
                piece = bytearray(content[at:min(at + PIECE, last + 1)])
                if of.corrupt is not None and at <= of.corrupt < at + len(piece):
                    piece[of.corrupt - at] ^= 0xFF
                if of.gone.wait(of.pause):
                    return
                try:
                    self.wfile.write(piece)
                except OSError:
                    self.close_connection = True
                    return
                at += len(piece)
                with of.lock:
                    of.sent += len(piece)
                of.watch(of.sent)
                if stalled:
                    of.gone.wait()
                if broken and (at - first) * 2 > last + 1 - first:
                    self.close_connection = True
                    return

    return Handler


def serve(path, port, told, pause):
    """Serves a file as it is when this begins, on all addresses; how much was sent stands in the file `told`."""
    with open(path, "rb") as file:
        server = DataServer(file.read())
    server.pause = float(pause)
    server.etag = f'"{zlib.crc32(server.content)}"'

    def watch(sent):
        with server.lock:
            with open(told + ".new", "w", encoding="ascii") as file:
                file.write(str(max(sent, server.sent)))
            os.replace(told + ".new", told)

    server.watch = watch
    listens = Server(("0.0.0.0", int(port)), handler(server))
    # Who waits for this file may come as soon as it is there.
    watch(0)
    listens.serve_forever()


if __name__ == "__main__":
    serve(*sys.argv[1:])
