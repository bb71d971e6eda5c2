"""The strategy is one of the library's whose Trainer takes it."""

from __future__ import annotations

import sys

import lightning.pytorch as unified
import pytest
import pytorch_lightning as classic

from partitioner.errors import OptionError
from partitioner.lightning import PipelineStrategy
from partitioner.lightning.library import LIBRARIES, imported


@pytest.mark.parametrize("library", [unified, classic])
def test_each_library_takes_its_own(library):
    strategy = PipelineStrategy(2, library=library)
    other = classic if library is unified else unified
    assert isinstance(strategy, PipelineStrategy)
    assert isinstance(strategy, library.strategies.Strategy)
    assert not isinstance(strategy, other.strategies.Strategy)
    trainer = library.Trainer(
        accelerator="cpu", devices=2, strategy=strategy, logger=False, barebones=True
    )
    assert trainer.strategy is strategy


@pytest.mark.parametrize("name", LIBRARIES)
def test_the_one_that_is_imported_is_taken(name, monkeypatch):
    for other in LIBRARIES:
        if other != name:
            monkeypatch.delitem(sys.modules, other)
    assert imported().name == name


def test_two_or_none_are_an_error(monkeypatch):
    with pytest.raises(OptionError, match="both imported"):
        imported()
    for name in LIBRARIES:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(OptionError, match="neither"):
        imported()
    with pytest.raises(OptionError, match="library is 'torch'"):
        imported("torch")
