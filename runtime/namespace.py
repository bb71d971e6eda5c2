"""The original dotted paths of a segment's modules, parameters and buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from partitioner.errors import EmitError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Scope", "attach", "lookup"]


class Scope:
    """The ``self`` of the generated code: original paths, and nothing else.

    A name of the user's can so never meet a name of nn.Module's or of ours.
    """

    def __init__(self, program: nn.Module) -> None:
        self._program = program

    def __getattr__(self, name: str) -> Any:
        program = self.__dict__.get("_program")
        if program is None:  # while it is copied
            raise AttributeError(name)
        if name in {"training", "device"}:
            return getattr(program, name)
        return _member(program, name)


def _member(module: nn.Module, name: str) -> Any:
    """Return a child, parameter or buffer of a module by its own name."""
    for table in (module._modules, module._parameters, module._buffers):  # noqa: SLF001 - past any class attribute of that name
        if name in table:
            return table[name]
    message = f"{type(module).__name__} has no module, parameter or buffer {name!r}"
    raise AttributeError(message)


def lookup(root: nn.Module, path: str) -> Any:
    """Return the module, parameter or buffer at a dotted path below ``root``."""
    found: Any = root
    for name in path.split("."):
        found = _member(found, name)
    return found


def attach(
    root: nn.Module,
    modules: Mapping[str, nn.Module],
    parameters: Mapping[str, nn.Parameter],
    buffers: Mapping[str, tuple[Tensor, bool]],
) -> None:
    """Build the containers of the original paths and hang everything into them.

    Modules first, and outer ones before inner ones, so that what lies inside a
    module of the user's is found there and never registered again.

    Args:
        root: The module whose ``state_dict`` gets the original paths as keys.
        modules: The user's own modules by path.
        parameters: Parameters by path.
        buffers: Buffers, and whether each is persistent, by path.

    Raises:
        EmitError: Two objects claim one path, or a path leads into a module that
            has no such member.
    """
    for path in sorted(modules, key=lambda path: path.count(".")):
        _attach(root, path, modules[path], persistent=True)
    for path, parameter in parameters.items():
        _attach(root, path, parameter, persistent=True)
    for path, (buffer, persistent) in buffers.items():
        _attach(root, path, buffer, persistent=persistent)


def _attach(
    root: nn.Module, path: str, value: nn.Module | Tensor, *, persistent: bool
) -> None:
    *outer, name = path.split(".")
    if path in {"training", "device"}:
        raise EmitError(
            f"the model has a member named {path!r}, "
            "which generated code uses for its own flag",
            hint="rename it",
        )
    owner: Any = root
    for part in outer:
        if part not in owner._modules:  # noqa: SLF001 - see _member
            owner._modules[part] = _Container()  # noqa: SLF001
        owner = owner._modules[part]  # noqa: SLF001
    if _has(owner, name):
        if _member(owner, name) is not value:
            raise EmitError(f"two different objects claim the path {path!r}")
    elif owner is root or isinstance(owner, _Container):
        _register(owner, name, value, persistent=persistent)
    else:
        raise EmitError(
            f"{path!r} is not a member of the module "
            f"{'.'.join(outer)!r} ({type(owner).__name__})"
        )


class _Container(nn.Module):
    """A step of an original path whose own module is not called here."""


def _has(owner: nn.Module, name: str) -> bool:
    return any(
        name in table
        for table in (owner._modules, owner._parameters, owner._buffers)  # noqa: SLF001
    )


def _register(
    owner: nn.Module, name: str, value: nn.Module | Tensor, *, persistent: bool
) -> None:
    if isinstance(value, nn.Module):
        # Not add_module: it refuses the names of class attributes ("code").
        owner._modules[name] = value  # noqa: SLF001
    elif isinstance(value, nn.Parameter):
        owner._parameters[name] = value  # noqa: SLF001
    else:
        owner._buffers[name] = value  # noqa: SLF001
        if not persistent:
            owner._non_persistent_buffers_set.add(name)  # noqa: SLF001
