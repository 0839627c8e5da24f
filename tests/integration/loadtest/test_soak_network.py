"""What a soak does to connections is done to these, and is over when it is over."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

from loadtest.soak import network
from tests.support.mesh import ROOT

PROGRAM = textwrap.dedent("""
    import json, os, socket, subprocess, sys, threading, time
    from loadtest.soak import network

    network.prepare()
    serve = "import socketserver as s,sys\\nclass H(s.BaseRequestHandler):\\n def handle(self):\\n" \\
        "  while d:=self.request.recv(10): self.request.sendall(d)\\n" \\
        "t=s.ThreadingTCPServer(('127.0.0.1',0),H)\\nprint(t.server_address[1],flush=True)\\nt.serve_forever()\\n"
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    server = subprocess.Popen([sys.executable, "-c", serve], **quiet)
    port = int(server.stdout.readline())
    caller = socket.create_connection(("127.0.0.1", port))
    caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def chatter(line):  # it never falls silent, whatever is done to the others
        while True:
            line.sendall(b"z")
            line.recv(10)

    for _ in range(8):
        threading.Thread(target=chatter, args=[socket.create_connection(("127.0.0.1", port))], daemon=True).start()
        time.sleep(0.05)

    def seconds():
        began = time.monotonic()
        caller.sendall(b"x")
        assert caller.recv(1) == b"x"
        return time.monotonic() - began

    told = {"before": seconds()}
    with network.slowed(server.pid, 0.3):
        told["slow"] = seconds()
        caller.sendall(b"y")
    assert caller.recv(1) == b"y"
    with network.slowed(server.pid, 0.3):
        told["again"] = seconds()
    told["rules"] = subprocess.run(["ip", "rule"], capture_output=True, text=True).stdout.count("lookup 77")
    told["broken"] = 0
    told["after"] = "x"
    while told["after"] == "x" and told["broken"] < 100:  # one of them, at random
        told["broken"] += network.break_one(server.pid)
        try:
            caller.sendall(b"x")
            told["after"] = caller.recv(1).decode()
        except OSError as error:
            told["after"] = type(error).__name__
    server.kill()
    print(json.dumps(told))
""")


def test_packets_of_a_slow_process_come_later_none_is_lost_and_a_broken_connection_is_broken_at_both_ends() -> None:
    if network.cannot_slow():
        pytest.skip(network.cannot_slow())
    command = ["unshare", "-Urmn", sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode and "unshare" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["slow"] >= 0.6  # there and back
    assert told["again"] >= 0.6
    assert told["rules"] == 0
    assert told["broken"]
    assert told["after"] in ("", "ConnectionAbortedError", "ConnectionResetError", "BrokenPipeError")
