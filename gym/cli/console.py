"""What the commands share: how errors are told, how data are printed, how logs are kept."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any

from gym.errors import EXIT_INTERRUPTED, EXIT_WRONG_INPUT, UserError

FULL_ERROR = "GYM_FULL_ERROR"


def guarded(command: Callable[[], int], *, as_json: bool = False) -> int:
    """Runs a command; wrong input becomes one line a problem on stderr and exit code 2, without a traceback.

    Args:
        as_json: Print the problems as JSON on stdout instead.
    """
    try:
        code = command()
        sys.stdout.flush()
        return code
    except UserError as error:
        if os.environ.get(FULL_ERROR) == "1":
            raise
        tell(error, as_json=as_json)
        return EXIT_WRONG_INPUT
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe left, as `| head` does: nothing is wrong.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def tell(error: UserError, *, as_json: bool = False) -> None:
    """Prints problems for people, or as JSON."""
    if as_json:
        print_json({"problems": [problem.as_dict() for problem in error.problems]})
        return
    for problem in error.problems:
        print(problem, file=sys.stderr)


def print_json(data: Any) -> None:
    """Prints data as JSON on stdout."""
    print(json.dumps(data, indent=2, ensure_ascii=False, default=str))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[str] = ()) -> None:
    """Prints a table on stdout: boxed on a terminal, aligned plain text elsewhere.

    Args:
        right: Columns of numbers.
    """
    from gym.report.table import Table, print_rows

    print_rows(Table(header, rows, set(right)), sys.stdout)
