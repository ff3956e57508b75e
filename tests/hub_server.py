"""A local server with enough of the Hugging Face Hub's API to upload and download small repositories."""

import base64
import hashlib
import json
import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import repeat
from typing import Any

COMMIT = "1" * 40
ATTACKS = ("endless", "longer", "shorter", "redirects", "huge", "damaged")
"""What a hostile server does with the weights: a body without end (256 MiB, which do not fill a disk), one longer or
shorter than it said, redirects to itself, a size of a petabyte, other bytes."""


class _Handler(BaseHTTPRequestHandler):
    files: dict[str, bytes]
    requests: dict[str, dict[str, Any]]
    attack: str = ""

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def answer(self, body: bytes, headers: dict[str, str] | None = None, status: int = 200) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def answer_json(self, value: Any) -> None:
        self.answer(json.dumps(value).encode(), {"Content-Type": "application/json"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/api/repos/create":
            self.requests["create"] = json.loads(body)
            self.answer_json({"url": f"http://{self.headers['Host']}/someone/bits"})
        elif "/preupload/" in self.path:
            names = [file["path"] for file in json.loads(body)["files"]]
            self.answer_json({"files": [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]})
        elif "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "header":
                    self.requests["commit"] = line["value"]
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            url = f"http://{self.headers['Host']}/someone/bits/commit/{COMMIT}"
            self.answer_json({"commitUrl": url, "commitOid": COMMIT})
        elif self.path == "/api/validate-yaml":
            self.answer_json({"errors": [], "warnings": []})
        else:
            self.answer(b"", status=404)

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        if "/resolve/" not in self.path or name not in self.files:
            return self.answer(b"", {"X-Error-Code": "EntryNotFound"}, 404)
        digest = hashlib.sha256(self.files[name]).hexdigest()
        headers = {"ETag": f'"{digest}"', "X-Repo-Commit": COMMIT}
        if self.attack and name.endswith(".safetensors"):
            return self.harm(self.files[name], headers)
        return self.answer(self.files[name], headers)

    def harm(self, body: bytes, headers: dict[str, str]) -> None:
        if self.attack == "redirects":
            self.answer(b"", headers | {"Location": self.path}, 302)
        elif self.attack == "damaged":
            self.answer(body[:-1] + bytes([body[-1] ^ 1]), headers)
        elif self.attack == "huge":
            self.answer(body, headers | {"Content-Length": str(10**15)})
        elif self.attack == "shorter":
            self.answer(body[:-10], headers | {"Content-Length": str(len(body))})
        elif self.command == "HEAD":
            self.answer(body, headers)
        else:  # without a length, in chunks
            self.protocol_version = "HTTP/1.1"
            self.send_response(200)
            for key, value in (headers | {"Transfer-Encoding": "chunked"}).items():
                self.send_header(key, value)
            self.end_headers()
            self.send_chunks([body, body] if self.attack == "longer" else repeat(bytes(1 << 16), 1 << 12))

    def send_chunks(self, parts: Iterable[bytes]) -> None:
        with suppress(OSError):  # the client has hung up
            for part in parts:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.write(b"0\r\n\r\n")

    do_HEAD = do_GET  # noqa: N815


@contextmanager
def hub_server(attack: str = "") -> Generator[tuple[str, dict[str, bytes], dict[str, dict[str, Any]]]]:
    """Run a server with one repository, ``someone/bits``.

    Yields its address, the repository's files, and the last requests to create it and to commit to it. ``attack`` is
    one of :data:`ATTACKS`, or none.
    """
    files: dict[str, bytes] = {}
    requests: dict[str, dict[str, Any]] = {}
    handler = type("Handler", (_Handler,), {"files": files, "requests": requests, "attack": attack})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", files, requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
