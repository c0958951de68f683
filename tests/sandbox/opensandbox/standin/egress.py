#!/usr/bin/python3
"""Stands in for OpenSandbox's egress sidecar, in our tests only: enforces `deny` for everything, or nothing.

It shares the network namespace of the sandbox. Answers to connections from outside pass, so that the daemon in the
sandbox stays reachable.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

RULES = (
    ("-A", "OUTPUT", "-o", "lo", "-j", "ACCEPT"),
    ("-A", "OUTPUT", "-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "-j", "ACCEPT"),
    ("-P", "OUTPUT", "DROP"),
)


class Health(BaseHTTPRequestHandler):
    """Says that the rules are in force."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Says nothing."""


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    policy = json.loads(os.environ["OPENSANDBOX_EGRESS_RULES"])
    if policy.get("egress"):
        raise SystemExit("this stand-in knows no single rules")
    if policy.get("defaultAction") == "deny":
        for rule in RULES:
            subprocess.run(["xtables-nft-multi", "iptables", *rule], check=True)
    HTTPServer(("0.0.0.0", 18080), Health).serve_forever()
