"""Images of ever new sizes in little memory: plans that nobody uses go before a request is refused."""

from __future__ import annotations

import contextlib
import gc
import weakref
from pathlib import Path

import numpy as np
import pytest
import small_models

import aspen_mp
from aspen_mp.shm import segments
from aspen_mp.shm.errors import AspenError, ResourceLimitError
from aspen_mp.shm.segments import Segment


def test_sixty_sizes_in_a_few_mebibytes(tmp_path: Path) -> None:
    profile = tmp_path / "small.toml"
    profile.write_text("[models]\nplans_mib = 2\n\n[cache]\nfolder = 'off'\n")
    model = small_models.conv_chain(3, 8, 8)
    rng = np.random.default_rng(5)
    sizes = [(rows, rows + 3) for rows in range(40, 100)]
    images = [rng.standard_normal((1, 8, *size), np.float32) for size in sizes]
    for value in (*model.graph.input, *model.graph.output):
        for axis, name in ((2, "rows"), (3, "columns")):
            value.type.tensor_type.shape.dim[axis].dim_param = name
    with aspen_mp.Runtime(workers=2, profile=profile) as runtime:
        loaded = runtime.load(model)
        first = [loaded.run({"x": image}) for image in images]
        (state,) = runtime.status()["models"]
        assert 1 <= len(state["plans"]) < len(sizes) / 2
        assert len(state["plans"]) == 1 or sum(plan["bytes"] for plan in state["plans"]) <= 2 << 20
        again = [loaded.run({"x": image}) for image in images[:20:4]]  # whose plans have gone
        for one, other in zip(first[:20:4], again, strict=True):
            for name, values in one.items():
                assert values.tobytes() == other[name].tobytes()


def test_refused_requests_keep_no_inputs() -> None:
    """Whoever goes on after the planner process has refused one has its memory back at once, not when the garbage collector comes."""
    model = small_models.mlp()
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "columns"
    with aspen_mp.Runtime(workers=1) as runtime:
        loaded = runtime.load(model)
        gc.collect()
        gc.disable()
        try:
            for columns in (17, 18):
                x = np.zeros((4, columns), np.float32)
                gone = weakref.ref(x)
                with contextlib.suppress(AspenError):
                    loaded.run({"x": x})
                    pytest.fail("it was not refused")
                del x
                assert gone() is None
        finally:
            gc.enable()


def test_refusal_names_the_limit_that_is_met_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "memory_left", lambda: (1 << 20, "the memory limit of control group /some/group, 2.0 GiB"))
    with pytest.raises(ResourceLimitError, match=r"arena segment: 4.0 MiB .* 1.0 MiB .* group /some/group.*raise that limit.*plans_mib"):
        Segment.create("arena", 4 << 20)
