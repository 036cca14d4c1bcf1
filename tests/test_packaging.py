"""The form of the project: packages, exports, commands, imports that point downwards."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.main import get_command

import rooflinekit as rk
from docs.generate.tables import refreshed
from rooflinekit.cli.app import app

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "rooflinekit"
SHIPPED = ("hardware_specs", "model_specs", "validate")  # top-level folders that ship inside the package
ROOMS = (
    "model",
    "specs",
    "load",
    "estimation",
    "simulation",
    "explanation",
    "decision",
    "report",
    "evidence",
    "ops",
    "cli",
)
WINGS = ("evidence", "ops")  # a package that leaves one out answers everything else
OUTSIDE = ("__init__", "__main__", "version")  # the lazy front door, what runs the command line, and a number
MODULES = sorted(PACKAGE.rglob("*.py"))
SOURCES = sorted(path for folder in ("rooflinekit", "validate", "benchmarks") for path in (ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


class TestPackage:
    def test_the_list_of_packages_matches_the_tree(self) -> None:
        setuptools = tomllib.loads(read("pyproject.toml"))["tool"]["setuptools"]
        inside = {path.parent for path in MODULES} - {PACKAGE}
        beside = [folder for name in SHIPPED for folder in (ROOT / name, *(ROOT / name).rglob("*"))]
        beside = [folder for folder in beside if folder.is_dir() and any(folder.glob("*.[py][ya]*"))]
        beside = [folder for folder in beside if folder.name != "__pycache__"]
        expected = {".".join(("rooflinekit", *path.relative_to(PACKAGE).parts)) for path in inside}
        expected |= {".".join(("rooflinekit", *path.relative_to(ROOT).parts)) for path in beside}
        assert set(setuptools["packages"]) == expected | {"rooflinekit"}
        assert setuptools["package-dir"] == {
            ".".join(("rooflinekit", *path.relative_to(ROOT).parts)): path.relative_to(ROOT).as_posix()
            for path in beside
        }

    def test_every_spec_file_ships(self) -> None:
        data = tomllib.loads(read("pyproject.toml"))["tool"]["setuptools"]["package-data"]
        for path in [*ROOT.glob("*_specs/**/*.y*ml"), *PACKAGE.rglob("*.yaml"), PACKAGE / "py.typed"]:
            package = ".".join(path.parent.relative_to(ROOT).parts)
            package = package if package.startswith("rooflinekit") else f"rooflinekit.{package}"
            inside = 0
            while package not in data:  # a folder of data alone
                package, inside = package.rpartition(".")[0], inside + 1
            assert any(path.match(pattern) and pattern.count("/") == inside for pattern in data[package]), path

    def test_the_version_stands_once(self) -> None:
        assert tomllib.loads(read("pyproject.toml"))["project"]["version"] == rk.__version__
        assert rk.__version__ == importlib.import_module("rooflinekit.version").__version__
        assert rk.__version__ in read("CHANGELOG.md")


class TestLongDescription:
    def test_no_link_is_relative_on_an_index(self) -> None:
        spec = importlib.util.spec_from_file_location("setup", ROOT / "setup.py")
        assert spec and spec.loader
        setup = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(setup)
        readme = read("README.md")
        targets = r"""(?:\]\(|(?:src|srcset|href)=["'])([^)"']+)"""
        relative = [each for each in re.findall(targets, readme) if not each.startswith(("https:", "#"))]
        whole = setup.long_description(readme, "https://host/us/it", "1.0")
        assert [each for each in re.findall(targets, whole) if not each.startswith(("https:", "#"))] == []
        pictures = re.findall(r"docs/[\w/.-]+\.(?:png|svg)", readme)
        assert whole.count("https://host/us/it/raw/v1.0/docs/") == len(pictures)
        assert all(f"/v1.0/{each}" in whole for each in relative)
        plain = setup.long_description(readme, "", "1.0")
        assert not re.search(r"docs/[a-z/-]+\.(png|svg|md)", plain)
        assert "<picture" not in plain


class TestExports:
    def test_all_is_what_is_imported_on_first_use(self) -> None:
        assert set(rk.__all__) == set(rk._HOME)
        assert rk.__all__ == sorted(rk.__all__)

    def test_type_checkers_see_the_same_names(self) -> None:
        tree = ast.parse(read("rooflinekit/__init__.py"))
        block = next(node for node in tree.body if isinstance(node, ast.If))
        seen = {
            alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
        }
        assert seen == rk._HOME

    def test_every_name_imports(self) -> None:
        for name in rk.__all__:
            assert getattr(rk, name) is getattr(importlib.import_module(rk._HOME[name]), name)

    def test_public_names_survive_the_import_of_any_module(self) -> None:
        """A room or a module must not take the place of a public function of its name."""
        modules = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in MODULES]
        imports = ", ".join(name for name in modules if not name.endswith("__"))
        check = "assert all(getattr(rk, n) is getattr(import_module(h), n) for n, h in rk._HOME.items()), vars(rk)"
        code = f"import {imports}\nimport rooflinekit as rk\nfrom importlib import import_module\n{check}"
        subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)

    def test_an_unknown_name_is_an_attribute_error(self) -> None:
        with pytest.raises(AttributeError, match="nothing_like_this"):
            _ = rk.nothing_like_this

    def test_all_of_a_module_exists_and_is_sorted(self) -> None:
        for path in MODULES:
            parts = path.relative_to(ROOT).with_suffix("").parts
            if path.name == "__main__.py":
                continue
            module = importlib.import_module(".".join(part for part in parts if part != "__init__"))
            listed = getattr(module, "__all__", [])
            assert [name for name in listed if not hasattr(module, name)] == []
            assert len(set(listed)) == len(listed)


