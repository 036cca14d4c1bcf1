"""The commands for typer, which explains them: help, slips, completions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import Parameter, Signature
from keyword import iskeyword
from shutil import get_terminal_size
from textwrap import wrap
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from rooflinekit.cli import command
from rooflinekit.cli.failures import guarded
from rooflinekit.cli.output import emit
from rooflinekit.estimation.options import OptionRow
from rooflinekit.estimation.scenario import GROUPS, complete
from rooflinekit.version import __version__

_HELP_ALL = "--help-all"
_NAMES, _WIDEST = 27, 110  # columns of the names in a help, and of all of it
_EXPLAINED = "Names complete in your shell after rooflinekit --install-completion."


class Commands(Mapping[str, Any]):
    """The commands that begin with some words, each made when it is asked for."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._names = dict.fromkeys(
            words.removeprefix(prefix).split()[0] for words in command.COMMANDS if words.startswith(prefix)
        )
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._made:
            made = _made(f"{self.prefix}{name}") if f"{self.prefix}{name}" in command.COMMANDS else _accuracy()
            made.rich_help_panel = next(
                (title for title, names in command.help_table()["panels"].items() if name in names), None
            )
            self._made[name] = made
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class CommandGroup(TyperGroup):
    """All commands; failures end as one line."""

    prefix = ""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = Commands(self.prefix)  # type: ignore[assignment]

    def main(
        self, args: Sequence[str] | None = None, prog_name: str | None = None, *rest: Any, **extra: Any
    ) -> NoReturn:
        """Run, and translate what went wrong into an exit code."""
        extra["standalone_mode"] = False
        run = super().main

        def answered() -> Any:
            try:
                return run(args, prog_name or "rooflinekit", **extra)
            except SystemExit as ended:  # so click ends where the reader of a help has gone
                if isinstance(ended.__context__, BrokenPipeError):
                    return 0
                raise

        sys.exit(guarded(answered, self.commands)[1])

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The commands below their headings, and the options."""
        lines = [f"Usage: {ctx.command_path} [OPTIONS] COMMAND [ARGS]...", "", *wrap(self.help or "", _width())]
        panels: dict[str, list[str]] = {}
        made: Mapping[str, Any] = self.commands
        for name, each in made.items():
            told = (each.help or "").partition("\n\n")[0].replace("\n", " ")
            panels.setdefault(each.rich_help_panel or "Commands", []).extend(_columns(name, told))
        params: list[Any] = self.get_params(ctx)
        options = [line for each in params for line in _columns(", ".join(each.opts), each.help)]
        for title, body in (panels | {"Options": options}).items():
            lines += ["", f"{title}:", *body]
        formatter.write("\n".join([*lines, *(["", self.epilog] if self.epilog else [])]) + "\n")


class AccuracyGroup(CommandGroup):
    """Commands below `accuracy`."""

    prefix = "accuracy "


class OptionCommand(TyperCommand):
    """A command of the table; its options also have old names, which are not shown."""

    asked: command.Command

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Examples first, then arguments and options in two columns, below the headings of the table of options."""
        words, whole = ctx.command_path.partition(" ")[2], ctx.meta.get(_HELP_ALL)
        free = (name.upper() if row.required else f"[{name.upper()}]" for name, row in self.asked.arguments.items())
        lines = [f"Usage: {ctx.command_path} [OPTIONS] {' '.join(free)}", ""]
        lines += [*(line for part in self.asked.help.splitlines() for line in wrap(part, _width()) or [""]), ""]
        if examples := command.examples_of(words):
            lines += [*(f"  {example}" for example in examples), ""]
        lines += [line for name, row in self.asked.arguments.items() for line in _columns(name.upper(), row.help)]
        shown = self.asked.options if whole else command.first_options(words)
        for title, rows in command.grouped(shown, tuple(GROUPS)):
            lines += ["", f"{title or 'Options'}:"]
            for name, row in rows.items():
                word = "" if row.kind == "flag" else f" {row.metavar or row.word}"
                usual = row.usual if row.default is None or row.default is False else str(row.default)
                told = f"{row.help} [{usual}]" if usual else row.help
                short = f", -{row.short}" if row.short else ""
                lines += _columns(f"--{name.replace('_', '-')}{short}{word}", told)
        assumed = [
            line
            for text in command.assumptions_of(words)
            for line in wrap(text, _width(), initial_indent="  ", subsequent_indent="    ")
        ]
        lines += ["", "Assumed unless options say otherwise:", *assumed] if assumed else []
        if more := len(self.asked.options) - len(shown):
            lines += ["", f"{more} more options: {ctx.command_path} {_HELP_ALL}"]
        formatter.write("\n".join(lines) + "\n")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words, old names of options as their present ones."""
        if _HELP_ALL in args:
            ctx.meta[_HELP_ALL] = True
            emit(ctx.get_help())
            ctx.exit()
        present = []
        for word in args:
            flag, sign, text = word.partition("=")
            present.append(f"{self.asked.aliases.get(flag, flag)}{sign}{text}")
        return super().parse_args(ctx, present)


def _width() -> int:
    return min(get_terminal_size().columns, _WIDEST)


def _columns(name: str, told: str) -> list[str]:
    """Names in a column, and beside them their meanings."""
    first, *rest = wrap(told, _width() - _NAMES) or [""]
    lines = [f"  {name:<{_NAMES - 3}} {first}"] if len(name) <= _NAMES - 3 else [f"  {name}", f"{'':{_NAMES}}{first}"]
    return [*lines, *(f"{'':{_NAMES}}{line}" for line in rest)]


def _version(wanted: bool) -> None:
    if wanted:
        emit(f"rooflinekit {__version__}")
        raise typer.Exit


app = typer.Typer(
    name="rooflinekit",
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="How fast, and how expensive, an LLM will be on a GPU, from first principles.",
    epilog=_EXPLAINED,
)


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def _accuracy() -> Any:
    group = typer.Typer(cls=AccuracyGroup, no_args_is_help=True, add_completion=False)
    group.callback(help="Predictions against measured tables.")(lambda: None)
    made = typer.main.get_command(group)
    made.name = "accuracy"
    return made


def _made(words: str) -> Any:
    """A command of the table as one of typer's: every value a text, which its option reads."""
    found, one = command.find(words), typer.Typer(add_completion=False)

    def call(**texts: Any) -> int:
        return found.call({name.rstrip("_"): text for name, text in texts.items()})

    rows = [_argument(name, each) for name, each in found.arguments.items()]
    rows += [
        _option(name, each) for _, some in command.grouped(found.options, tuple(GROUPS)) for name, each in some.items()
    ]
    call.__signature__ = Signature(rows)  # type: ignore[attr-defined]
    call.__annotations__ = {row.name: row.annotation for row in rows} | {"return": int}
    one.command(words.rsplit(maxsplit=1)[-1], cls=OptionCommand, help=found.help)(call)
    made: Any = typer.main.get_command(one)
    made.asked = found
    return made


def _argument(name: str, row: command.Argument) -> Parameter:
    kind: Any = list[str] if row.many else str
    shown = typer.Argument(help=row.help, autocompletion=_completion(row.complete))
    return Parameter(
        name,
        Parameter.KEYWORD_ONLY,
        default=Parameter.empty if row.required else None,
        annotation=Annotated[kind if row.required else kind | None, shown],
    )


def _option(name: str, row: OptionRow) -> Parameter:
    names = [f"--{name.replace('_', '-')}", *([f"-{row.short}"] if row.short else ())]
    shown = typer.Option(*names, help=row.help, show_default=False, autocompletion=_completion(row.complete))
    kind: Any = bool if row.kind == "flag" else list[str] | None if row.many else str | None
    name = f"{name}_" if iskeyword(name) else name
    return Parameter(
        name, Parameter.KEYWORD_ONLY, default=False if row.kind == "flag" else None, annotation=Annotated[kind, shown]
    )


def _completion(what: str | tuple[str, ...]) -> Callable[[str], list[str]] | None:
    if not what:
        return None

    def offered(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in complete(what) if name.startswith(last)]

    return offered
