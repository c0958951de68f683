"""The configuration reference says of each setting what its schema says."""

from __future__ import annotations

from pydantic import BaseModel, Field

from gym.planning import reference
from gym.servers.base import OPERATIONAL
from gym.servers.contract import ServerRef
from gym.tasks.datasets import DatasetConfig


class Inner(BaseModel):
    depth: int = Field(1, description="How deep.")


class Base(BaseModel):
    kept: str = Field("a", description="As in the base.")
    changed: int | None = Field(None, description="Narrowed below.")


class Settings(Base):
    changed: int = Field(description="No longer optional.")
    server: ServerRef = Field(description="Who is asked.")
    api_key: str | None = Field(None, description="Sent along.")
    datasets: list[DatasetConfig] = Field(default_factory=list, description="Rows.")
    inner: Inner = Field(Inner(), description="A part.", json_schema_extra=OPERATIONAL)
    odd: str = Field("x|y", description="Of the form <a>|<b>.")


def test_a_row_for_each_setting_with_what_it_wants() -> None:
    head, rule, *rows = reference.table(Settings, beyond=Base).splitlines()
    assert head.count("|") == rule.count("|")
    assert rows == [
        "| `changed` | an integer | *required* | No longer optional. | fixed |",
        "| `server` | a reference `{type, name}` | *required* | Who is asked. | fixed |",
        "| `api_key` | text or null | `null` | Sent along. Secret. | fixed |",
        "| `datasets` | a list of mappings | `[]` | Rows. | fixed |",
        "| `inner` | a mapping | as below | A part. | may change |",
        "| `inner.depth` | an integer | `1` | How deep. | may change |",
        r'| `odd` | text | `"x\|y"` | Of the form \<a>\|\<b>. | fixed |',
    ]


def test_nothing_beyond_the_base_is_no_table() -> None:
    assert reference.table(Base, beyond=Base) == ""
