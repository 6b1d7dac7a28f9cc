"""`optimize`: a module's `forward` in a runtime, with everything else of the module as it was."""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable
from types import CodeType
from typing import Any, Final

import torch
from torch import nn

from aspen_mp.shm.errors import UnsupportedModelError
from aspen_mp.torch import backend
from aspen_mp.torch.compiled import MOST_VARIANTS, Options, start_early
from aspen_mp.torch.layers import recurrent
from aspen_mp.torch.work import Meter

_MOST_SIZES: Final = 1024
_NO_SIZE: Final = ""


def optimize(module: nn.Module, options: Options, dynamic: bool | None) -> None:
    """See `aspen_mp.optimize`."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"optimize takes a torch.nn.Module, not {type(module).__name__}")
    check(module)
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if tensor.is_meta:
            raise UnsupportedModelError(
                f"tensor {name!r} of {type(module).__name__} is on device meta and has no values. Load the weights before you optimize the "
                "module: module.to_empty(device='cpu'), then module.load_state_dict(weights)"
            )
    module.forward = Forward(module, options, dynamic)


def check(module: nn.Module) -> None:
    """UnsupportedModelError where Dynamo cannot trace the module, or a tensor of it is on another device."""
    if isinstance(module, torch.jit.ScriptModule):
        raise UnsupportedModelError(
            f"{type(module).__name__} is a module of TorchScript, which PyTorch's compiler does not trace. Give the module that it was "
            "made of"
        )
    backend.check_devices([*module.parameters(), *module.buffers()])


def region() -> dict[str, Any]:
    """Arguments of `torch.compile` for a module of ours. Its graphs are counted apart from those of other modules with the same code, and
    it has more of them than PyTorch's limit of 8. Older versions of PyTorch know neither argument."""
    known = inspect.signature(torch.compile).parameters
    return {name: value for name, value in (("recompile_limit", MOST_VARIANTS), ("isolate_recompiles", True)) if name in known}


def compiled(module: nn.Module | Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """A module or a function as `torch.compile` makes it of these options."""
    if not isinstance(module, nn.Module):
        return torch.compile(module, **options, **region())  # type: ignore[no-any-return]
    function = recurrent.kept_whole(module, original(module))
    return recurrent.allowed(module, torch.compile(function, **options, **region()))


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
            sizes = sizes_of(args)
        if kwargs:
            sizes = sizes_of([*sizes, kwargs]) if sizes is not None else None
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
            options = {"of": self.options, "meter": self._meter, "traces": Counter()}
            self._compiled = compiled(self.module, backend=_backend, options=options, dynamic=self.dynamic)
        return self._compiled

    def __deepcopy__(self, memo: dict[int, Any]) -> Forward:
        return Forward(memo.get(id(self.module), self.module), self.options, self.dynamic, self.before)

    def __reduce__(self) -> tuple[Any, ...]:
        return Forward, (self.module, self.options, self.dynamic, self.before)


def _is_transformed() -> bool:
    """Whether the call is one of `torch.func.grad`, `vmap` and their like, or of forward-mode differentiation: PyTorch traces these."""
    return torch._C._functorch.peek_interpreter_stack() is not None or torch.autograd.forward_ad._current_level >= 0


# Of backends without a name Dynamo keeps weak references to parameters, and `torch.utils.swap_tensors` refuses these.
@torch._dynamo.register_backend(name="aspen_mp_optimize", tags=("experimental",))  # type: ignore[untyped-decorator]
def _backend(module: Any, example_inputs: Any, *, options: dict[str, Any]) -> Any:
    """Options: "of": the module's; "meter": what adds up the work of its calls; "traces": how often each piece of its code was traced."""
    of, traces = options["of"], options["traces"]
    traced = torch._guards.CompileContext.current_compile_id()
    if traced is not None and traced.frame_id is not None:
        traces[traced.frame_id] += 1
        _warn_of_limits(of.name, traces[traced.frame_id], traced.frame_compile_id or 0)
    return backend.compile_module(module, example_inputs, of, recompute=True, meter=options["meter"])


def _warn_of_limits(name: str, mine: int, others: int) -> None:
    """Say that a piece of code will not be traced again: `mine` times it was for one module, `others` before in the whole process."""
    config = torch._dynamo.config
    if mine >= region().get("recompile_limit", config.recompile_limit) or others + 1 >= config.accumulated_recompile_limit:
        backend.once(
            "limits",
            f"aspen_mp.optimize: PyTorch's compiler has traced the code of {name} {max(mine, others + 1)} times and will not do so again. "
            "Calls with other sizes or values of arguments run in eager PyTorch",
        )


def sizes_of(value: Any) -> Any:
    """What decides how much work a call is: the sizes of tensors, and whole numbers. None where an argument is of another kind."""
    if isinstance(value, torch.Tensor):
        return value.shape
    if isinstance(value, tuple | list):
        found = tuple([sizes_of(item) for item in value])
        return None if None in found else found
    if isinstance(value, dict):
        return sizes_of([*value, *value.values()])
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