class TestReadmeAndChecks:
    def test_the_two_commands_are_targets(self) -> None:
        commands = re.findall(r"^make ([a-z-]+)", read("README.md"), re.MULTILINE)
        targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
        assert commands == ["run", "test"]
        assert set(commands) <= targets

    def test_the_checks_run_the_test_command_of_the_readme(self) -> None:
        script = read(".ci/run")
        pattern = re.search(r"sed -nE 's/(.+)/\\1/p' README\.md", script)
        assert pattern is not None
        assert 'bash -c "$test_command"' in script
        hit = re.search(pattern[1], read("README.md"), re.MULTILINE)
        assert hit is not None
        assert hit[1] == "make test"
        assert (ROOT / ".ci" / "run").stat().st_mode & 0o111

    def test_every_target_is_phony_and_explained(self) -> None:
        makefile = read("Makefile")
        targets = set(re.findall(r"^([a-z-]+):.*##", makefile, re.MULTILINE))
        phony = re.search(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)
        assert phony is not None
        assert set(phony[1].split()) == targets


SECTIONS = dict(re.findall(r"^## (.+?)$\n(.*?)(?=^## |\Z)", read("docs/cli.md"), re.MULTILINE | re.DOTALL))


def flat(group: Any, prefix: str = "") -> dict[str, Any]:
    """Commands by their whole name, those of sub-groups included."""
    found: dict[str, Any] = {}
    for name, command in group.commands.items():
        whole = f"{prefix}{name}"
        found |= flat(command, f"{whole} ") if hasattr(command, "commands") else {whole: command}
    return found


COMMANDS = flat(get_command(app))


class TestCommands:
    @pytest.mark.parametrize("command", COMMANDS)
    def test_every_command_and_option_is_documented(self, command: str) -> None:
        title = next((title for title in SECTIONS if re.match(rf"`rooflinekit {command}\b", title)), None)
        assert title is not None, f"docs/cli.md has no section on {command}"
        for parameter in COMMANDS[command].params:
            for option in parameter.opts:
                shown = f"`{option}`" in SECTIONS[title] if option.startswith("-") else option.upper() in title
                assert shown, f"docs/cli.md: {command}: {option}"
        assert COMMANDS[command].help

    def test_nothing_is_documented_that_does_not_exist(self) -> None:
        known = {option for command in COMMANDS.values() for p in command.params for option in p.opts}
        documented = set(re.findall(r"^\| `(--[a-z-]+)`", read("docs/cli.md"), re.MULTILINE))
        assert documented <= known | {"--help"}
        named = (re.match(r"`rooflinekit ([a-z ]+?)(?: [A-Z]+)*`", title) for title in SECTIONS)
        sections = {hit[1] for hit in named if hit}
        assert sections == set(COMMANDS)

    @pytest.mark.parametrize("name", ["cli.md", "watch.md"])
    def test_the_generated_tables_are_the_present_ones(self, name: str) -> None:
        page = read(f"docs/{name}")
        assert page == refreshed(page), "run `make docs`"


