"""Histories that failed once: seed, and what was wrong. Changes of the simulation may lead a seed elsewhere."""

from __future__ import annotations

from typing import Final

SEEDS: Final = {
    90: "a client's reading thread met a session that was not whole",
    25: "loads that the end of a runtime cuts off failed with 'loading was cancelled'",
    95: "RuntimeError where a pool could have no thread",
    135: "a model's number was used in the next runtime",
    178: "RuntimeError where a lost runtime was replaced and no thread was to be had",
    177: "a planning child counted weights as known that a failed publication had given up",
    1166: "the answer of such a child ended the planner process",
    7: "memory of the simulation that was given back twice",
    40: "a worker that was killed before its first word was never reaped",
    14: "a worker without the descriptor of a file read what it had not mapped",
    60251: "cancelling a request of several stages that had just ended raised an error",
    60207: "a thread looked at all stages of a model while another one added one",
    60004: "descriptors of arenas leaked",
    60132: "a run directory was removed while a runtime started",
}
OF_SERVERS: Final = [
    (4, "--calm", "the first result of a session was told to nobody, and its request waited for ever"),
    (6, "--calm", "the answer to a request that was refused before its body was read got lost"),
    (184, "", "bytes of a body counted as headers of the next request"),
    (1083, "--users 6 --acts 30", "a load at the end of a server waited for the whole grace period"),
    (400158, "--users 4", "a configuration that could not be opened for want of descriptors was never read again"),
    (429, "", "a version that could not be loaded for want of descriptors was given up"),
    (56, "--users 5 --acts 20", "a supervisor span for ever, as a model's file had changed when the runtime was lost"),
]
"""The same of servers: seed, options of the command, and what was wrong."""
