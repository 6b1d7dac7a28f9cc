"""Every public name of onnxruntime is here: it works, does nothing, or raises and says what to do instead, and the table says which."""

from __future__ import annotations

import inspect
from pathlib import Path

import onnxruntime
import pytest

import aspen_mp
from aspen_mp import errors
from aspen_mp.compat import onnxruntime as compat
from aspen_mp.compat.onnxruntime import refusals, surface

LEFT_OVER = "import_capi_exception"  # of how its module starts


def test_the_module_has_every_public_name() -> None:
    # No modules: which of them are there depends on what this process has imported before.
    theirs = {name for name, value in vars(onnxruntime).items() if not (name.startswith("_") or inspect.ismodule(value))} - {LEFT_OVER}
    missing = sorted(name for name in theirs if not hasattr(compat, name))
    assert not missing
    both = sorted(name for name in theirs - {"version", "package_name", "cuda_version"} if not hasattr(aspen_mp, name))
    assert not both


@pytest.mark.parametrize("name", surface.CLASSES)
def test_classes_have_every_public_member(name: str) -> None:
    theirs = {member for member in dir(getattr(onnxruntime, name)) if not member.startswith("_")}
    assert not theirs - set(dir(getattr(compat, name)))


def test_enumerations_have_the_same_numbers() -> None:
    seen = 0
    for name in dir(onnxruntime):
        kind = getattr(onnxruntime, name)
        if not hasattr(kind, "__members__"):
            continue
        ours = {key: int(value) for key, value in getattr(compat, name).__members__.items()}
        assert {key: int(value) for key, value in kind.__members__.items()} == ours, name
        seen += 1
    assert seen >= 8


def test_refusals_say_what_to_do() -> None:
    for name, advice in refusals.ADVICE.items():
        kind = getattr(compat, name)
        for use in (lambda kind=kind: kind(), lambda kind=kind: kind.anything):
            with pytest.raises(errors.UnsupportedModelError) as raised:
                use()
            assert advice in str(raised.value)
        assert not hasattr(kind, "anything_else")
    with pytest.raises(errors.UnsupportedModelError, match="execution providers"):
        compat.register_execution_provider_library("mine", "mine.so")
    for call in ("add_provider_for_devices", "register_custom_ops_library", "set_ep_context_data_read_func"):
        method = getattr(aspen_mp.SessionOptions(), call)
        with pytest.raises(errors.UnsupportedModelError):
            method(*["x"] * len(inspect.signature(method).parameters))
    raising = [name for name, state, _ in surface.rows() if state == "raises"]
    assert len(raising) == len(refusals.ADVICE) + 2 + 3


def test_the_table_is_the_code_s() -> None:
    table = Path(surface.__file__).with_name("SURFACE.md").read_text(encoding="utf-8")
    assert table == surface.table(), "run: python -m aspen_mp.compat.onnxruntime.surface > aspen_mp/compat/onnxruntime/SURFACE.md"


def test_functions_of_the_module() -> None:
    assert compat.get_all_providers()[-1] == onnxruntime.get_all_providers()[-1] == "CPUExecutionProvider"
    assert set(onnxruntime.get_all_providers()) <= set(compat.get_all_providers())
    assert compat.get_device() == onnxruntime.get_device() == "CPU"
    assert compat.has_collective_ops() == onnxruntime.has_collective_ops()
    assert compat.get_version_string() == compat.__version__
    assert "Build Info" in compat.get_build_info()
    assert aspen_mp.__version__ in compat.get_build_info()
    for module in (compat, onnxruntime):
        assert module.set_seed(3) is None
        assert module.set_default_logger_severity(3) is None
        assert module.disable_telemetry_events() is None
        with pytest.raises((RuntimeError, ValueError)):
            module.set_default_logger_severity(7)
    compat.seeds = None  # the module takes attributes as any other does
    del compat.seeds


@pytest.fixture(autouse=True)
def _no_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    from aspen_mp.compat.onnxruntime import seeds

    monkeypatch.setattr(seeds, "_seed", None)
