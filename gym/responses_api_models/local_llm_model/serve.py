"""The engine's process: llama.cpp's own server on loopback, for as long as the run is there.

It runs on the interpreter of the runtime bundle, so nothing of Gym can be imported here. Standard input brings the
order as one line of JSON and then stays open: when it ends, the run is gone, and so is this process.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
from typing import Any

ERRORS = 1
"""How much llama.cpp says: errors alone."""

PR_SET_PDEATHSIG = 1


def main() -> int:
    """Loads the model, says where it is served, and waits."""
    # While a model is loaded no thread of Python runs: then only the kernel can end this process with its parent.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    order: dict[str, Any] = json.loads(sys.stdin.readline())
    threading.Thread(target=_leave_with_the_run, daemon=True).start()
    import xllamacpp  # type: ignore[import-not-found]  # it is in the runtime bundle, not here

    params = xllamacpp.CommonParams()
    params.model.path, params.model_alias = order["gguf"], {order["name"]}
    params.chat_template = order["chat_template"]
    params.n_ctx = order["context_tokens"] * order["slots"]
    params.n_parallel = order["slots"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = order["threads"]
    params.api_keys = [order["key"]]
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.use_jinja, params.ui, params.warmup, params.fit_params = True, False, False, False
    params.verbosity = ERRORS
    try:
        server = xllamacpp.Server(params)
    except RuntimeError as error:  # llama.cpp has told why on standard error
        print(error, file=sys.stderr)
        return 1
    print(json.dumps({"address": server.listening_address}), flush=True)
    threading.Event().wait()
    return 0


def _leave_with_the_run() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
