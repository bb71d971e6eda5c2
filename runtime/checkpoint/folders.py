"""Where checkpoints stand: written aside, then moved whole; found by ``latest``."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from partitioner.errors import CheckpointError, OptionError
from partitioner.runtime.checkpoint.files import sync_folder, write_durably
from partitioner.runtime.checkpoint.manifest import MANIFEST

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["LATEST", "CheckpointFolder", "complete_tags", "latest_tag"]

LATEST = "latest"


@dataclass(frozen=True)
class CheckpointFolder:
    """The folder of one tag.

    Args:
        root: The folder of all tags.
        tag: Its name.
    """

    root: Path
    tag: str

    def __post_init__(self) -> None:
        if not self.tag or self.tag.startswith(".") or "/" in self.tag:
            raise OptionError(
                f"tag {self.tag!r} cannot be a folder's name",
                hint="use letters and digits, as in 'step-100'",
            )

    @property
    def final(self) -> Path:
        """Where a complete checkpoint stands."""
        return self.root / self.tag

    @property
    def partial(self) -> Path:
        """Where one is written."""
        return self.root / f".{self.tag}.partial"

    @property
    def replaced(self) -> Path:
        """Where the one before it stands while it is replaced."""
        return self.root / f".{self.tag}.replaced"

    def prepare(self) -> None:
        """Make an empty folder to write in; what a crash has left there goes."""
        self.root.mkdir(parents=True, exist_ok=True)
        self._settle()
        self.discard()
        self.partial.mkdir()

    def discard(self) -> None:
        """Remove what was written so far."""
        shutil.rmtree(self.partial, ignore_errors=True)

    def publish(self) -> None:
        """Put what was written into its place, and drop an older one of that tag."""
        sync_folder(self.partial)
        if self.final.exists():
            self.final.rename(self.replaced)
        self.partial.rename(self.final)
        sync_folder(self.root)
        shutil.rmtree(self.replaced, ignore_errors=True)

    def make_latest(self) -> None:
        """Let loading without a tag find this one."""
        write_durably(self.root / LATEST, f"{self.tag}\n{_blanks(self.tag)}\n")

    def readable(self) -> Path:
        """Return the folder to read from.

        Raises:
            CheckpointError: There is no complete checkpoint.
        """
        for folder in (self.final, self.replaced):
            if (folder / MANIFEST).is_file():
                return folder
        if not self.final.is_dir():
            message, hint = f"there is no checkpoint {self.final}", ""
        else:
            message = f"{self.final / MANIFEST} does not exist"
            hint = (
                "was it saved by an engine of plan.initialize()? DeepSpeed's own are "
                "loaded by deepspeed.runtime.pipe.engine.PipelineEngine"
                ".load_checkpoint(engine, …), which trusts their pickles"
            )
        others = complete_tags(self.root)
        if others:
            hint = f"complete ones: {', '.join(others)}"
        raise CheckpointError(message, hint=hint)

    def _settle(self) -> None:
        """Finish what a crash while replacing has left."""
        if not self.replaced.exists():
            return
        if self.final.exists():
            shutil.rmtree(self.replaced)
        else:
            self.replaced.rename(self.final)


def complete_tags(root: Path) -> list[str]:
    """Return the tags that are there, the newest first."""
    found = [path.parent for path in root.glob(f"[!.]*/{MANIFEST}")]
    found.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    return [path.name for path in found]


def latest_tag(root: Path) -> str | None:
    """Return the tag that ``latest`` names; None: there is none yet.

    Raises:
        CheckpointError: The file is not whole.
    """
    path = root / LATEST
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    tag, *rest = text.split("\n")
    # Written by hand, a tag has no checksum.
    if rest in ([""], [_blanks(tag), ""]) and _is_there(root, tag):
        return tag
    if not rest and _is_there(root, tag) and not (root / tag / MANIFEST).exists():
        return tag  # DeepSpeed writes no end of line; who reads the tag will say so
    known = complete_tags(root)
    raise CheckpointError(
        f"{path} is damaged: it says {tag!r}, and not as it was written",
        hint=f"pass tag=; complete ones: {', '.join(known) or 'none'}",
    )


def _blanks(tag: str) -> str:
    """Return a tag's checksum as blanks and tabs, which DeepSpeed strips from it.

    A bit that has changed must not name another checkpoint.
    """
    digest = hashlib.blake2b(tag.encode(), digest_size=4).digest()
    bits = f"{int.from_bytes(digest, 'big'):032b}"
    return bits.translate(str.maketrans("01", " \t"))


def _is_there(root: Path, tag: str) -> bool:
    try:
        folder = CheckpointFolder(root, tag)
    except OptionError:
        return False
    return folder.final.is_dir() or folder.replaced.is_dir()
