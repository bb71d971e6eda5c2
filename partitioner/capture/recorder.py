"""Run the forward once on fake tensors and write down all that it does."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakMethod

import torch

from partitioner.capture.ambient import ambient, function_modes, kept_ambient
from partitioner.capture.checks import recorded_checks
from partitioner.capture.dispatch import FakeDispatch, OperatorWatch
from partitioner.capture.frames import forward_source
from partitioner.capture.leaves import why_whole
from partitioner.capture.modes import intercepted
from partitioner.capture.module_calls import ModuleRecorder
from partitioner.capture.records import Recording, Ref
from partitioner.capture.refusals import LeafNeeded
from partitioner.capture.size_log import SizeLog
from partitioner.capture.tracked import followed_ranges
from partitioner.capture.tree import Opaque, template

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

__all__ = ["Recorder"]


class Recorder(ModuleRecorder):
    """Records one forward.

    Args:
        model: The module whose weights are fakes at the moment.
        fakes: Those fakes.
        leaves: Paths of modules that must not be recorded through.
    """

    def run(
        self,
        model: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        watched: bool = True,
    ) -> Recording:
        """Run the forward and return what was recorded.

        Args:
            model: The module.
            args: Its positional arguments, with fakes.
            kwargs: Its keyword arguments, with fakes.
            watched: Whether to note draws, batch statistics, what autograd saves and
                what Python decides by sizes.
        """
        if reason := why_whole(model):
            hint = "only a submodule may be so: the root has to be recorded through"
            raise LeafNeeded("", reason, forward_source(model), hint)
        watches: AbstractContextManager[object] = FakeDispatch(self.values.fakes.mode)
        if watched:
            watches = self._watches()
            self.sizes = SizeLog(self)
        checks = recorded_checks(lambda: self.frames[-1].path)
        with kept_ambient(), watches, intercepted(self), checks, self:
            self.ambient, self.modes = ambient(), function_modes()
            out = self._run_through(lambda: model(*args, **kwargs), model)
            self.recording.output = template(out, self._root_output)
        self.recording.weight_storages = self.values.weight_storages
        if self.sizes is not None:
            self.silent = True  # a size that the model has kept is a plain number now
            self.recording.sizes = self.sizes.reading()
        return self.recording

    @contextmanager
    def _watches(self) -> Iterator[None]:
        """Note draws, batch statistics, what autograd saves and how loops run."""
        watch = OperatorWatch(
            self.values.fakes.mode,
            on_draw=self._on_draw,
            on_write=self._on_write,
            on_read=self._on_read,
        )
        hooks = torch.autograd.graph.saved_tensors_hooks
        # What autograd has saved keeps its hook, and is kept by this recorder: through
        # torch's own memory, where no garbage is found.
        on_saved = WeakMethod(self._on_saved)

        def note(tensor: Any) -> Any:
            method = on_saved()
            return tensor if method is None else method(tensor)

        with hooks(note, lambda tensor: tensor), watch, followed_ranges():
            yield

    def _root_output(self, value: Any) -> Any:
        found = self._output_leaf(value)
        if isinstance(found, Ref) and self.recording.calls[found.call].kind == "weight":
            # A weight as it is: what hands it on must run on a stage.
            return self._output_leaf(value.view_as(value))
        if isinstance(found, Opaque):
            self.recording.notes.append(
                f"the output holds a {found.name}: it becomes None in the pipeline"
            )
        return found

    def _on_draw(self) -> None:
        if self.current is not None:
            self.current.draws = True

    def _on_read(self) -> None:
        self.needs_numbers = True
