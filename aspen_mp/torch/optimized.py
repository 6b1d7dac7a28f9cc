"""`optimize`: a module's `forward` in a runtime, with everything else of the module as it was."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import CodeType
from typing import Any, Final

import torch
from torch import nn

from aspen_mp.torch import backend
from aspen_mp.torch.compiled import Options, start_early
from aspen_mp.torch.work import Meter

_MOST_SIZES: Final = 1024
_NO_SIZE: Final = ""


def optimize(module: nn.Module, options: Options, dynamic: bool | None) -> None:
    """See `aspen_mp.optimize`."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"optimize takes a torch.nn.Module, not {type(module).__name__}")
    backend.check_devices([*module.parameters(), *module.buffers()])
    module.forward = Forward(module, options, dynamic)


def original(module: nn.Module) -> Callable[..., Any]:
    """The `forward` that the module had before it was optimized."""
    forward: Any = module.__dict__.get("forward")
    if isinstance(forward, Forward):
        forward = forward.before
    return forward if forward is not None else type(module).forward.__get__(module)  # type: ignore[no-any-return]


class Forward:
    """`forward` of an optimized module. It travels with the module in copies and pickles."""

    def __init__(self, module: nn.Module, options: Options, dynamic: bool | None, before: Callable[..., Any] | None = None) -> None:
        """`before`: a `forward` that the module itself had, and not its class."""
        self.module = module
        self.options = options
        self.dynamic = dynamic
        found = module.__dict__.get("forward")
        self.before: Callable[..., Any] | None = found.before if isinstance(found, Forward) else found if before is None else before
        functools.update_wrapper(self, type(module).forward)
        self.__signature__ = inspect.signature(type(module).forward.__get__(module) if self.before is None else self.before)
        self._compiled: Callable[..., Any] | None = None
        self._meter = Meter()
        self._small: dict[Any, bool] = {}
        """Sizes of arguments, and whether a call with these is of little work."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self.module
        if torch.compiler.is_compiling() or module.training:
            return original(module)(*args, **kwargs)
        try:
            sizes = tuple([value.shape for value in args])  # the usual case: tensors, by their places
        except AttributeError:
            sizes = _sizes_of(args)
        if kwargs:
            sizes = _sizes_of([*sizes, kwargs]) if sizes is not None else None
        small = self._small.get(sizes)
        if small:
            plain = type(module).forward.__get__(module) if self.before is None else self.before
            return plain(*args, **kwargs)
        if _is_transformed():
            return original(module)(*args, **kwargs)
        if torch.is_grad_enabled() and backend.needs_gradients([*_tensors(args), *_tensors(kwargs)]):
            backend.warn_of_gradients()
            return original(module)(*args, **kwargs)
        if small is not None or sizes is None or not self.options.by_work:
            return self._run(*args, **kwargs)
        result, small = self._meter.is_small(lambda: self._run(*args, **kwargs))
        if len(self._small) == _MOST_SIZES:
            self._small.clear()
        self._small[sizes] = small
        return result

    @property
    def __code__(self) -> CodeType:
        """That of the module's own `forward`, which `torch.export` asks for."""
        return inspect.unwrap(original(self.module)).__code__  # type: ignore[no-any-return]

    @property
    def _run(self) -> Callable[..., Any]:
        if self._compiled is None:
            start_early(self.options, self.module.parameters())  # Dynamo traces for a second or more
            backend = functools.partial(_backend, self.options, self._meter)
            self._compiled = torch.compile(original(self.module), backend=backend, dynamic=self.dynamic)
        return self._compiled

    def __deepcopy__(self, memo: dict[int, Any]) -> Forward:
        return Forward(memo.get(id(self.module), self.module), self.options, self.dynamic, self.before)

    def __reduce__(self) -> tuple[Any, ...]:
        return Forward, (self.module, self.options, self.dynamic, self.before)


def _is_transformed() -> bool:
    """Whether the call is one of `torch.func.grad`, `vmap` and their like, or of forward-mode differentiation: PyTorch traces these."""
    return torch._C._functorch.peek_interpreter_stack() is not None or torch.autograd.forward_ad._current_level >= 0


def _backend(options: Options, meter: Meter, module: Any, example_inputs: Any) -> Any:
    return backend.compile_module(module, example_inputs, options, recompute=True, meter=meter)


def _sizes_of(value: Any) -> Any:
    """What decides how much work a call is: the sizes of tensors, and whole numbers. None where an argument is of another kind."""
    if isinstance(value, torch.Tensor):
        return value.shape
    if isinstance(value, tuple | list):
        found = tuple([_sizes_of(item) for item in value])
        return None if None in found else found
    if isinstance(value, dict):
        return _sizes_of([*value, *value.values()])
    return value if isinstance(value, int | str) else _NO_SIZE if value is None or isinstance(value, float) else None


def _tensors(value: Any) -> list[Any]:
    """Tensors among arguments, in lists, tuples and dicts too."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, tuple | list):
        return [found for item in value for found in _tensors(item)]
    if isinstance(value, dict):
        return [found for item in value.values() for found in _tensors(item)]
    return []
