"""Operations that one mode alone runs, and that hand their argument's values on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn import functional

from partitioner.capture.prune import refs
from partitioner.capture.records import Call, Recording, Ref, SpanRecord
from partitioner.capture.structure import MismatchError, compare_structure
from partitioner.capture.tree import leaves, map_tree, relabel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from partitioner.capture.records import Path
    from partitioner.graph import TensorMeta

__all__ = ["as_in_train_mode", "is_copy"]

COPIES = frozenset(
    (
        "clone", "contiguous", "to", "type", "type_as",
        "bfloat16", "double", "float", "half",
    )
)  # fmt: skip
"""Methods whose result has their argument's values, if it has its dtype."""
DROPOUTS = (
    functional.dropout, functional.dropout1d, functional.dropout2d,
    functional.dropout3d, functional.alpha_dropout, functional.feature_alpha_dropout,
)  # fmt: skip
DROPOUT_MODULES = (
    nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d,
    nn.AlphaDropout, nn.FeatureAlphaDropout, nn.Identity,
)  # fmt: skip


def as_in_train_mode(
    train: Recording, evaluation: Recording, model: nn.Module
) -> Recording:
    """Give a recording in eval mode the operations that train mode alone runs.

    A copy of a tensor (``contiguous``, ``clone``) and a dropout do nothing to values
    in eval mode: with them it computes the same, and only train mode's operations are
    left. A copy that eval mode alone makes is left out. Neither is done to memory that
    eval mode writes later on, where a copy and its source part.

    Args:
        train: In train mode; unchanged.
        evaluation: The same model in eval mode, perhaps at other sizes.
        model: Whose dropout modules know in which modes they are on.

    Returns:
        ``evaluation`` itself if it has the operations of ``train``, or if the two
        differ in more.
    """
    try:
        compare_structure(train, evaluation)
    except MismatchError:
        matched = _Match(train, evaluation, model).run()
        return matched or evaluation
    return evaluation


class _UnlikeError(Exception):
    """The recordings differ in more than copies."""


