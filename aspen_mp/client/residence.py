"""Where a handle's model is loaded: in a runtime, and after that was lost in the next one."""

from __future__ import annotations

from aspen_mp.client.link import Link
from aspen_mp.client.model_source import ModelSource
from aspen_mp.client.requests.stage_tree import StageTree
from aspen_mp.client.restart import MOST_LOSSES
from aspen_mp.client.session import Session
from aspen_mp.client.signature import Signature
from aspen_mp.control.wire import protocol
from aspen_mp.shm.bindings import _tally
from aspen_mp.shm.errors import RuntimeLost
from aspen_mp.system import threads


class Residence:
    """A model in the runtime that a link leads to. Any thread may use it.

    Attributes:
        link: The connection.
        source: What the model is loaded from again; None: it cannot be.
        loaded: What the runtime has said of the model.
        address: Of the runtime in which the model has its number.
        own: The model's stages in this process; None before the first use.
    """

    def __init__(
        self,
        way: Link,
        loaded: protocol.Loaded,
        signature: Signature,
        requests: _tally.Requests,
        source: ModelSource | None,
        place: Session | str,
    ) -> None:
        """`requests`: counts those of the handle. `place`: the session in which this process has loaded the model, or the address of the
        runtime where another process has. Its number means nothing in any other one."""
        self.link = way
        self.source = source
        self.loaded = loaded
        self.address = place if isinstance(place, str) else place.welcome.address
        self.own: StageTree | None = None
        self._signature = signature
        self._requests = requests
        self._lock = threads.Lock()
        if not isinstance(place, str):
            self.own = self._new_tree(place)

    @property
    def number(self) -> int:
        """What the runtime at `address` calls the model."""
        return self.loaded.model

    def tree(self, until: float | None = None) -> StageTree:
        """The model's stages in a runtime that is there. `until`: as of `Link.session`. RuntimeLost where there is none."""
        own = self.own
        if own is None:
            return self._take_over(until)
        if self.source is not None and self.is_leaving(own):
            return self._load_again(self.source, until)
        return own

    def is_leaving(self, own: StageTree) -> bool:
        """Whether new requests have to go to another runtime."""
        return own.session.lost or (own.session.stopping is not None and self.link.revives)

    def goes_on(self, lost: RuntimeLost, losses: int) -> bool:
        """Whether a request is asked again after the runtime was lost. `losses`: how often workers had begun it, this time included."""
        return self.source is not None and lost.wait_s is None and losses < MOST_LOSSES and self.link.revives

    def _load_again(self, source: ModelSource, until: float | None = None) -> StageTree:
        """The first use since the runtime was lost."""
        session = self.link.session(until)  # not under the lock, which who waits for less long may need
        with self._lock:
            own = self.own
            if own is None or own.session is not session:
                self.loaded = source.load(session, None)
                self.address = session.welcome.address
                self.own = self._new_tree(session)
                if own is not None:
                    own.retire()
            assert self.own is not None
            return self.own

    def _take_over(self, until: float | None) -> StageTree:
        """The first use in this process of what another one has loaded."""
        session = self.link.session(until)
        if session.welcome.address != self.address:
            if self.source is None:
                raise RuntimeLost(
                    f"the runtime in which model {self._signature.model!r} was loaded has ended; load the model again (handles that other "
                    "processes got do that by themselves only for models that were loaded from a file)"
                )
            return self._load_again(self.source, until)
        with self._lock:
            if self.own is None:
                session.adopt(self.number)
                self.own = self._new_tree(session)
            return self.own

    def _new_tree(self, session: Session) -> StageTree:
        told = self._signature
        self._requests.counted_in(session.tally.row(self.number))
        return StageTree(session, self.number, told.model, told.output_names, told.keys, told.codes, fixed=told.fixed)

    def forked(self, requests: _tally.Requests) -> None:
        """In a forked child: plans and regions are the parent's. So is a runtime that it started: that is not started again from here."""
        self.own = None
        self.source = self.source if self.link.revives else None
        self._requests = requests
        self._lock = threads.Lock()

    def travels(self) -> tuple[str, protocol.Loaded, tuple[str, float] | None, ModelSource | None]:
        """What an unpickled handle needs to know: address, description, name of the runtime, source."""
        named = self.link.travels
        if self.source is not None and named is None:
            self._load_again(self.source)  # where the runtime was lost: what travels is the new one's
        source = self.source if named is not None and self.source is not None and self.source.travels else None
        return self.address, self.loaded, named, source
