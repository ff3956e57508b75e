"""A local server with enough of the Hugging Face Hub's API to upload and download small repositories."""

import base64
import hashlib
import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "1" * 40


class _Handler(BaseHTTPRequestHandler):
    files: dict[str, bytes]
    requests: dict[str, dict[str, Any]]

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
        return self.answer(self.files[name], {"ETag": f'"{digest}"', "X-Repo-Commit": COMMIT})

    do_HEAD = do_GET  # noqa: N815


@contextmanager
def hub_server() -> Generator[tuple[str, dict[str, bytes], dict[str, dict[str, Any]]]]:
    """Run a server with one repository, ``someone/bits``.

    Yields its address, the repository's files, and the last requests to create it and to commit to it.
    """
    files: dict[str, bytes] = {}
    requests: dict[str, dict[str, Any]] = {}
    handler = type("Handler", (_Handler,), {"files": files, "requests": requests})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", files, requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