@dataclass(slots=True)
class _Match:
    """Walks through two recordings side by side."""

    train: Recording
    evaluation: Recording
    model: nn.Module
    counterpart: dict[int, Ref | int] = field(default_factory=dict)
    """Call of train mode → that of eval mode, or what eval mode has in its place."""
    number: dict[int, int] = field(default_factory=dict)
    """Call of eval mode → that of train mode."""
    left_out: dict[int, Ref] = field(default_factory=dict)
    """Copy that eval mode alone makes → its argument."""

    def run(self) -> Recording | None:
        """Return the recording in eval mode with the calls of train mode, or None."""
        try:
            calls = list(self._calls())
            spans = self._spans()
            output = self._output(self.train.output, self.evaluation.output)
        except _UnlikeError:
            return None
        reading = self.evaluation.sizes
        reads = [(self._renumbered(ref), dim) for ref, dim in reading.reads]
        return replace(
            self.evaluation,
            calls=calls,
            spans=spans,
            output=output,
            sizes=replace(reading, reads=reads),
        )

    def _calls(self) -> Iterator[Call]:
        others = self.evaluation.calls
        place = 0
        for index, call in enumerate(self.train.calls):
            while True:
                other = others[place] if place < len(others) else None
                if other is not None and self._agree(call, other):
                    self.counterpart[index] = place
                    self.number[place] = index
                    place += 1
                    yield self._like(call, other)
                    break
                if self._does_nothing(call):
                    argument = self._in_eval(_argument(call))
                    self._check_unwritten(argument, place)
                    self.counterpart[index] = argument
                    yield self._resting(call, argument)
                    break
                if other is None or not is_copy(other, self.evaluation):
                    raise _UnlikeError
                self._leave_out(place, other)
                place += 1
        for rest in range(place, len(others)):
            if not is_copy(others[rest], self.evaluation):
                raise _UnlikeError
            self._leave_out(rest, others[rest])

    # -- references --------------------------------------------------------------------

    def _in_eval(self, ref: Ref) -> Ref:
        """Return the result of eval mode that one of train mode is."""
        found = self.counterpart[ref.call]
        return found if isinstance(found, Ref) else Ref(found, ref.path)

    def _without_copies(self, ref: Ref) -> Ref:
        while ref.call in self.left_out:
            ref = self.left_out[ref.call]
        return ref

    def _read_alike(self, first: Any, second: Any) -> bool:
        ours, theirs = list(refs(first)), list(refs(second))
        return len(ours) == len(theirs) and all(
            self._in_eval(a) == self._without_copies(b)
            for a, b in zip(ours, theirs, strict=True)
        )

    def _renumbered(self, value: Any) -> Any:
        if not isinstance(value, Ref):
            return value
        value = self._without_copies(value)
        return Ref(self.number[value.call], value.path)

    # -- calls -------------------------------------------------------------------------

    def _agree(self, call: Call, other: Call) -> bool:
        arguments = [(one.args, one.kwargs) for one in (call, other)]
        return _name(call) == _name(other) and self._read_alike(*arguments)

    def _like(self, call: Call, other: Call) -> Call:
        """Return a call of eval mode with the references of train mode."""
        read = refs((call.args, call.kwargs))
        args, kwargs = _with_refs((other.args, other.kwargs), read)
        return replace(other, id=call.id, args=args, kwargs=kwargs)

    def _resting(self, call: Call, argument: Ref) -> Call:
        """Return what a call of train mode is in eval mode, where it does nothing."""
        given = self.evaluation.calls[argument.call].outputs
        outputs: list[tuple[Path, TensorMeta]] = [((), dict(given)[argument.path])]
        kwargs = call.kwargs
        if call.target in DROPOUTS:
            kwargs = kwargs | {"training": False}
        return replace(
            call, kwargs=kwargs, outputs=outputs, writes=(), draws=False, saved={}
        )

    def _does_nothing(self, call: Call) -> bool:
        """Whether a call of train mode would hand its argument on in eval mode."""
        if is_copy(call, self.train):
            return True
        if not _keeps_kind(call, self.train):
            return False
        if call.kind == "function":
            return call.target in DROPOUTS and "training" in call.kwargs
        return call.kind == "module" and self._is_dropout(str(call.target))

    def _is_dropout(self, path: str) -> bool:
        module = self.model.get_submodule(path)
        # One that the user holds in train mode inside a model in eval mode stays on.
        rests = not module.training or self.model.training
        hooked = module._forward_hooks or module._forward_pre_hooks  # noqa: SLF001 - nn.Module has no public name
        return type(module) in DROPOUT_MODULES and rests and not hooked

    def _leave_out(self, place: int, copy: Call) -> None:
        argument = self._without_copies(_argument(copy))
        self._check_unwritten(argument, place)
        self._check_unwritten(Ref(place), place)
        self.left_out[place] = argument

    def _check_unwritten(self, ref: Ref, start: int) -> None:
        """Refuse memory that eval mode writes from a call on."""
        calls = self.evaluation.calls
        memory = {meta.storage for _, meta in calls[ref.call].outputs}
        if any(memory.intersection(call.writes) for call in calls[start:]):
            raise _UnlikeError

    # -- module calls and results ------------------------------------------------------

    def _spans(self) -> list[SpanRecord]:
        ours, theirs = self.train.spans, self.evaluation.spans
        if [(s.path, s.call) for s in ours] != [(s.path, s.call) for s in theirs]:
            raise _UnlikeError
        return [self._span(a, b) for a, b in zip(ours, theirs, strict=True)]

    def _span(self, ours: SpanRecord, theirs: SpanRecord) -> SpanRecord:
        given = [(span.args, span.kwargs) for span in (ours, theirs)]
        if not self._read_alike(*given):
            raise _UnlikeError
        args, kwargs = _with_refs(given[1], refs(given[0]))
        return replace(
            theirs,
            start=ours.start,
            end=ours.end,
            args=args,
            kwargs=kwargs,
            output=self._output(ours.output, theirs.output),
        )

    def _output(self, ours: Any, theirs: Any) -> Any:
        """Return a result of eval mode in terms of train mode where they agree."""
        lists = [
            [leaf for leaf in leaves(tree) if isinstance(leaf, Ref)]
            for tree in (ours, theirs)
        ]
        if not self._read_alike(*lists):
            return relabel(theirs, self._renumbered)
        queue = iter(lists[0])
        return relabel(theirs, _next_ref(queue))


def is_copy(call: Call, recording: Recording) -> bool:
    """Whether a call makes no more than a copy of its argument, gradient included."""
    named = call.kind == "method" and call.target in COPIES
    return named and not call.writes and _keeps_kind(call, recording)


def _keeps_kind(call: Call, recording: Recording) -> bool:
    """Whether the only result is like the argument, and hands its gradient on."""
    argument = next(refs((call.args, call.kwargs)), None)
    if argument is None or [path for path, _ in call.outputs] != [()]:
        return False
    given = dict(recording.calls[argument.call].outputs)[argument.path]
    made = call.outputs[0][1]
    return (given.shape, given.dtype, given.requires_grad) == (
        made.shape,
        made.dtype,
        made.requires_grad,
    )


def _argument(call: Call) -> Ref:
    """Return the tensor that a copy or a dropout is given."""
    return next(refs((call.args, call.kwargs)))


def _name(call: Call) -> tuple[Any, ...]:
    """Return what a call is, whatever else its module runs."""
    counted = call.kind in ("function", "method")
    place = call.id.rpartition(":")[0] if counted else call.id
    return call.kind, call.target, place


def _with_refs(tree: Any, queue: Iterator[Ref]) -> Any:
    return map_tree(_next_ref(queue), tree)


def _next_ref(queue: Iterator[Ref]) -> Callable[[Any], Any]:
    return lambda value: next(queue) if isinstance(value, Ref) else value