def module_of(path: Path) -> str:
    """The dotted name of a file of the package; a folder has the name of its `__init__`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_of(path): path for path in MODULES}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path) -> Iterator[str]:
    """Modules of the package that a file imports, wherever it does so: in functions and for type checkers as well."""
    for node in ast.walk(tree_of(path)):
        match node:
            case ast.ImportFrom(module=str(module), level=0) if module.split(".")[0] == "rooflinekit":
                names = [f"{module}.{alias.name}" for alias in node.names]
                yield from {name if name in FILES else module for name in names}
            case ast.ImportFrom(level=level) if level:
                yield f"relative import in {path}"
            case ast.Import():
                yield from [alias.name for alias in node.names if alias.name.split(".")[0] == "rooflinekit"]


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    """What each module imports."""
    return {module: set(imported(path)) for module, path in FILES.items() if module != "rooflinekit"}


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else module


class TestRooms:
    def test_the_list_is_complete_and_documented(self) -> None:
        found = {path.stem for path in PACKAGE.glob("*.py")} | {path.parent.name for path in PACKAGE.glob("*/*.py")}
        assert found - set(OUTSIDE) == set(ROOMS)
        table = re.findall(r"^\| `(\w+)` \|", read("docs/architecture.md"), re.MULTILINE)
        assert tuple(table) == ROOMS

    def test_imports_point_downwards(self, imports: dict[str, set[str]]) -> None:
        for module in [module for module in imports if room_of(module) not in OUTSIDE]:
            room = room_of(module)
            for below in imports[module]:
                if below == "rooflinekit.version":
                    continue
                if room_of(below) == "validate":  # stands beside the rooms, and only a command may reach for it
                    assert room == "cli", f"{module} imports {below}"
                    continue
                assert room_of(below) in ROOMS, f"{module} imports {below}"
                assert ROOMS.index(room_of(below)) <= ROOMS.index(room), f"{module} imports {below}"

    def test_no_room_of_the_core_imports_a_wing(self, imports: dict[str, set[str]]) -> None:
        core = {module: below for module, below in imports.items() if room_of(module) not in (*WINGS, "cli", *OUTSIDE)}
        assert {module for module, below in core.items() if {room_of(name) for name in below} & set(WINGS)} == set()

    @pytest.mark.parametrize("wing", WINGS)
    def test_a_wing_is_imported_without_the_others(self, wing: str) -> None:
        """Functions of it may reach for another."""
        for module in [module for module in FILES if room_of(module) == wing]:
            at_once = [
                node for node in tree_of(FILES[module]).body if isinstance(node, (ast.Import, ast.ImportFrom, ast.With))
            ]
            text = "\n".join(map(ast.unparse, at_once))
            assert not [other for other in WINGS if other != wing and f"rooflinekit.{other}" in text], module

    def test_no_modules_import_each_other_in_a_circle(self, imports: dict[str, set[str]]) -> None:
        order = TopologicalSorter(imports)
        try:
            order.prepare()
        except CycleError as circle:
            pytest.fail(" imports ".join(reversed(circle.args[1])))


def without(wing: str, folder: Path) -> Path:
    """A package in which everything is a link to ours, but the wing is missing."""
    inside = folder / "rooflinekit"
    inside.mkdir()
    for path in PACKAGE.iterdir():
        if path.name not in (wing, "__pycache__"):
            (inside / path.name).symlink_to(path)
    for name in ("pyproject.toml", *SHIPPED):
        (folder / name).symlink_to(ROOT / name)
    return folder


class TestWings:
    LINES: ClassVar = {
        "evidence": {
            "watch day.prom": 2, "calibrate gemm.csv --out mine.yaml": 2, "compare bench.json": 2, "guard now.json": 2,
            "accuracy serving": 2, "show --template rules": 0,
        },
        "ops": {
            "serve": 2, "mcp": 2, "launch llama3-8b --target lws": 2, "show --template rules": 2,
            "accuracy serving --help": 0,
        },
    }  # fmt: skip
    BOTH: ClassVar = {"estimate llama3-8b --batch 32": 0, "--help": 0}

    @pytest.mark.parametrize("wing", WINGS)
    def test_a_package_without_it_answers_all_else_and_says_what_is_missing(self, wing: str, tmp_path: Path) -> None:
        lines = self.BOTH | self.LINES[wing]
        code = """
import json, sys
sys.meta_path = [finder for finder in sys.meta_path if "__editable__" not in str(finder)]  # it knows the checkout
from rooflinekit.cli.run import main
for line in json.load(sys.stdin):
    try:
        main(line.split())
    except SystemExit as end:
        print("ENDED", end.code, line, file=sys.stderr, flush=True)
"""
        for name in ("day.prom", "gemm.csv", "bench.json", "now.json"):
            (tmp_path / name).touch()
        run = subprocess.run(
            [sys.executable, "-c", code], cwd=without(wing, tmp_path), env=os.environ | {"PYTHONPATH": str(tmp_path)},
            input=json.dumps([*lines]), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert run.returncode == 0, run.stderr
        ended = [line.split(" ", 2) for line in run.stderr.splitlines() if line.startswith("ENDED")]
        assert {line: int(code or 0) for _, code, line in ended} == lines
        said = [line for line in run.stderr.splitlines() if line.startswith("rooflinekit:")]
        assert len(said) == sum(code == 2 for code in lines.values())
        assert {line[: len(f"rooflinekit: rooflinekit.{wing}")] for line in said} == {
            f"rooflinekit: rooflinekit.{wing}"
        }
        assert all("is left out of this installation" in line for line in said)


class TestModules:
    def test_every_module_says_what_it_is(self) -> None:
        for path in SOURCES:
            assert ast.get_docstring(tree_of(path))


class TestNames:
    def test_no_two_classes_have_one_name(self) -> None:
        """A reader who searches for a class finds it, and nothing else."""
        places: dict[str, list[str]] = {}
        for path in (*MODULES, *(ROOT / "validate").rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    places.setdefault(node.name, []).append(f"{name_of(path)}:{node.lineno}")
        assert {name: found for name, found in places.items() if len(found) > 1} == {}
