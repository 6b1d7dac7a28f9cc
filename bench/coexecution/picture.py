"""Shared by the pictures of several networks."""

from __future__ import annotations

from aspen_mp.bench.peers.rounds import OURS

_SHADES = {
    "aspen-mp-scheduled": "tab:purple",
    "onnxruntime": "tab:orange",
    "onnxruntime-quiet": "peru",
    "onnxruntime-shared": "gold",
    "openvino": "tab:green",
    "openvino-streams": "yellowgreen",
}


def shade(label: str) -> str:
    """The same colour for an engine in every picture; our variants are blue."""
    return _SHADES.get(label, "tab:blue" if label == OURS else "lightskyblue")
