"""PyTorch modules in a runtime: `optimize`, `explain`, and the backend of `torch.compile`.

PyTorch is an extra, ``pip install 'aspen-mp[torch]'``, and is imported when one of these functions is called.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from aspen_mp import Runtime
    from aspen_mp.torch.explanation import Explanation

__all__ = ["compile_ahead", "explain", "load_ahead", "optimize"]

Module = TypeVar("Module")


def optimize(
    module: Module,
    *,
    runtime: Runtime | str | None = None,
    precision: str = "f32",
    release: bool = False,
    dynamic: bool | None = None,
    min_block_size: int | None = None,
) -> Module:
    """Run the `forward` of a PyTorch module in a runtime, in place.

    Hooks, `state_dict`, parameters and submodules stay. Changed parameters are noticed at the next call. Of changes that PyTorch does not
    count, through ``.data`` or a numpy array for example, those of less than a third of a parameter may go unnoticed.
    ``module.train()`` gives PyTorch back, ``module.eval()`` the runtime. Calls whose inputs need gradients run in PyTorch, with one
    warning. Where parameters need gradients, PyTorch runs a graph again when they are computed.

    Args:
        module: A `torch.nn.Module` on the CPU.
        runtime: A `Runtime`, the name of one that `aspen-mp launch` started, or None for one of the process's own.
        precision: "f32" or "bf16", as of `Runtime.load`.
        release: Whether parameters and buffers give up their own memory once they have been loaded. They become views of the one copy
            that all processes of the runtime share. A process that writes to them gets memory of its own for the pages that it writes to.
        dynamic: As of `torch.compile`. None: sizes are taken to vary once they have varied.
        min_block_size: Graphs of fewer operators stay with PyTorch. None: so do calls of so little work that PyTorch is done before a
            runtime has the request, as those of small perceptrons.

    Returns:
        The module itself.

    Raises:
        ImportError: PyTorch is not installed.
        TypeError: `module` is no module.
        UnsupportedModelError: A tensor of the module is not on the CPU or has no values, or the module is one of TorchScript.
    """
    _need_torch()
    from aspen_mp.torch import compiled, optimized

    options = compiled.Options(runtime, precision, min_block_size, type(module).__name__, release)
    optimized.optimize(module, options, dynamic)
    return module


def explain(module: Any, *inputs: Any, **keywords: Any) -> Explanation:
    """Say what of a PyTorch module would run in a runtime, by running it once in PyTorch, in evaluation mode and without gradients.

    Args:
        module: A `torch.nn.Module` or a function.
        *inputs: Its arguments.
        **keywords: Its arguments by name.

    Returns:
        A table, which `print` shows: for each operator its source line, where it runs, and why not in aspen_mp.

    Raises:
        ImportError: PyTorch is not installed.
        UnsupportedModelError: As of `optimize`.
    """
    _need_torch()
    from aspen_mp.torch import explanation

    return explanation.explain(module, inputs, keywords)


def compile_ahead(module: Any, inputs: Any, path: str | os.PathLike[str], *, dynamic: Mapping[str, Any] | None = None) -> None:
    """Write a PyTorch module to an ONNX file, which `Runtime.load` runs without PyTorch and without the module's code.

    Inputs are called like the arguments of `forward`; of a list or dict of tensors, each is called after the argument and its place or
    key: "pair_0". Results are called by their keys in a dict or a dataclass, "last_hidden_state" for example. A single result is
    called "output", those of a tuple "output_0", "output_1", and so on. Where an input has the name already, ".result" follows.
    Numbers among the arguments are fixed, and results that are no tensors are left out.

    Args:
        module: A `torch.nn.Module` on the CPU, in evaluation mode.
        inputs: Example arguments: a tensor, a tuple of arguments, or a dict of arguments by name. Their sizes are fixed in the file, except
            those that `dynamic` names.
        path: The file to write. Weights of more than 1 GiB lie beside it, in a file with ".data" appended to its name.
        dynamic: Sizes that vary: {argument: {axis: name}}, for example {"input_ids": {0: "batch", 1: "sequence"}}. For an argument that is
            a list or dict of tensors, a list or dict of these. Examples need a size of 2 or more there.

    Raises:
        ImportError: PyTorch is not installed.
        TypeError: `module` is no module.
        ValueError: The module is in training mode, or `dynamic` names what is not there.
        UnsupportedModelError: An operator has no form in ONNX, the module changes its buffers, or a tensor is not on the CPU.
        torch._dynamo.exc.UserError: The module cannot be traced with these sizes; PyTorch's message says why.
    """
    _need_torch()
    from pathlib import Path

    from aspen_mp.torch.ahead import export

    export.compile_ahead(module, inputs, Path(path), dynamic)


def load_ahead(path: str | os.PathLike[str], *, runtime: Runtime | str | None = None, precision: str = "f32") -> Callable[..., Any]:
    """Load what `compile_ahead` wrote.

    Args:
        path: The file.
        runtime: As of `optimize`.
        precision: As of `Runtime.load`.

    Returns:
        A function that takes the module's arguments and returns its results. Results that are sizes of arguments are None.

    Raises:
        ImportError: PyTorch is not installed.
        ModelParseError: The file is no ONNX model, or was written by another program. Or the module takes or returns objects of a class
            that this program has not imported.
    """
    _need_torch()
    from pathlib import Path

    from aspen_mp.torch.ahead import load

    return load.load_ahead(Path(path), runtime, precision)


def _need_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError as missing:
        raise ImportError(
            "this needs PyTorch. Install it: pip install 'aspen-mp[torch]'. The build without CUDA is enough: it comes from the index that "
            "PyTorch's own site names"
        ) from missing
