"""What a verb of the `gym` command is: its flags, its help, and where its code lives.

A verb's module is imported when the verb runs, and not before.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from gym.cli.flags import COMMAND_LINE, JSON, Flag, combined
from gym.errors import Problem, UserError, did_you_mean

HINTS = {
    "-a": "did you mean `--agent`?",
    "-i": "did you mean `--input`?",
    "-o": "did you mean `--output`?",
    "-m": "sweeps are `python -m gym.run -m ...`",
    "--multirun": "sweeps are `python -m gym.run -m ...`",
    "--resume": "the same --output continues by itself",
    "--agent-type": "did you mean `--agent`?",
    "--model-type": "did you mean `--model-provider`?",
}
"""Flags of other tools that people try."""

OVERRIDES = """
Every word that is no flag is an override, as Hydra writes them:
  agent=NAME                another option of a config group
  a.b=1  +a.b=1  ++a.b=1    set a value
  ~a.b                      delete a key"""


@dataclass(frozen=True)
class Verb:
    """A verb.

    Attributes:
        name: Its words, such as `env resolve`.
        code: `module:function`; the function takes `Arguments` and returns the exit code.
        takes: What its words that are no flags mean.
    """

    name: str
    code: str
    summary: str
    examples: tuple[str, ...]
    flags: tuple[Flag, ...] = ()
    details: str = ""
    takes: Literal["overrides", "name", "nothing"] = "overrides"

    def run(self, arguments: Sequence[str]) -> int:
        """Parses and runs; returns the exit code.

        Raises:
            UserError: Wrong input.
        """
        parsed = self.parse(arguments)
        module, _, function = self.code.partition(":")
        return int(getattr(importlib.import_module(module), function)(parsed))

    def parse(self, arguments: Sequence[str]) -> Arguments:
        """The flags' values and the other words.

        Raises:
            UserError: An unknown flag, a flag given twice, a value missing.
        """
        values, words = self._parser().parse_known_args(arguments)
        unknown = [word for word in words if word.startswith("-")]
        if unknown:
            raise UserError([self._unknown(word) for word in unknown])
        if self.takes == "nothing" and words:
            raise UserError(Problem(f"`gym {self.name}` takes no `{words[0]}`", "see --help", COMMAND_LINE))
        if self.takes == "name" and len(words) > 1:
            raise UserError(Problem(f"one name, please; got {', '.join(words)}", where=COMMAND_LINE))
        return Arguments(self, vars(values), words)

    def _unknown(self, word: str) -> Problem:
        name = word.partition("=")[0]
        known = ["--help", *(flag.name for flag in self._flags())]
        fix = HINTS.get(name) or did_you_mean(name, known) or f"`gym {self.name} --help` lists the flags"
        return Problem(f"unknown flag `{name}`", fix, COMMAND_LINE, data={"kind": "flag", "given": name})

    def _flags(self) -> list[Flag]:
        return [*self.flags, JSON]

    def _parser(self) -> _Parser:
        after = {"overrides": " [OVERRIDE ...]", "name": " [NAME]", "nothing": ""}[self.takes]
        parts = [f"{self.summary[0].upper()}{self.summary[1:]}.", self.details.strip()]
        parts += [OVERRIDES.strip()] if self.takes == "overrides" else []
        parser = _Parser(
            prog=f"gym {self.name}",
            usage=f"gym {self.name} [FLAG ...]{after}",
            description="\n\n".join(filter(None, parts)),
            epilog="\n  ".join(["examples:" if len(self.examples) > 1 else "example:", *self.examples]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        for flag in self._flags():
            match flag.kind:
                case "switch":
                    parser.add_argument(flag.name, help=flag.help, action="store_true")
                case "many":
                    parser.add_argument(flag.name, help=flag.help, metavar=flag.metavar, action="append")
                case _:
                    parser.add_argument(flag.name, help=flag.help, metavar=flag.metavar, action=_Once)
        return parser


@dataclass(frozen=True)
class Arguments:
    """A parsed command line.

    Attributes:
        values: Value of each flag by its `dest`; None or False where it is absent.
        words: What is no flag.
    """

    verb: Verb
    values: dict[str, Any]
    words: list[str]

    @property
    def json(self) -> bool:
        """Whether JSON is wanted."""
        return bool(self.values["json"])

    @property
    def files(self) -> list[str] | None:
        """The files of `--config`; None where there are none, so that the groups' defaults are composed."""
        return self.values.get("config") or None

    @property
    def name(self) -> str | None:
        """The one word, where the verb takes a name."""
        return self.words[0] if self.words else None

    def overrides(self) -> list[str]:
        """The overrides of the command line, those of flags included.

        Raises:
            UserError: A flag and an override contradict each other.
        """
        given = [(flag, value) for flag in self.verb.flags if flag.key and (value := self.values[flag.dest])]
        return combined(given, self.words)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(Problem(message.removeprefix("argument "), f"see `{self.prog} --help`", COMMAND_LINE))


class _Once(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        if getattr(namespace, self.dest) is not None:
            parser.error(f"{option}: given twice")
        if values == "":
            parser.error(f"{option}: expected a value, got an empty text")
        setattr(namespace, self.dest, values)
