"""Many ends of a server in little time: front ends without models, forked, with the sockets and the end of `aspen-mp serve`.

    python tests/serving/ending_trials.py TRIALS [FIRST SEED [uvicorn]]

Clients send again and again; at a drawn moment it is enough. `uvicorn`: with its own end, which loses some.
Prints how many requests were on their way then, and those that were lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import random
import socket
import sys
import tempfile
import threading
from typing import Any

import uvicorn
import uvloop

from aspen_mp.serving.access.connections import LimitedConnection
from aspen_mp.serving.access.ending import EndingConnection, EndingServer, refuse

REQUEST = b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"
CLIENTS = 8
WATCHDOG_S = 60.0


def front_end(sockets: list[socket.socket], told: int, seed: int, *, ends_well: bool) -> None:
    """Answers until a byte comes."""
    drawn = random.Random(seed)
    closing = False

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        if drawn.random() < 0.3:
            await asyncio.sleep(drawn.random() * 0.02)
        headers = [(b"content-length", b"2"), *([(b"connection", b"close")] if closing else [])]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    async def run() -> None:
        connection, kind = (EndingConnection, EndingServer) if ends_well else (LimitedConnection, uvicorn.Server)
        server = kind(uvicorn.Config(app, http=connection, ws="none", lifespan="off", log_level="error"))

        def finish() -> None:
            nonlocal closing
            asyncio.get_running_loop().remove_reader(told)
            closing = server.should_exit = True

        asyncio.get_running_loop().add_reader(told, finish)
        await server.serve(sockets)

    uvloop.run(run())


class Client(threading.Thread):
    """Sends until it is refused or the trial is over. `waits`: whether a whole request of it has not been answered."""

    def __init__(self, address: Any, anew: bool, over: threading.Event) -> None:
        super().__init__(daemon=True)
        self._address, self._anew, self._over = address, anew, over
        self.waits = False
        self.asked_for = False
        self.lock = threading.Lock()
        self.lost = ""

    def run(self) -> None:
        sock: socket.socket | None = None
        try:
            while not self._over.is_set():
                if sock is None:
                    sock = socket.socket(socket.AF_UNIX if isinstance(self._address, str) else socket.AF_INET)
                    sock.settimeout(WATCHDOG_S)
                    sock.connect(self._address)
                sock.sendall(REQUEST)
                with self.lock:
                    self.waits = True
                answer = http.client.HTTPResponse(sock)
                answer.begin()
                assert answer.read() == b"ok"
                with self.lock:
                    self.waits = self.asked_for = False
                if self._anew or answer.will_close:
                    sock.close()
                    sock = None
        except (OSError, http.client.HTTPException) as error:
            if self.asked_for:
                self.lost = repr(error)
        finally:
            if sock is not None:
                sock.close()


def trial(seed: int, *, ends_well: bool = True) -> tuple[int, list[str]]:
    """How many requests were on their way, and how those ended that were lost. `ends_well`: with the end of `access/ending.py`."""
    drawn = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        unix = stack.enter_context(socket.socket(socket.AF_UNIX))
        unix.bind(f"{folder}/socket")
        unix.listen(2048)
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=2048)), unix]
        tell = [os.pipe() for _ in range(drawn.randint(1, 3))]
        children = []
        for read, _ in tell:
            if not (pid := os.fork()):
                try:
                    front_end(listeners, read, seed, ends_well=ends_well)
                finally:
                    os._exit(0)
            children.append(pid)
        over = threading.Event()
        clients = [Client(drawn.choice(listeners).getsockname(), drawn.random() < 0.5, over) for _ in range(CLIENTS)]
        for each in clients:
            each.start()
        over.wait(drawn.random() * 0.15)  # a moment of a life, drawn: nothing tells when it has come
        for each in clients:
            with each.lock:
                each.asked_for = each.waits
        on_their_way = sum(each.asked_for for each in clients)
        for listener in listeners if ends_well else ():
            refuse(listener)
        for _, write in tell:
            os.write(write, b"!")
        for listener in listeners:
            listener.close()
        over.set()
        for each in clients:
            each.join(WATCHDOG_S)
        for (read, write), pid in zip(tell, children, strict=True):
            os.close(read)
            os.close(write)
            os.waitpid(pid, 0)
        return on_their_way, [each.lost for each in clients if each.lost]


def main() -> None:
    trials, first = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    sent = lost = 0
    for seed in range(first, first + trials):
        on_their_way, ends = trial(seed, ends_well="uvicorn" not in sys.argv)
        sent, lost = sent + on_their_way, lost + len(ends)
        print(f"seed {seed}: {on_their_way} on their way, lost: {', '.join(ends) or 'none'}", flush=True)
    print(sent, lost)


if __name__ == "__main__":
    main()
