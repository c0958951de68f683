from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator
from pydantic_core import PydanticCustomError

from gym.composition import schema
from gym.composition.schema import SECRET, Finding, Setting, check, expectation, fields, is_operational, is_secret
from gym.servers.base import OPERATIONAL
from gym.servers.environment import EnvironmentServerConfig
from gym.servers.resources import ResourcesServerConfig


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")


class HostedModel(Closed):
    name: str
    base_url: str = Field(json_schema_extra=OPERATIONAL)
    temperature: float = 0.0
    max_output_tokens: int = Field(512, ge=1)
    extra_body: dict[str, Any] = {}


class Run(Closed):
    concurrency: int = Field(4, ge=1)
    attempts: int = Field(1, ge=1)


class Agent(Closed):
    max_steps: int = Field(6, ge=1)


class Case(Closed):
    model: HostedModel
    run: Run
    agent: Agent


def case(**changes: dict[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = {
        "model": {"name": "demo-model", "base_url": "http://127.0.0.1:9/v1", "temperature": 0.0},
        "run": {"concurrency": 4, "attempts": 1},
        "agent": {"max_steps": 6},
    }
    for key, more in changes.items():
        config[key] = {**config.get(key, {}), **more}
    return config


@pytest.mark.parametrize(
    ("config", "found"),
    [
        (case(), []),
        (case(model={"extra_body": {"anything": 1}}), []),
        (
            case(model={"temprature": 0.2}),
            [Finding(("model", "temprature"), "unknown key `temprature`", "did you mean `temperature`?")],
        ),
        (case(rn={"concurrency": 8}), [Finding(("rn",), "unknown key `rn`", "did you mean `run`?")]),
        (
            case(run={"concurrency": "eight"}),
            [Finding(("run", "concurrency"), "wants an integer of at least 1, got the text `eight`")],
        ),
        (
            case(model={"max_output_tokens": -1}),
            [Finding(("model", "max_output_tokens"), "wants an integer of at least 1, got -1")],
        ),
        (
            case(agent={"max_step": 3}),
            [Finding(("agent", "max_step"), "unknown key `max_step`", "did you mean `max_steps`?")],
        ),
        (
            case(run={"concurrency": 0}, agent={"colour": 3}),
            [
                Finding(("run", "concurrency"), "wants an integer of at least 1, got 0"),
                Finding(("agent", "colour"), "unknown key `colour`", "known keys: max_steps"),
            ],
        ),
    ],
)
def test_the_case_of_the_mistyped_override(config: dict[str, Any], found: list[Finding]) -> None:
    settings, findings = check(Case, config)
    assert findings == found
    assert (settings is None) == bool(found)


def test_facts_for_machines() -> None:
    assert check(Agent, {"max_step": 3})[1][0].data == {
        "kind": "unknown_key",
        "given": "max_step",
        "suggestions": ["max_steps"],
        "available": ["max_steps"],
    }


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Http(Closed):
    kind: Literal["http"]
    url: str = Field(description="Address.")
    api_key: str = Field("", min_length=8)


class Mcp(Closed):
    kind: Literal["mcp"]
    names: list[str] = Field(min_length=1)


class Small(Closed):
    width: int = Field(ge=1, le=9)


class Large(Closed):
    height: float
    depth: float


class Node(Closed):
    """A tree."""

    value: int = 0
    below: list[Node] = []


class Settings(Closed):
    count: int = Field(1, gt=0, description="How many.", json_schema_extra=OPERATIONAL)
    port: int | None = Field(None, ge=0, le=65535)
    share: float = Field(0.5, gt=0, le=1)
    wait_seconds: float | None = Field(None, gt=0, json_schema_extra=OPERATIONAL)
    even: Annotated[int, Field(multiple_of=2, ge=4)] = 4
    switch: bool = False
    name: str = Field("x", min_length=1)
    code: str = Field("ab", pattern="^[a-z]+$")
    split: Literal["train", "validation"] | None = None
    only: Literal["this"] = "this"
    colour: Colour = Colour.RED
    path: Path = Path("x")
    limit: Annotated[int, Field(ge=1)] | Literal["auto", "none"] = "auto"
    names: str | list[str] = "x"
    counts: list[Annotated[int, Field(ge=0)]] = Field(default_factory=list)
    pair: tuple[int, str] = (1, "a")
    sizes: dict[str, int] = {}
    free: dict[str, Any] = Field(default_factory=dict, json_schema_extra=OPERATIONAL)
    grant: Annotated[Http | Mcp, Field(discriminator="kind")] | None = None
    grants: list[Annotated[Http | Mcp, Field(discriminator="kind")]] = []
    shape: Small | Large | None = None
    by_name: dict[str, Small] = {}
    node: Node | None = None
    secret: SecretStr | None = Field(None, min_length=8)
    pin: int | None = Field(None, ge=1000, json_schema_extra=SECRET)
    api_key: Literal["a", "b"] | None = None
    max_token: int = Field(1, ge=1)
    login: Small | None = Field(None, json_schema_extra={**SECRET, "operational": True})
    address: Literal["x"] | None = None
    own: int = 0

    @field_validator("own")
    @classmethod
    def check_own(cls, value: int) -> int:
        if value == 1:
            raise ValueError("one is not enough")
        if value == 2:
            raise PydanticCustomError("two", "two is a crowd")
        return value

    @model_validator(mode="after")
    def check_all(self) -> Settings:
        if self.count > self.even * 100:
            raise ValueError("count must fit even")
        return self


LONG = "long " * 40


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"count": 0}, ["count: wants an integer of at least 1, got 0"]),
        ({"count": None}, ["count: wants an integer of at least 1, got nothing (null)"]),
        ({"count": 1.5}, ["count: wants an integer of at least 1, got 1.5"]),
        ({"count": [1]}, ["count: wants an integer of at least 1, got a list"]),
        ({"count": {"a": 1}}, ["count: wants an integer of at least 1, got a mapping"]),
        ({"port": 70000}, ["port: wants an integer from 0 to 65535, got 70000"]),
        ({"share": 0}, ["share: wants a number greater than 0 and of at most 1, got 0"]),
        ({"wait_seconds": 0}, ["wait_seconds: wants a number greater than 0, got 0"]),
        ({"even": 3}, ["even: wants an integer of at least 4 and a multiple of 2, got 3"]),
        ({"switch": "perhaps"}, ["switch: wants true or false, got the text `perhaps`"]),
        ({"name": ""}, ["name: wants text that is not empty, got an empty text"]),
        ({"name": True}, ["name: wants text that is not empty, got true"]),
        ({"name": 5}, ["name: wants text that is not empty, got 5"]),
        ({"code": "A\n1"}, ["code: wants text that matches `^[a-z]+$`, got the text `A 1`"]),
        ({"code": LONG}, [f"code: wants text that matches `^[a-z]+$`, got the text `{LONG[:57]}...`"]),
        ({"split": "trian"}, ["split: wants one of train, validation, got the text `trian`; did you mean `train`?"]),
        ({"only": "that"}, ["only: wants `this`, got the text `that`"]),
        ({"colour": "green"}, ["colour: wants one of red, blue, got the text `green`"]),
        ({"path": 3}, ["path: wants a path, got 3"]),
        ({"limit": -1}, ["limit: wants an integer of at least 1 or one of auto, none, got -1"]),
        ({"limit": "aut"}, ["limit: wants an integer of at least 1 or one of auto, none, got the text `aut`; "
                            "did you mean `auto`?"]),
        ({"names": 3}, ["names: wants text or a list of texts, got 3"]),
        ({"names": ["a", 3, 4]}, ["names.1: wants text, got 3", "names.2: wants text, got 4"]),
        ({"counts": 3}, ["counts: wants a list of integers of at least 0, got 3"]),
        ({"counts": [0, -1]}, ["counts.1: wants an integer of at least 0, got -1"]),
        ({"pair": "x"}, ["pair: wants a list of 2 items, got the text `x`"]),
        ({"sizes": 3}, ["sizes: wants a mapping, got 3"]),
        ({"sizes": {"a": "x"}}, ["sizes.a: wants an integer, got the text `x`"]),
        ({"grant": 3}, ["grant: wants a mapping, got 3"]),
        ({"grant": {}}, ["grant.kind: is required: one of http, mcp"]),
        ({"grant": {"kind": "htp"}}, ["grant.kind: wants one of http, mcp, got the text `htp`; did you mean `http`?"]),
        ({"grant": {"kind": "http"}}, ["grant.url: is required: Address."]),
        ({"grant": {"kind": "mcp", "nams": []}}, ["grant.names: is required",
                                                  "grant.nams: unknown key `nams`; did you mean `names`?"]),
        ({"grants": [{"kind": "mcp", "names": []}]}, ["grants.0.names: wants a list of texts, at least 1, got a list"]),
        ({"shape": 3}, ["shape: wants a mapping, got 3"]),
        ({"shape": {"width": 0}}, ["shape.width: wants an integer from 1 to 9, got 0"]),
        ({"shape": {"height": 1, "dept": 1}}, ["shape.depth: is required",
                                               "shape.dept: unknown key `dept`; did you mean `depth`?"]),
        ({"by_name": {"a": {"width": 99}}}, ["by_name.a.width: wants an integer from 1 to 9, got 99"]),
        ({"node": {"below": [{"below": [{"value": "x"}]}]}}, ["node.below.0.below.0.value: wants an integer, "
                                                              "got the text `x`"]),
        ({"secret": "hush"}, ["secret: wants text of at least 8 characters, got a secret value that does not fit"]),
        ({"secret": ""}, ["secret: wants text of at least 8 characters, got an empty text"]),
        ({"pin": 12}, ["pin: wants an integer of at least 1000, got a secret value that does not fit"]),
        ({"api_key": "bb"}, ["api_key: wants one of a, b, got a secret value that does not fit"]),
        ({"max_token": -1}, ["max_token: wants an integer of at least 1, got -1"]),
        ({"login": {"width": 12}}, ["login.width: wants an integer from 1 to 9, got a secret value that does not fit"]),
        ({"address": "http://u:pw@h/x?token=t"}, ["address: wants `x`, got the text `http://u:***@h/x?token=***`"]),
        ({"own": 1}, ["own: one is not enough"]),
        ({"own": 2}, ["own: two is a crowd"]),
        ({"count": 1000}, [": count must fit even"]),
        ({1: 2}, ["1: unknown key `1`; known keys: count, port, share, wait_seconds, even, switch, name, code, split, "
                  "only, colour, path, ..."]),
        ({"zzz": 1, "own": 1, "count": 0}, ["count: wants an integer of at least 1, got 0", "own: one is not enough",
                                            "zzz: unknown key `zzz`; known keys: count, port, share, wait_seconds, "
                                            "even, switch, name, code, split, only, colour, path, ..."]),
    ],
)  # fmt: skip
def test_what_is_wrong(values: dict[str, Any], found: list[str]) -> None:
    settings, findings = check(Settings, values)
    assert settings is None
    said = [f"{'.'.join(item.key)}: {item.what}" + (f"; {item.fix}" if item.fix else "") for item in findings]
    assert said == found


