"""Random visitors of a server: what they ask is drawn from the seed before they begin."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from simulation.serving.contents import DATATYPES, TABLE, Arrays, kinds
from simulation.serving.http import Connection, Outcome, request
from simulation.users import Act, Script

if TYPE_CHECKING:
    from simulation.serving.story import ServeStory

ACTIONS: Final = {
    "infer": 30,
    "slow": 6,
    "burst": 8,
    "leave": 6,
    "pipeline": 4,
    "chase": 4,
    "deadline": 4,
    "wrong": 4,
    "read": 10,
    "metrics": 1,
    "load": 5,
    "unload": 2,
    "ready": 4,
    "think": 14,
    "reconnect": 4,
}
PATIENCE_NS: Final = 29_000_000_000
"""A little less than servers wait for a body, or for an answer to be read."""
READS: Final = ("/v2", "/v2/health/live", "/v2/models/{name}", "/v2/models/{name}/ready", "/v2/models/{name}/config", "/v2/models/stats")


def draw(seed: int, visitors: int, acts: int) -> list[Script]:
    """The scripts of a history."""
    chance = random.Random(seed * 1_000_003 + 23)
    weights = {what: weight * (0.2 + 1.8 * chance.random()) * (chance.random() > 0.15) for what, weight in ACTIONS.items()}
    weights["infer"] = max(weights["infer"], 4.0)
    names = list(weights)
    scripts = []
    for k in range(visitors):
        script = Script(f"visitor-{k + 1}", chance.random() < 0.7)
        for _ in range(1 + int(acts * (0.5 + chance.random()))):
            (what,) = chance.choices(names, [weights[name] for name in names])
            script.acts.append(Act(what, tuple(int(chance.random() * (1 << 30)) for _ in range(6))))
        scripts.append(script)
    return scripts


class Infer:
    """A request for inference.

    Attributes:
        name: The model.
        version: The version that is asked for; 0: the newest.
        data: The bytes of the request.
    """

    def __init__(self, name: str, seed: int, style: int, *, timeout_us: int = 0, spoiled: bool = False, close: bool = False) -> None:
        kind = kinds()[name]
        self.name = name
        self.kind = kind
        self.version = 1 + seed // 7 % 4 if style % 5 == 4 else 0
        self.timeout_us = timeout_us
        self.spoiled = spoiled
        self.feeds = kind.feeds(seed, kind.rows[seed % len(kind.rows)])
        if spoiled:
            self.feeds = {"x": np.array([TABLE + 5], np.int64)}
        self.binary = style % 2 == 1
        self.binary_out = style // 2 % 2 == 1
        self.id = f"r{seed}" if style // 4 % 2 else ""
        self.data = self._bytes(style // 8 % 4, close)

    def _bytes(self, priority: int, close: bool) -> bytes:
        inputs, pieces = [], []
        for name, array in self.feeds.items():
            tensor: dict[str, Any] = {"name": name, "shape": list(array.shape), "datatype": DATATYPES[str(array.dtype)]}
            if self.binary:
                tensor["parameters"] = {"binary_data_size": array.nbytes}
                pieces.append(array.tobytes())
            else:
                tensor["data"] = array.tolist()
            inputs.append(tensor)
        parameters: dict[str, Any] = {"priority": priority} if priority else {}
        if self.timeout_us:
            parameters["timeout"] = self.timeout_us
        if self.binary_out:
            parameters["binary_data_output"] = True
        document = {"inputs": inputs, **({"id": self.id} if self.id else {}), **({"parameters": parameters} if parameters else {})}
        head = json.dumps(document).encode()
        headers = {"content-type": "application/json"}
        if self.binary:
            headers = {"inference-header-content-length": str(len(head)), "content-type": "application/octet-stream"}
        if close:
            headers["connection"] = "close"
        version = f"/versions/{self.version}" if self.version else ""
        return request("POST", f"/v2/models/{self.name}{version}/infer", headers, head + b"".join(pieces))

    def results(self, outcome: Outcome) -> tuple[dict[str, Any], Arrays]:
        """The document and the arrays of an answer."""
        length = int(outcome.headers.get("inference-header-content-length", len(outcome.body)))
        document, rest = json.loads(outcome.body[:length]), outcome.body[length:]
        found: Arrays = {}
        dtypes = {name: np.dtype(dtype) for dtype, name in DATATYPES.items()}
        for output in document["outputs"]:
            dtype, shape = dtypes[output["datatype"]], output["shape"]
            size = output.get("parameters", {}).get("binary_data_size")
            if size is None:
                found[output["name"]] = np.array(output["data"], dtype).reshape(shape)
            else:
                found[output["name"]] = np.frombuffer(rest[:size], dtype).reshape(shape)
                rest = rest[size:]
        if rest:
            raise ValueError(f"{len(rest)} bytes too many")
        return document, found


class Visitor:
    """Lives one script in its process."""

    def __init__(self, story: ServeStory, script: Script) -> None:
        self.story = story
        self.script = script
        self.connection = Connection(story.world)

    def live(self) -> None:
        for act in self.script.acts:
            self.story.begins(self.script.name, act)
            getattr(self, f"do_{act.what}")(*act.numbers)
            self.story.done(self.script.name, act)
        self.connection.close()

    # ---- parts of acts

    def _pause(self, seconds: float) -> None:
        from aspen_mp.system import clock

        clock.sleep(seconds)

    def _name(self, which: int) -> str:
        names = self.story.models
        return names[which % len(names)]

    def _infer(self, infer: Infer, outcome: Outcome, **how: Any) -> None:
        self.story.judge.infer(self.script.name, infer, outcome, **how)
        self._after(outcome)

    def _ask(self, method: str, path: str, body: bytes = b"") -> Outcome:
        outcome = self.connection.ask(request(method, path, {}, body))
        self.story.judge.other(self.script.name, method, path, outcome)
        self._after(outcome)
        return outcome

    def _after(self, outcome: Outcome) -> None:
        if not self.script.retry:  # here: whether connections are kept
            self.connection.close()
        if outcome.how in {"refused", "cut"}:
            self._pause(0.3 + self.story.choices.uniform())

    # ---- acts

    def do_infer(self, which: int, seed: int, style: int, close: int, *_: int) -> None:
        infer = Infer(self._name(which), seed, style, close=close % 7 == 0)
        self._infer(infer, self.connection.ask(infer.data))

    def do_slow(self, which: int, seed: int, style: int, cuts: int, ms: int, *_: int) -> None:
        infer = Infer(self._name(which), seed, style)
        places = tuple(seed // (k + 1) + style for k in range(1 + cuts % 4))
        self._infer(infer, self.connection.ask(infer.data, cuts=places, pause_s=(ms % 1500 + 1) / 1e3), slow=True)

    def do_leave(self, which: int, seed: int, style: int, when: int, ms: int, *_: int) -> None:
        infer = Infer(self._name(which), seed, style)
        leave = ["middle", "before"][when % 2]
        self._infer(infer, self.connection.ask(infer.data, cuts=(seed,), pause_s=(ms % 40) / 1e3, leave=leave))
        self.connection.close()

    def do_deadline(self, which: int, seed: int, style: int, us: int, *_: int) -> None:
        infer = Infer(self._name(which), seed, style, timeout_us=1 + us % 20_000)
        self._infer(infer, self.connection.ask(infer.data))

    def do_burst(self, which: int, seed: int, style: int, many: int, *_: int) -> None:
        from aspen_mp.system import threads

        def work(k: int) -> None:
            connection = Connection(self.story.world)
            for j in range(2):
                spoiled = name == "pick" and (seed + k + j) % 5 == 0
                infer = Infer(name, seed + 31 * k + j, style, spoiled=spoiled)
                self.story.judge.infer(self.script.name, infer, connection.ask(infer.data))
            connection.close()

        name = self._name(which)
        running = [threads.Thread(target=work, args=(k,), name=f"thread {k}") for k in range(2 + many % 6)]
        started = []
        for thread in running:
            try:
                thread.start()
            except RuntimeError:  # none is to be had
                break
            started.append(thread)
        for thread in started:
            thread.join()

    def do_chase(self, which: int, seed: int, style: int, cut: int, ms: int, *_: int) -> None:
        """A large body that may be refused before it is read, and a request behind it whose head comes in two parts."""
        infers = [Infer("wide", seed, 4 + style % 2), Infer(self._name(which), seed, style)]
        outcomes = self.connection.pipelined([infer.data for infer in infers], 1 + cut % 60, (ms % 300 + 1) / 1e3)
        self._judge_all(infers, outcomes)

    def do_pipeline(self, which: int, seed: int, style: int, many: int, *_: int) -> None:
        infers = [Infer(self._name(which + k), seed + k, style + k) for k in range(2 + many % 2)]
        self._judge_all(infers, self.connection.pipelined([infer.data for infer in infers]))

    def _judge_all(self, infers: list[Infer], outcomes: list[Outcome]) -> None:
        """Of requests that were sent together."""
        closed = False
        for infer, outcome in zip(infers, outcomes, strict=True):
            unread = outcome.ended - outcome.began > PATIENCE_NS  # it sent on where it should have read
            if (closed or unread) and outcome.how == "cut":  # an answer said that it is the last one
                outcome.how = "left"
            self._infer(infer, outcome)
            closed = closed or outcome.headers.get("connection") == "close" or outcome.how != "answered"
        self.connection.close()

    def do_wrong(self, which: int, kind: int, *_: int) -> None:
        name = self._name(which)
        path = f"/v2/models/{name}/infer"
        method, path, body, statuses = [
            ("GET", "/nowhere", b"", {404}),
            ("POST", path, b"{}", {400}),
            ("POST", path, b"no json", {400}),
            ("POST", "/v2/models/nobody/infer", b"{}", {404}),
            ("DELETE", "/v2", b"", {405}),
            ("POST", path, json.dumps({"inputs": [{"name": "x", "shape": [2], "datatype": "FP32", "data": [1]}]}).encode(), {400}),
        ][kind % 6]
        outcome = self.connection.ask(request(method, path, {}, body))
        self.story.judge.other(self.script.name, method, path, outcome, statuses)
        self._after(outcome)

    def do_read(self, which: int, kind: int, *_: int) -> None:
        self._ask("GET", READS[kind % len(READS)].format(name=self._name(which)))

    def do_metrics(self, *_: int) -> None:
        self._ask("GET", "/metrics")

    def do_ready(self, *_: int) -> None:
        self._ask("GET", "/v2/health/ready")

    def do_load(self, which: int, kind: int, *_: int) -> None:
        if not self.story.settings.repository:
            return
        if kind % 3 == 0:
            self._ask("POST", "/v2/repository/index")
        else:
            self._ask("POST", f"/v2/repository/models/{self._name(which)}/load")

    def do_unload(self, which: int, *_: int) -> None:
        if self.story.settings.repository:
            name = self._name(which)
            self._ask("POST", f"/v2/repository/models/{name}/unload")

    def do_think(self, ms: int, *_: int) -> None:
        self._pause((ms % 2500 + 1) / 1e3)

    def do_reconnect(self, *_: int) -> None:
        self.connection.close()
