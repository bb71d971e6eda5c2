"""Targets of Python code: real files, really imported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from partitioner.errors import TargetError
from partitioner.targets import Target, open_target

NET = """
import torch
from torch import nn

class Net(nn.Sequential):
    def __init__(self, width=4):
        super().__init__(nn.Linear(width, width))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, source: str, name: str = "model.py") -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    return name


def load(text: str) -> Target:
    with open_target(text) as target:
        return target


def failure(text: str) -> TargetError:
    with pytest.raises(TargetError) as caught, open_target(text):
        pass
    return caught.value


@pytest.mark.parametrize(
    ("body", "attribute", "found"),
    [
        ("model = Net()", "", "model"),
        ("def build_model():\n    return Net()", "", "build_model"),
        ("model = Net()\nbuild_model = None", "", "model"),
        ("mine = Net()", "", "mine"),
        ("mine = Net()", ":mine", "mine"),
        ("def make(width=8):\n    return Net(width)", ":make", "make"),
        ("make = lambda *args, **kwargs: Net()", ":make", "make"),
        ("", ":Net", "Net"),
        ("class Zoo:\n    net = Net()", ":Zoo.net", "Zoo.net"),
    ],
)
def test_finds_the_model(folder: Path, body: str, attribute: str, found: str) -> None:
    name = write(folder, NET + body)
    target = load(name + attribute)
    assert isinstance(target.model, nn.Sequential)
    assert target.name == f"model.py:{found}"


def test_model_keeps_the_name_of_its_file(folder: Path) -> None:
    write(folder, NET + "model = Net()", "tiny_net.py")
    with open_target("tiny_net.py") as target:
        assert type(target.model).__module__ == "tiny_net"
        assert sys.modules["tiny_net"].model is target.model
    assert "tiny_net" not in sys.modules


@pytest.mark.parametrize("name", ["random.py", "torch.py", "my-net.py"])
def test_file_never_replaces_another_module(folder: Path, name: str) -> None:
    before = sys.modules.get(name.removesuffix(".py"))
    write(folder, "from torch import nn\nmodel = nn.Linear(2, 2)", name)
    # An absolute import of torch must still find the real one, already loaded.
    assert isinstance(load(name).model, nn.Linear)
    assert sys.modules.get(name.removesuffix(".py")) is before


def test_neighbours_can_be_imported_on_import_and_later(folder: Path) -> None:
    write(folder, NET, "sub/neighbour_a.py")
    write(folder, "VALUE = 7", "sub/neighbour_b.py")
    write(folder, "from neighbour_a import Net\nmodel = Net()", "sub/model.py")
    path_before = list(sys.path)
    with open_target("sub/model.py"):
        from neighbour_b import VALUE  # type: ignore[import-not-found]

        assert VALUE == 7
    assert sys.path == path_before


def test_module_of_the_current_folder(folder: Path) -> None:
    write(folder, "", "zoo_package/__init__.py")
    write(folder, NET + "def make():\n    return Net()", "zoo_package/nets.py")
    target = load("zoo_package.nets:make")
    assert isinstance(target.model, nn.Sequential)
    assert target.name == "zoo_package.nets:make"


def test_installed_module() -> None:
    assert isinstance(load("torch.nn:Identity").model, nn.Identity)


@pytest.mark.parametrize(
    "body",
    [
        "example_inputs = torch.ones(2, 4)",
        "def example_inputs():\n    return torch.ones(2, 4)",
    ],
)
def test_example_inputs_as_value_or_function(folder: Path, body: str) -> None:
    target = load(write(folder, f"{NET}model = Net()\n{body}"))
    assert torch.equal(target.example_inputs, torch.ones(2, 4))


def test_example_inputs_may_be_absent(folder: Path) -> None:
    assert load(write(folder, NET + "model = Net()")).example_inputs is None


def test_missing_file_lists_its_neighbours(folder: Path) -> None:
    write(folder, "", "other.py")
    error = failure("nothing.py")
    assert f"no file nothing.py (looked for {folder / 'nothing.py'})" in error.message
    assert error.hint == f"Python files in {folder}: other.py"


def test_missing_file_in_an_empty_folder(folder: Path) -> None:
    assert failure("nothing.py:model").hint == f"{folder} holds no Python file"


def test_folder_is_no_target(folder: Path) -> None:
    write(folder, "", "sub/model.py")
    error = failure("sub")
    assert error.message == (
        "sub is a folder, neither a Python file nor a Hugging Face model: it has no "
        "config.json"
    )
    assert error.hint.endswith("model.py")