class Token(Closed):
    token: str = "none"

    @field_validator("token")
    @classmethod
    def check_token(cls, value: str) -> str:
        raise ValueError(f"{value} has no dash")


def test_a_validator_cannot_tell_a_secret() -> None:
    assert check(Token, {"token": "hush"})[1] == [Finding(("token",), "*** has no dash")]


def test_good_values_are_the_settings() -> None:
    settings, findings = check(Settings, {"count": "3", "grant": {"kind": "mcp", "names": ["a"]}})
    assert settings is not None
    assert (settings.count, settings.grant) == (3, Mcp(kind="mcp", names=["a"]))
    assert findings == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("count", "an integer of at least 1"),
        ("share", "a number greater than 0 and of at most 1"),
        ("switch", "true or false"),
        ("split", "one of train, validation"),
        ("free", "a mapping"),
        ("free.any.thing", "any value"),
        ("counts.7", "an integer of at least 0"),
        ("pair.1", "text"),
        ("grants.0.names", "a list of texts, at least 1"),
        ("grant.kind", "one of http, mcp"),
        ("by_name.a", "a mapping"),
        ("node.below.0.below.1.value", "an integer"),
        ("nothing", ""),
        ("count.below", ""),
        ("", "a mapping"),
    ],
)
def test_expectations(path: str, text: str) -> None:
    assert expectation(Settings, path.split(".") if path else ()) == text


