"""A command: a function, its arguments, and the rows of the table of options that it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from inspect import getdoc
from typing import Any, NamedTuple, TypeVar

from rooflinekit.cli.output import CommandOutput
from rooflinekit.estimation.options import Keywords, OptionRow, options_of
from rooflinekit.model.types.errors import InputError, RooflinekitError
from rooflinekit.specs.files import table_of


class Argument(NamedTuple):
    """A word of a command line without a dash; `many`: all that are left."""

    help: str
    required: bool = True
    many: bool = False
    complete: str = ""


MODEL = Argument("Name, Hugging Face id, or path to a config.json or its folder.", complete="model")
MAYBE_MODEL = MODEL._replace(required=False)
_AS = OptionRow(
    "Read the config.json as one of this class, whatever it says it is.", kind="text", group="Output", metavar="CLASS"
)


class Command:
    """A command: the function and options behind one word of the command line."""

    def __init__(
        self, function: Callable[..., int | None], arguments: Mapping[str, Argument], options: Mapping[str, OptionRow]
    ) -> None:
        self.function, self.arguments, self.options = function, arguments, options
        self.help = getdoc(function) or ""
        self.aliases = {
            f"--{old.replace('_', '-')}": f"--{name.replace('_', '-')}"
            for name, option in options.items()
            for old in option.also
            if old not in options
        }

    def words(self, words: Sequence[str]) -> dict[str, Any] | None:
        """The texts of a command line without surprises, by name; None leaves it to the parser that explains them."""
        texts: dict[str, Any] = {}
        free: list[str] = []
        rest = iter(words)
        for word in rest:
            if not word.startswith("-") or word == "-":
                free.append(word)
                continue
            flag, sign, text = word.partition("=")
            name = self.aliases.get(flag, flag).removeprefix("--").replace("-", "_")
            option = self.options.get(name)
            if option is None or "_" in flag or not flag.startswith("--") or (option.kind == "flag" and sign):
                return None
            value: Any = True if option.kind == "flag" else text if sign else next(rest, None)
            if value is None:
                return None
            texts[name] = [*texts.get(name, ()), value] if option.many else value
        return self._placed(free, texts)

    def _placed(self, free: list[str], texts: dict[str, Any]) -> dict[str, Any] | None:
        for name, argument in self.arguments.items():
            if not free and argument.required:
                return None
            if free:
                texts[name] = free if argument.many else free.pop(0)
                free = [] if argument.many else free
        return None if free else texts

    def answer(self, words: Sequence[str]) -> int | None:
        """Run a command line without surprises; None, and nothing is done, for another."""
        texts = self.words(words)
        return None if texts is None else self.call(texts)

    def call(self, texts: Mapping[str, Any]) -> int:
        """Read texts as the values of their options, and run; what was not said is left to its default."""
        given = {name: self.value(name, text) for name, text in texts.items() if text not in (None, False, [], ())}
        for name in ("model", "name"):  # typed here, and so asked for
            if isinstance(given.get(name), str) and "/" in given[name]:
                given[name] = import_module("rooflinekit.specs.models").typed_model(given[name])
        if kind := given.pop("as", None):
            given |= {name: f"as:{kind}:{text}" for name, text in given.items() if name in self.arguments}
        free = [given.pop(name, [] if argument.many else None) for name, argument in self.arguments.items()]
        written = {
            name: given.pop(name, self.options[name].default) for name in CommandOutput._fields if name in self.options
        }
        return self.function(*free, to=CommandOutput(**written), **given) or 0

    def value(self, name: str, text: Any) -> Any:
        """The value in the text of an option; raises InputError for one that says nothing."""
        option = self.options.get(name)
        if option is None or option.kind == "flag":
            return text
        try:
            if not option.many:
                return option.check(name.replace("_", "-"), option.parse(text))
            values = [option.parse(each) for each in text]
        except RooflinekitError:
            raise
        except ValueError as error:
            raise InputError(f"invalid value for '--{name.replace('_', '-')}': {error}") from None
        return option.joined(name, values)


Function = TypeVar("Function", bound=Callable[..., int | None])


def command(
    *tables: Any, arguments: Mapping[str, Argument] | None = None, leave: Sequence[str] = ()
) -> Callable[[Function], Function]:
    """Make a function a command with the options of some tables, but those in `leave`."""

    def decorated(function: Function) -> Function:
        found = dict(arguments if arguments is not None else {"model": MODEL})
        rows = {
            name: option
            for table in tables
            for name, option in (table if isinstance(table, dict) else options_of(table)).items()
        }
        shown = {name: row for name, row in rows.items() if not row.hidden and name not in (*leave, *found)}
        if any(argument.complete == "model" and not argument.many for argument in found.values()):
            shown["as"] = _AS
        function.command = Command(function, found, shown)  # type: ignore[attr-defined]
        return function

    return decorated


def refuse(given: Keywords, why: str) -> None:
    """Raise InputError for the first option that was given."""
    for name in (name for name, value in given.items() if value is not None):
        raise InputError(f"--{name.replace('_', '-')} {why}")


_APART = ("sweep", "plan", "validate", "calibrate")  # which have modules of their own
_WRITING = ("workbook", "report", "serve", "mcp")
COMMANDS = {
    words: words if words in _APART else "writing" if words in _WRITING else "answers"
    for words in (
        "estimate", "explain", "simulate", "trace", "shapes", "levers", "cost", "sweep", "plan", "models", "gpus",
        "show", "validate", "calibrate", "compare", "verify", "guard", "watch", "launch", *_WRITING,
        "accuracy energy", "accuracy kernels", "accuracy league", "accuracy memory", "accuracy serving",
    )
}  # fmt: skip
"""The words of each command, and the module that holds it; it is imported when it is asked for."""


@cache
def find(words: str) -> Command:
    """The command of these words."""
    found: Command = getattr(import_module(f"rooflinekit.cli.{COMMANDS[words]}"), words.rsplit(maxsplit=1)[-1]).command
    return found


help_table = partial(table_of, __file__)
"""Examples, first options, headings, and options of others, of the help and of messages; read where they are shown."""


def examples_of(words: str) -> list[str]:
    """Lines that the help of a command ends with."""
    lines: list[str] = help_table()["examples"].get(words, [])
    return lines


MOST_SHOWN = 25
"""Options of a first help screen."""


def first_options(words: str) -> Mapping[str, OptionRow]:
    """The options of a command that its first help screen shows: all of them where they are few."""
    options = find(words).options
    if len(options) <= MOST_SHOWN:
        return options
    table = help_table()["first"]
    shown = table["only"].get(words) or (*table["every"], *table["besides"].get(words, ()))
    return {name: option for name, option in options.items() if name in shown}


def assumptions_of(words: str) -> Sequence[str]:
    """Notes that would stand below every answer of a command."""
    if words != "plan":
        return ()
    from rooflinekit.report.plan import ASSUMPTIONS

    return ASSUMPTIONS


def grouped(options: Mapping[str, OptionRow], order: Sequence[str]) -> Iterator[tuple[str, dict[str, OptionRow]]]:
    """Options by the headings of the help, in the order of the table."""
    names = list(dict.fromkeys((*order, *(option.group for option in options.values()), "Output")))
    for name in sorted(names, key=lambda name: (name == "Output", names.index(name))):
        rows = {key: option for key, option in options.items() if option.group == name}
        if rows:
            yield name, rows