@pytest.mark.parametrize("text", ["", ":model", "model.py:"])
def test_malformed_target(text: str) -> None:
    assert (
        "is not of the form model.py[:attr], pkg.mod:attr or FOLDER"
        in failure(text).message
    )


@pytest.mark.parametrize(
    ("source", "text", "cause"),
    [
        (
            "x = 1\ny = undefined",
            "NameError: name 'undefined' is not defined (model.py:2)",
            NameError,
        ),
        ("def f(:\n    pass", "SyntaxError: invalid syntax (model.py:1)", SyntaxError),
        ("\nimport torch\ntorch.ones(-1)", "(model.py:3)", RuntimeError),
        (
            "import broken_neighbour",
            "ValueError: two lines (broken_neighbour.py:2)",
            ValueError,
        ),
        ("import sys\nsys.exit(3)", "SystemExit: 3 (model.py:2)", SystemExit),
        (
            "import no_such_package_x",
            "No module named 'no_such_package_x' (model.py:1)",
            ImportError,
        ),
    ],
)
def test_failing_import_names_the_line(
    folder: Path, source: str, text: str, cause: type[BaseException]
) -> None:
    write(folder, "\nraise ValueError('two\\nlines')", "broken_neighbour.py")
    error = failure(write(folder, source))
    assert error.message.startswith("model.py failed to import: ")
    assert error.message.endswith(text)
    assert isinstance(error.__cause__, cause)
    assert error.hint
    assert "model" not in sys.modules


def test_missing_module_is_told_from_a_missing_dependency(folder: Path) -> None:
    write(folder, "import no_such_package_x", "needs_more.py")
    absent = failure("no_such_module_y.net:model")
    assert absent.message.startswith("there is no module no_such_module_y.net")
    assert str(folder) in absent.hint
    dependency = failure("needs_more:model")
    assert "failed to import: ModuleNotFoundError" in dependency.message
    assert "(needs_more.py:1)" in dependency.message
    assert dependency.hint.startswith("install no_such_package_x")


def test_no_model_lists_what_was_found(folder: Path) -> None:
    error = failure(write(folder, f"{NET}\ndef make():\n    return Net()\n_hidden = 1"))
    assert error.message.startswith("model.py holds no model")
    assert error.hint == (
        "found classes Net; functions make: name one, as in model.py:Net"
    )


def test_nothing_at_all(folder: Path) -> None:
    error = failure(write(folder, "import torch"))
    assert error.hint == "model.py defines no nn.Module and no function"


def test_several_models_are_listed(folder: Path) -> None:
    error = failure(write(folder, f"{NET}\nsmall = Net()\nlarge = Net(8)"))
    assert error.message == "model.py holds 2 models: small, large"
    assert error.hint == "choose one: model.py:small"


@pytest.mark.parametrize("attribute", ["absent", "small.absent"])
def test_absent_attribute_lists_what_is_there(folder: Path, attribute: str) -> None:
    name = write(folder, f"{NET}\nsmall = Net()")
    error = failure(f"{name}:{attribute}")
    assert error.message == f"model.py has no attribute {attribute}"
    assert error.hint.startswith("found models small; classes Net: name one")


def test_attribute_of_another_type(folder: Path) -> None:
    error = failure(write(folder, "model = 'gpt2'"))
    assert error.message == "model.py:model is a str: neither an nn.Module nor callable"


def test_factory_returning_another_type(folder: Path) -> None:
    error = failure(write(folder, f"{NET}\ndef make():\n    return Net(), 1") + ":make")
    assert error.message == "model.py:make() returned a tuple, not an nn.Module"


def test_factory_that_needs_arguments(folder: Path) -> None:
    source = f"{NET}\ndef make(width, *args, depth, bias=True):\n    return Net()"
    error = failure(write(folder, source) + ":make")
    expected = "cannot be called without arguments: needs width, depth"
    assert error.message == f"model.py:make {expected}"


@pytest.mark.parametrize("name", ["build_model", "example_inputs"])
def test_failing_function_names_the_line(folder: Path, name: str) -> None:
    body = f"def {name}():\n    raise ValueError('no disk')"
    model = "" if name == "build_model" else "\nmodel = Net()\n"
    error = failure(write(folder, f"{NET}{model}\n{body}"))
    line = (folder / "model.py").read_text().splitlines().index(body.splitlines()[1])
    expected = f"model.py:{name}() failed: ValueError: no disk (model.py:{line + 1})"
    assert error.message == expected
    assert isinstance(error.__cause__, ValueError)