@pytest.mark.parametrize(
    ("model", "path", "operational"),
    [
        (Settings, "count", True),
        (Settings, "port", False),
        (Settings, "free", True),
        (Settings, "free.any.thing", True),
        (Settings, "login.width", True),
        (Settings, "shape.width", False),
        (Settings, "nothing", False),
        (Case, "model.base_url", True),
        (Case, "model.name", False),
        (EnvironmentServerConfig, "queue_timeout_seconds", True),
        (EnvironmentServerConfig, "default_episode_timeout_seconds", False),
        (ResourcesServerConfig, "datasets.0.name", False),
    ],
)
def test_operational(model: type[BaseModel], path: str, operational: bool) -> None:
    assert is_operational(model, tuple(path.split("."))) is operational


@pytest.mark.parametrize(
    ("path", "secret"),
    [
        ("secret", True),
        ("pin", True),
        ("login", True),
        ("login.width", True),
        ("api_key", True),
        ("grant.api_key", True),
        ("grants.3.api_key", True),
        ("free.password", True),
        ("max_token", False),
        ("count", False),
        ("grant.url", False),
        ("nothing", False),
    ],
)
def test_secret(path: str, secret: bool) -> None:
    assert is_secret(Settings, tuple(path.split("."))) is secret


class Old(Closed):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    value: str = Field("", alias="old-value", json_schema_extra=SECRET)


