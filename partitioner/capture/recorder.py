"""Run the forward once on fake tensors and write down every operation it does."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
)
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from partitioner.capture.fakes import FakeWeights
from partitioner.capture.frames import Frame, user_source
from partitioner.capture.records import Call, DeviceRef, Path, Recording, Ref, SpanRecord
from partitioner.capture.tree import Opaque, flatten, is_plain, map_tree, template
from partitioner.errors import DataDependentError
from partitioner.graph import Region, TensorMeta

__all__ = ["LeafNeeded", "Recorder"]

READS = frozenset(
    "item tolist numpy __bool__ __int__ __float__ __index__ __complex__ __array__ "
    "__contains__ is_nonzero equal allclose".split()
)
"""Functions that hand a tensor's values to Python."""


class LeafNeeded(BaseException):
    """The module at ``path`` cannot be recorded through; it must become a leaf.

    Not an ``Exception``, so that a model's own ``except`` does not swallow it.
    """

    def __init__(self, path: str, reason: str, source: str) -> None:
        super().__init__(f"{path or 'the root'}: {reason} ({source})")
        self.path = path
        self.reason = reason
        self.source = source


class Recorder(TorchFunctionMode):
    """Records torch functions and module calls of one forward.

    Args:
        model: The module whose weights are fakes at the moment.
        fakes: Those fakes.
        leaves: Paths of modules that must not be recorded through.
    """

    def __init__(
        self, model: nn.Module, fakes: FakeWeights, leaves: frozenset[str]
    ) -> None:
        super().__init__()
        self.fakes = fakes
        self.storages: dict[int, int] = {}
        self.leaves = leaves
        self.paths = {id(module): path for path, module in model.named_modules()}
        self.recording = Recording(calls=[], spans=[], output=None)
        self.values: dict[int, Ref] = {}
        self.keep: list[Any] = []  # ids are only unique while the object lives
        self.weight_storages = {
            self.storage_of(tensor): fakes.names[id(tensor)]
            for tensor in (*model.parameters(), *model.buffers())
        }
        self.saved_storages: set[int] = set()
        self.calls_of: dict[str, int] = {}
        self.frames: list[Frame] = [Frame("", 0, None)]
        self.current: Call | None = None
        self.random: set[int] = set()  # ids of real tensors that hold random numbers
        self.in_leaf = False

    # -- values -----------------------------------------------------------------

    def storage_of(self, tensor: torch.Tensor) -> int:
        """Return a small number for the tensor's memory."""
        key = tensor.untyped_storage()._cdata
        return self.storages.setdefault(key, len(self.storages))

    def meta_of(self, tensor: torch.Tensor) -> TensorMeta:
        """Return the facts kept about ``tensor``."""
        return TensorMeta(
            shape=tuple(tensor.shape),
            dtype=tensor.dtype,
            requires_grad=tensor.requires_grad,
            storage=self.storage_of(tensor),
            order=self._unrecorded(memory_order, tensor),
        )

    def _unrecorded(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call torch for our own purposes."""
        before, self.in_leaf = self.in_leaf, True
        try:
            return function(*args)
        finally:
            self.in_leaf = before

    def know(self, tensor: torch.Tensor, ref: Ref) -> None:
        """Remember which result ``tensor`` is."""
        self.values[id(tensor)] = ref
        self.keep.append(tensor)

    def ref(self, tensor: torch.Tensor) -> Ref:
        """Return the result that ``tensor`` is; weights and constants appear here."""
        known = self.values.get(id(tensor))
        if known is not None:
            return known
        name = self.fakes.names.get(id(tensor))
        if name is not None:
            return self._add_weight(tensor, name)
        if isinstance(tensor, FakeTensor):
            raise LeafNeeded(
                self.frames[-1].path,
                "a tensor appeared that no recorded operation made",
                user_source(),
            )
        return self._add_constant(tensor)

    def _add_weight(self, tensor: torch.Tensor, name: str) -> Ref:
        call = Call(id=name, kind="weight", target=name)
        return self._append_single(call, tensor)

    def _add_constant(self, tensor: torch.Tensor) -> Ref:
        if tensor.requires_grad:
            message = "the forward uses a trainable tensor that is not registered"
            raise DataDependentError(
                message,
                hint="make it an nn.Parameter of a registered module",
                module_path=self.frames[-1].path,
                source=user_source(),
            )
        number = sum(call.kind == "constant" for call in self.recording.calls)
        call = Call(
            id=f"constant:{number}",
            kind="constant",
            target=f"_constants.{number}",
            tensor=tensor,
            module=self.frames[-1].path,
            source=user_source(),
        )
        return self._append_single(call, tensor)

    def add_input(self, tensor: torch.Tensor, name: str) -> None:
        """Register a fake input under ``name``."""
        call = Call(id=f"input:{name}", kind="input", target=name)
        self._append_single(call, tensor)

    def _append_single(self, call: Call, tensor: torch.Tensor) -> Ref:
        call.outputs = [((), self.meta_of(tensor))]
        self.recording.calls.append(call)
        ref = Ref(len(self.recording.calls) - 1)
        self.know(tensor, ref)
        return ref

    def encode(self, tree: Any) -> Any:
        """Replace tensors in an argument tree by references."""
        device = self.fakes.device

        def leaf(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return self.ref(value)
            if isinstance(value, torch.device) and value == device:
                return DeviceRef()
            return value

        return map_tree(leaf, tree)

    # -- operations ---------------------------------------------------------------

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run ``func``; write it down if it makes, changes or draws anything."""
        kwargs = kwargs or {}
        if self.in_leaf:
            return func(*args, **kwargs)
        tensors = tensors_in((args, kwargs))
        name = function_name(func)
        if name in READS:
            self._check_read(name, tensors)
        if name in QUERIES:
            return func(*args, **kwargs)
        call = self._begin(func, name, args, kwargs)
        try:
            versions = [tensor._version for tensor in tensors]
            out = func(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise self._leaf_needed(f"{name} needs the values of a tensor") from error
        finally:
            self.current = None
        changed = [t for t, v in zip(tensors, versions) if t._version != v]
        return self._finish(call, out, changed, tensors)

    def _begin(
        self,
        func: Callable[..., Any],
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Call:
        """Return the call to be recorded, with arguments as they are before it."""
        kind, target, args = as_target(func, name, args)
        frame = self.frames[-1]
        call = Call(
            id=frame.next_id(),
            draw_key=frame.draw_key(name),
            kind=kind,
            target=target,
            args=self.encode(args),
            kwargs=self.encode(kwargs),
            module=frame.path,
            source=user_source(),
            region=current_region(),
        )
        self.current = call
        return call

    def _finish(
        self,
        call: Call,
        out: Any,
        changed: list[torch.Tensor],
        tensors: list[torch.Tensor],
    ) -> Any:
        """Append ``call`` if it had a tensor result or an effect; return its result."""
        has_result = bool(tensors_in(out))
        if not (has_result or changed or call.draws):
            self.frames[-1].operations -= 1
            return out
        call.writes = tuple(sorted({self.storage_of(t) for t in changed}))
        self.recording.calls.append(call)
        index = len(self.recording.calls) - 1
        written = {id(tensor) for tensor in changed}
        tainted = call.draws or any(id(tensor) in self.random for tensor in tensors)

        def fresh(value: Any) -> Any:
            return self._distinct(value, written)

        if has_result:
            out = map_tree(fresh, out)
            for path, value in flatten(out):
                if isinstance(value, torch.Tensor):
                    call.outputs.append((path, self.meta_of(value)))
                    self.know(value, Ref(index, path))
                    if tainted and not is_fake(value):
                        self.random.add(id(value))
        return out

    def _distinct(self, value: Any, written: set[int]) -> Any:
        """Make a result that is one of the known tensors an object of its own.

        Functions that do nothing (dropout in eval mode, ``contiguous``) return their
        argument; a later reader of the argument must not become a reader of the
        function, since in the other mode they are two tensors.
        """
        if not isinstance(value, torch.Tensor) or id(value) in written:
            return value
        if id(value) in self.values or id(value) in self.fakes.names:
            return self._unrecorded(alias, value)
        return value

    def _check_read(self, name: str, tensors: list[torch.Tensor]) -> None:
        if any(map(is_fake, tensors)):
            raise self._leaf_needed(
                f"Python reads the value of a tensor ({name.strip('_')})"
            )
        if any(id(tensor) in self.random for tensor in tensors):
            self.recording.draw_reads.append((self.frames[-1].path, user_source()))

    def _leaf_needed(self, reason: str) -> LeafNeeded:
        return LeafNeeded(self.frames[-1].path, reason, user_source())

    def call_custom(
        self,
        cls: type,
        apply: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Record a custom autograd function as one operation: its backward counts."""
        if self.in_leaf:
            return apply(*args, **kwargs)
        tensors = tensors_in((args, kwargs))
        call = self._begin(custom_function(cls), cls.__name__, args, kwargs)
        versions = [tensor._version for tensor in tensors]
        self.in_leaf = True
        try:
            out = apply(*args, **kwargs)
        finally:
            self.current, self.in_leaf = None, False
        changed = [t for t, v in zip(tensors, versions) if t._version != v]
        return self._finish(call, out, changed, tensors)

    # -- modules ------------------------------------------------------------------

    def call_module(
        self, original: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any
    ) -> Any:
        """Record a module call: as one call for a leaf, as a span otherwise."""
        path = self.paths.get(id(module))
        if self.in_leaf or path is None or (path == "" and len(self.frames) == 1):
            return original(module, *args, **kwargs)
        number = self.calls_of.get(path, 0)
        self.calls_of[path] = number + 1
        if path in self.leaves or is_leaf(module):
            return self._call_leaf(original, module, path, number, args, kwargs)
        return self._call_span(original, module, path, number, args, kwargs)

    def _call_leaf(
        self,
        original: Callable[..., Any],
        module: nn.Module,
        path: str,
        number: int,
        args: Any,
        kwargs: Any,
    ) -> Any:
        opaque = opaque_argument((args, kwargs))
        if opaque:
            raise self._leaf_needed(f"{path} is called with {opaque}")
        call = Call(
            id=f"{path}@{number}",
            draw_key=f"{path}@{number}",
            kind="module",
            target=path,
            args=self.encode(args),
            kwargs=self.encode(kwargs),
            module=path,
            source=user_source(),
            region=current_region(),
        )
        tensors = tensors_in((args, kwargs)) + list(module.buffers())
        versions = [tensor._version for tensor in tensors]
        state = python_generator_marks()
        self.current, self.in_leaf = call, True
        try:
            out = original(module, *args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise self._leaf_needed(f"{path} needs the values of a tensor") from error
        finally:
            self.current, self.in_leaf = None, False
        changed = [t for t, v in zip(tensors, versions) if t._version != v]
        call.draws |= state != python_generator_marks()
        return self._finish(call, out, changed, tensors)

    def _call_span(
        self,
        original: Callable[..., Any],
        module: nn.Module,
        path: str,
        number: int,
        args: Any,
        kwargs: Any,
    ) -> Any:
        span = SpanRecord(
            path=path,
            call=number,
            start=len(self.recording.calls),
            end=-1,
            args=self.encode(tuple(args)),
            kwargs=self.encode(dict(kwargs)),
            output=None,
            region=current_region(),
            parent=self.frames[-1].span,
            opened_because=opaque_argument((args, kwargs)),
        )
        # Encoding may have appended weights and constants: they are outside the span.
        span.start = len(self.recording.calls)
        self.recording.spans.append(span)
        self.frames.append(Frame(path, number, len(self.recording.spans) - 1))
        state = python_generator_marks()
        out = original(module, *args, **kwargs)
        if state != python_generator_marks():
            raise self._leaf_needed("it draws from numpy's or Python's generator")
        self.frames.pop()
        span.end = len(self.recording.calls)
        span.output = template(out, self._output_leaf)
        return out

    def _output_leaf(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.ref(value)
        if is_plain(value):
            return value
        return Opaque(value)

    # -- running ------------------------------------------------------------------

    def run(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Recording:
        """Run the forward and return what was recorded."""
        with saved_by(self), intercepted(self), _DrawWatch(self), self:
            out = model(*args, **kwargs)
        self.recording.output = template(out, self._output_leaf)
        self.recording.weight_storages = self.weight_storages
        return self.recording

    def on_saved(self, tensor: torch.Tensor) -> torch.Tensor:
        """Note what autograd keeps: each storage once, weights never."""
        storage = self.storage_of(tensor)
        fresh = storage not in self.saved_storages
        is_weight = storage in self.weight_storages
        if self.current is not None and fresh and not is_weight:
            self.saved_storages.add(storage)
            bytes_kept = tensor.untyped_storage().nbytes()
            self.current.saved.append((storage, bytes_kept))
            self.keep.append(tensor)
        return tensor


QUERIES = frozenset(
    "size dim ndimension numel nelement stride storage_offset is_contiguous "
    "is_floating_point is_complex is_signed element_size data_ptr untyped_storage "
    "get_device is_same_size __len__ __hash__ __repr__ __format__ is_pinned "
    "is_inference is_set_to type_as_string __dir__ result_type can_cast "
    "promote_types broadcast_shapes finfo iinfo is_tensor __get__shape __get__dtype "
    "__get__device __get__requires_grad __get__ndim __get__is_leaf __get__grad_fn "
    "__get__is_cuda __get__is_meta __get__layout __get__itemsize __get__nbytes".split()
)
"""Functions that neither make nor change a tensor."""


def function_name(func: Callable[..., Any]) -> str:
    """Return the plain name: ``add``, ``__getitem__``, ``shape`` for a property."""
    name = getattr(func, "__name__", type(func).__name__)
    if name in ("__get__", "__set__"):
        return f"{name}{getattr(func.__self__, '__name__', '')}"  # type: ignore[attr-defined]
    return str(name)


def as_target(
    func: Callable[..., Any], name: str, args: tuple[Any, ...]
) -> tuple[Any, Any, tuple[Any, ...]]:
    """Return (kind, target, arguments) in terms that generated code can name."""
    if name.startswith("__get__"):
        return "function", getattr, (args[0], name.removeprefix("__get__"))
    if getattr(torch.Tensor, name, None) is func:
        return "method", name, args
    return "function", func, args


@lru_cache(maxsize=None)
def custom_function(cls: type) -> Callable[..., Any]:
    """Return a function that applies a custom autograd function, with its name."""

    def apply(*args: Any, **kwargs: Any) -> Any:
        return cls.apply(*args, **kwargs)  # type: ignore[attr-defined]

    apply.__name__ = f"{cls.__name__}_apply"
    apply.__module__ = cls.__module__
    return apply


def alias(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same tensor as another object."""
    with torch.enable_grad() if tensor.requires_grad else torch.no_grad():
        return tensor.view_as(tensor)


def memory_order(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the dimensions in order of memory if they are not in their own order."""
    if tensor.is_contiguous():
        return ()
    strides = tensor.stride()
    order = tuple(sorted(range(tensor.dim()), key=lambda dim: -strides[dim]))
    return order if tensor.permute(order).is_contiguous() else ()


def is_fake(value: Any) -> bool:
    """Whether ``value`` is a tensor without values."""
    return isinstance(value, FakeTensor)


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """Return the tensors of nested containers, in order."""
    return [leaf for _, leaf in flatten(tree) if isinstance(leaf, torch.Tensor)]


def is_leaf(module: nn.Module) -> bool:
    """Whether a module is called as a whole: torch.nn's own building blocks.

    Containers and the Transformer family are recorded through, so that a cut may go
    between their layers.
    """
    if not type(module).__module__.startswith(("torch.nn", "torch.ao.nn")):
        return False
    if isinstance(module, nn.MultiheadAttention):
        return True
    return next(module.children(), None) is None


def opaque_argument(tree: Any) -> str:
    """Return the class name of the first argument that is no plain value; or ""."""
    for _, leaf in _argument_leaves(tree):
        if not isinstance(leaf, torch.Tensor) and not is_plain(leaf):
            return f"an argument of type {type(leaf).__name__}"
    return ""


def _argument_leaves(tree: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    found: list[tuple[Path, Any]] = []

    def leaf(value: Any) -> Any:
        found.append((path, value))
        return value

    map_tree(leaf, tree)
    return iter(found)


def current_region() -> Region:
    """Return the modes that are on: gradients, autocast."""
    autocast = tuple(
        (device, torch.get_autocast_dtype(device))
        for device in ("cpu", "cuda")
        if torch.is_autocast_enabled(device)
    )
    return Region(grad_enabled=torch.is_grad_enabled(), autocast=autocast)


def python_generator_marks() -> tuple[Any, ...]:
    """Return marks that change when numpy's or Python's generator is drawn from."""
    numpy = sys.modules.get("numpy")
    drawn = numpy.random.get_state()[2] if numpy is not None else 0
    state = random.getstate()[1]
    return (state[-1], state[0], drawn)


class _DrawWatch(TorchDispatchMode):
    """Marks the running call when an operator that takes random numbers runs.

    Fakes move no generator, so the operators' own tag is what tells.
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        current = self.recorder.current
        if current is not None and torch.Tag.nondeterministic_seeded in func.tags:
            current.draws = True
        return func(*args, **(kwargs or {}))


@contextmanager
def intercepted(recorder: Recorder) -> Iterator[None]:
    """Route every module call of this thread through the recorder."""
    original = nn.Module.__call__
    apply = torch.autograd.Function.__dict__["apply"]

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return recorder.call_module(original, module, args, kwargs)

    def call_apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        bound = apply.__get__(None, cls)
        return recorder.call_custom(cls, bound, args, kwargs)

    nn.Module.__call__ = call  # type: ignore[method-assign]
    torch.autograd.Function.apply = classmethod(call_apply)  # type: ignore[assignment]
    try:
        yield
    finally:
        nn.Module.__call__ = original  # type: ignore[method-assign]
        torch.autograd.Function.apply = apply


@contextmanager
def saved_by(recorder: Recorder) -> Iterator[None]:
    """Tell the recorder what autograd keeps for backward."""
    hooks = torch.autograd.graph.saved_tensors_hooks(recorder.on_saved, lambda t: t)
    with hooks:
        yield
