"""A segment: a graph over the user's own modules, as one layer of the pipeline."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn

from partitioner.runtime.compiled_blocks import compiled_blocks
from partitioner.runtime.generated_code import compiled
from partitioner.runtime.header import Header
from partitioner.runtime.namespace import Scope, attach, lookup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from partitioner.runtime.cuda_graphs.replays import Replays
    from partitioner.runtime.wire import WireSpec

__all__ = ["Segment", "SegmentBody", "SegmentProgram"]


@dataclass(frozen=True, kw_only=True)
class SegmentBody:
    """What a segment computes, and on what.

    The graph's placeholders are the segment's incoming values in order; its
    output is a tuple of values. Targets of ``call_module`` and ``get_attr`` are
    the original dotted paths; ``get_attr`` of "training" is the segment's own
    flag, of "device" the device on which it runs.

    Args:
        name: Name for messages and tracebacks.
        graph: The operations.
        modules: The user's own submodules that are called whole, by path.
        parameters: Parameters that the graph reads itself, by path.
        buffers: Buffers that the graph reads itself, and whether each is
            persistent, by path.
        checkpointed: Activations are recomputed during backward.
        written_later: Positions of the incoming values whose memory a later segment of
            the stage writes in place.
        configs: Objects whose ``use_cache`` is False while the segment runs.
        frozen: Paths of modules that stay in eval mode.
    """

    name: str
    graph: fx.Graph
    modules: Mapping[str, nn.Module] = field(default_factory=dict)
    parameters: Mapping[str, nn.Parameter] = field(default_factory=dict)
    buffers: Mapping[str, tuple[Tensor, bool]] = field(default_factory=dict)
    checkpointed: bool = False
    written_later: frozenset[int] = frozenset()
    configs: Sequence[object] = ()
    frozen: frozenset[str] = frozenset()


class SegmentProgram(nn.Module):
    """A body with its modules, parameters and buffers under their original paths.

    ``forward`` takes the incoming values and returns the tuple of outgoing ones.

    Args:
        body: What to compute.

    Raises:
        EmitError: Two entries claim one path.
    """

    def __init__(self, body: SegmentBody) -> None:
        super().__init__()
        self._body = body
        self._last_device = torch.device("cpu")
        attach(self, body.modules, body.parameters, body.buffers)
        self._frozen = tuple(lookup(self, path) for path in sorted(body.frozen))
        self._source, self._plain = compiled(body.graph, body.name)
        self._function = self._plain
        self._scope = Scope(self)
        self.watched: Callable[[Sequence[Any]], None] | None = None
        """Looks at the outgoing values of every forward."""
        self.replays: Replays | None = None
        """Runs what is computed in training; None: nothing is replayed."""
        self.around_recomputation: Callable[[], AbstractContextManager[None]] | None = (
            None
        )
        """Surrounds what runs again during backward."""

    @property
    def name(self) -> str:
        """Name for messages."""
        return self._body.name

    @property
    def graph(self) -> fx.Graph:
        """The operations."""
        return self._body.graph

    @property
    def code(self) -> str:
        """The generated source of the forward, for reading."""
        return self._source

    @property
    def device(self) -> torch.device:
        """Where the segment's tensors are; without any, where its input was."""
        first = next(chain(self.parameters(), self.buffers()), None)
        return self._last_device if first is None else first.device

    @property
    def whole_modules(self) -> Mapping[str, nn.Module]:
        """The user's own modules that are called whole, by path."""
        return self._body.modules

    @property
    def is_compiled(self) -> bool:
        """Whether the generated code runs under ``torch.compile``."""
        return self._function is not self._plain

    def train(self, mode: bool = True) -> SegmentProgram:  # noqa: FBT001, FBT002 - nn.Module's signature
        """Set the mode of all modules but those that the user froze."""
        super().train(mode)
        for module in self._frozen:
            module.train(False)
        return self

    def compile(self, *args: Any, **options: Any) -> None:
        """Run the operations under ``torch.compile``, from the next call on.

        Block by block, as the graph numbers them. Not the whole forward, as
        ``nn.Module.compile`` does: the boundaries' packing reads sizes and orders of
        memory, which only breaks graphs.

        Args:
            *args: For ``torch.compile``.
            **options: For ``torch.compile``.
        """
        compiler = partial(torch.compile, *args, **options)
        self._function = compiled_blocks(self.graph, self.name, compiler)

    @property
    def is_recomputed(self) -> bool:
        """Whether activations are recomputed during backward."""
        return self._body.checkpointed

    @property
    def writes_buffers(self) -> bool:
        """Whether a forward that is to be recomputed has written buffers."""
        return False

    @property
    def written_later(self) -> frozenset[int]:
        """Positions of incoming values that a later segment writes in place."""
        return self._body.written_later

    @property
    def is_replayed(self) -> bool:
        """Whether launches are recorded once and replayed, where that can be."""
        return self.replays is not None

    def run(self, *values: Any) -> tuple[Any, ...]:
        """Compute the outgoing values from the incoming ones."""
        if self.replays is not None and self.training and torch.is_grad_enabled():
            return self.replays(values)
        return self.unrecorded(*values)

    def unrecorded(self, *values: Any) -> tuple[Any, ...]:
        """Compute the outgoing values, launch by launch."""
        return self.plain(*values)

    def plain(self, *values: Any) -> tuple[Any, ...]:
        """Compute the outgoing values, and keep all that backward needs."""
        self._last_device = _device_of(values, self._last_device)
        with _without_caches(self._body.configs):
            result: tuple[Any, ...] = self._function(self._scope, *values)
        return result

    def forward(self, *values: Any) -> tuple[Any, ...]:
        """Compute the outgoing values from the incoming ones."""
        return self.run(*values)