def test_settings_are_found_by_name_and_alias() -> None:
    assert is_secret(Old, ("value",))
    assert is_secret(Old, ("old-value",))


def test_the_table_of_fields() -> None:
    table = {setting.name: setting for setting in fields(Settings)}
    assert table["count"] == Setting("count", "an integer of at least 1", 1, False, "How many.", True, False)
    assert table["port"] == Setting("port", "an integer from 0 to 65535 or null", None, False, "", False, False)
    assert table["counts"].default == []
    assert table["grant.url"] == Setting("grant.url", "text", None, True, "Address.", False, False)
    assert table["grant.kind"].type == "one of http, mcp"
    assert table["login.width"].secret
    assert table["login.width"].operational
    names = list(table)
    assert names[:2] == ["count", "port"]
    assert {"grants[].names", "by_name.<key>.width", "shape.width", "shape.depth", "node.below"} <= set(names)
    assert names.index("grant") + 1 == names.index("grant.kind")
    assert "node.below[].value" not in names


def test_the_table_of_a_server() -> None:
    table = {setting.name: setting for setting in fields(ResourcesServerConfig)}
    assert table["num_workers"].operational
    assert table["datasets[].type"].required
    assert all(setting.type and setting.description for setting in table.values())


def test_the_json_schema_is_a_copy_and_has_the_marks() -> None:
    properties = schema.json_schema(Settings)["properties"]
    assert properties["pin"]["secret"] is properties["count"]["operational"] is True
    properties.clear()
    assert schema.json_schema(Settings)["properties"]


class Thing:
    """A type that JSON has no word for."""


class Opaque(Closed):
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    thing: Thing = Field(default_factory=Thing)
    count: int = 1


def test_types_that_json_has_no_word_for() -> None:
    assert check(Opaque, {"count": "x"})[1] == [Finding(("count",), "wants an integer, got the text `x`")]
    assert [setting.type for setting in fields(Opaque)] == ["any value", "an integer"]
