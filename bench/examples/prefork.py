"""A web application with forked server processes and one runtime, with nothing but the standard library.

The parent starts the runtime, loads the model, listens, and forks. Handles survive the fork: each child connects at its first request.
POST the bytes of a float32 input to get the place of the largest output.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import numpy as np

import aspen_mp
from aspen_mp.errors import RequestError

if TYPE_CHECKING:
    from aspen_mp.client.model import Model


def handler(model: Model) -> type[BaseHTTPRequestHandler]:
    """The class of requests to this model."""
    info = model.inputs[0]
    shape = [dimension if isinstance(dimension, int) else 1 for dimension in info.shape or ()]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            answer: dict[str, object]
            try:
                result = model.run({info.name: np.frombuffer(body, info.dtype).reshape(shape)}, timeout=30)
                status, answer = 200, {"class": int(next(iter(result.values())).argmax()), "process": os.getpid()}
            except (ValueError, RequestError) as error:
                status, answer = 400, {"error": str(error)}
            text = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *arguments: object) -> None:
            """Nothing is logged."""

    return Handler


def serve(listener: socket.socket, model: Model) -> None:
    """A server process, which takes connections from the socket that all of them share."""
    server = HTTPServer(listener.getsockname(), handler(model), bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    server.serve_forever()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="A web application with forked server processes and one runtime.")
    parser.add_argument("--model", default="zoo:squeezenet1_1", help="An ONNX file or zoo:NAME, with one input.")
    parser.add_argument("--port", type=int, default=0, help="Port to listen on (default: any free one, which is printed).")
    parser.add_argument("--processes", type=int, default=4, help="Number of server processes (default: 4).")
    parser.add_argument("--workers", type=int, default=None, help="Number of workers (default: one for each core).")
    asked = parser.parse_args(arguments)
    listener = socket.create_server(("127.0.0.1", asked.port))
    with listener, aspen_mp.Runtime(workers=asked.workers) as runtime:
        model = runtime.load(asked.model)
        children = []
        ends = {signal.SIGINT, signal.SIGTERM}
        signal.pthread_sigmask(signal.SIG_BLOCK, ends)
        for _ in range(asked.processes):
            pid = os.fork()
            if not pid:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, ends)
                serve(listener, model)
            children.append(pid)
        print(json.dumps({"port": listener.getsockname()[1], "processes": children}), flush=True)
        try:
            signal.sigwait(ends)
        finally:
            for pid in children:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
