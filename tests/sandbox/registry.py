"""A small image registry on loopback, which Docker daemons trust without TLS."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import secrets
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"

MISSING = json.dumps({"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}).encode()


class Registry:
    """Serves images of one small layer. `requests` are the paths asked for."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self._blobs: dict[str, bytes] = {}
        self._manifests: dict[str, str] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.address = f"127.0.0.1:{self._server.server_port}"

    def add(self, name: str, tag: str, size: int = 1000, user: str = "") -> str:
        """A new image with a layer of about `size` bytes; its name for `docker pull`."""
        plain = _layer(size)
        packed = gzip.compress(plain, 1)
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"User": user, "Cmd": ["/bin/sh"]},
            "rootfs": {"type": "layers", "diff_ids": [_digest(plain)]},
            "history": [{"created_by": "test"}],
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self._store("application/vnd.docker.container.image.v1+json", json.dumps(config).encode()),
            "layers": [self._store("application/vnd.docker.image.rootfs.diff.tar.gzip", packed)],
        }
        self._manifests[f"{name}/{tag}"] = str(self._store(MANIFEST, json.dumps(manifest).encode())["digest"])
        return f"{self.address}/{name}:{tag}"

    @contextmanager
    def running(self) -> Iterator[Registry]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()

    def _store(self, kind: str, content: bytes) -> dict[str, object]:
        self._blobs[_digest(content)] = content
        return {"mediaType": kind, "size": len(content), "digest": _digest(content)}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.requests.append(self.path)
                kind, digest = registry._found(self.path)
                content = registry._blobs.get(digest, MISSING)
                self.send_response(200 if digest in registry._blobs or self.path == "/v2/" else 404)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.send_header("Docker-Content-Digest", digest)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(content)

            do_HEAD = do_GET

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler

    def _found(self, path: str) -> tuple[str, str]:
        name, _, reference = path.removeprefix("/v2/").partition("/manifests/")
        if reference:
            return MANIFEST, self._manifests.get(f"{name}/{reference}", reference)
        return "application/octet-stream", path.rpartition("/")[2]


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _layer(size: int) -> bytes:
    """A layer with one file that no other image has."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        info = tarfile.TarInfo("file")
        info.size = size
        archive.addfile(info, io.BytesIO(secrets.token_bytes(size)))
    return packed.getvalue()
