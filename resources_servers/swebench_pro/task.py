"""A row of SWE-bench Pro, as it is published: lists are texts that mix JSON and Python's own notation."""

from __future__ import annotations

import ast
import json
import re
from typing import Annotated, Any

from pydantic import AliasChoices, BeforeValidator, Field

from gym.servers.resources import TaskData

CHECKOUT = re.compile(r"git\s+checkout\s+([0-9a-f]{7,40})\s+--\s+(.+)")


def names_in(value: Any) -> Any:
    """A list of names from a list, or from the text of one; nothing in it is ever executed.

    Raises:
        ValueError: The text is neither JSON nor a Python literal.
    """
    if not isinstance(value, str):
        return value
    for read in (json.loads, ast.literal_eval):
        try:
            found = read(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        return list(found) if isinstance(found, tuple) else found
    raise ValueError(f"neither a JSON list nor a Python one: {value[:60]}")


Names = Annotated[list[str], BeforeValidator(names_in)]


class SwebenchProTask(TaskData):
    """One instance. Further fields of the row (`requirements`, `interface`, ...) are kept and not read here."""

    instance_id: str = Field(min_length=1, description="Name of the instance.")
    base_commit: str = Field(pattern="^[0-9a-f]{7,40}$", description="Commit that the agent starts from.")
    patch: str = Field("", description="The published solution: only graded in golden mode.")
    before_repo_set_cmd: str = Field(
        "", description="Shell commands; the last line checks the tests of the solution out before grading."
    )
    selected_test_files_to_run: Names = Field(
        default_factory=list, description="What the run script is given, joined by commas."
    )
    fail_to_pass: Names = Field(
        validation_alias=AliasChoices("fail_to_pass", "FAIL_TO_PASS"), description="Tests that the solution mends."
    )
    pass_to_pass: Names = Field(
        validation_alias=AliasChoices("pass_to_pass", "PASS_TO_PASS"), description="Tests that must go on passing."
    )
    run_script: str = Field(min_length=1, description="Bash script that runs the tests.")
    parser_script: str = Field(min_length=1, description="Python script: two log files and the file to write.")
    dockerhub_tag: str = Field(min_length=1, description="Tag of the image, as published.")
    image_digest: str | None = Field(None, description="`sha256:...` of the image, where it was recorded.")

    @property
    def required(self) -> frozenset[str]:
        """The tests that decide."""
        return frozenset(self.fail_to_pass) | frozenset(self.pass_to_pass)

    @property
    def set_tests(self) -> str:
        """The one command of `before_repo_set_cmd` that grading runs, as upstream does: its last line."""
        lines = [line.strip() for line in self.before_repo_set_cmd.splitlines() if line.strip()]
        return lines[-1] if lines else ""

    @property
    def solution_commit(self) -> str | None:
        """The commit that holds the solution and its tests, where the row tells."""
        match = CHECKOUT.search(self.set_tests)
        return match[1] if match else None

    @property
    def test_files(self) -> frozenset[str]:
        """Files that grading puts in place itself."""
        match = CHECKOUT.search(self.set_tests)
        return frozenset(match[2].split() if match else ())
