"""A key-value service in memory."""

import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ITEMS = {}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status, body=b""):
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def key(self):
        match = re.fullmatch(r"/items/([A-Za-z0-9_-]+)", self.path)
        return match and match[1]

    def do_GET(self):
        if self.path == "/health":
            self.answer(200, b"ok")
        elif self.key() in ITEMS:
            self.answer(200, ITEMS[self.key()])
        else:
            self.answer(404)

    def do_PUT(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        key = self.key()
        if not key:
            return self.answer(404)
        status = 204 if key in ITEMS else 201
        ITEMS[key] = body
        return self.answer(status)

    def do_DELETE(self):
        found = ITEMS.pop(self.key(), None) is not None
        self.answer(204 if found else 404)


ThreadingHTTPServer(("127.0.0.1", 8080), Handler).serve_forever()