class Segment(SegmentProgram):
    """One layer of the pipeline.

    Between the segments of one stage travels ``(token, *values)``, where the
    token is the float32 zero of :meth:`WireSpec.unpack`.

    Args:
        body: What to compute.
        receive: The format of the boundary before this segment, if there is one.
        send: The format of the boundary after this segment, if there is one.
        is_first: This is the first segment of the model; it receives DeepSpeed's
            inputs, a tensor or a tuple of tensors.
    """

    def __init__(
        self,
        body: SegmentBody,
        *,
        receive: WireSpec | None = None,
        send: WireSpec | None = None,
        is_first: bool = False,
    ) -> None:
        super().__init__(body)
        self._receive = receive
        self._send = send
        self._is_first = is_first
        self.header = Header()
        """Of what this segment receives."""

    def forward(self, received: Any) -> Any:
        """Receive, compute and send.

        Args:
            received: The model's inputs, the tensors of a boundary, or the
                ``(token, *values)`` of the segment before.

        Returns:
            What :meth:`WireSpec.pack` makes of the outgoing values if a boundary
            follows, else ``(token, *values)``.
        """
        token, *values = self._take(received)
        values = list(self.run(*values))
        if self.watched is not None:
            self.watched(values)
        if self._send is None:
            return (token, *values)
        return self._send.pack(token, values)

    def _take(self, received: Any) -> tuple[Any, ...]:
        if self._is_first:
            tensors = received if isinstance(received, tuple) else (received,)
            device = _device_of(tensors, self.device)
            token = torch.zeros((), device=device, requires_grad=True)
            # DeepSpeed may have marked the inputs: nobody wants their gradient.
            return (token, *(tensor.detach() for tensor in tensors))
        if self._receive is not None:
            read = partial(self.header.read, training=self.training)
            return self._receive.unpack(received, read)
        return tuple(received)


@contextmanager
def _without_caches(configs: Sequence[Any]) -> Iterator[None]:
    """Switch ``use_cache`` off, and back to what it was."""
    before = [config.use_cache for config in configs]
    try:
        for config in configs:
            config.use_cache = False
        yield
    finally:
        for config, value in zip(configs, before, strict=True):
            config.use_cache = value


def _device_of(values: Sequence[Any], default: torch.device) -> torch.device:
    for value in values:
        if isinstance(value, Tensor):
            return value.device
    return default
