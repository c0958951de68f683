from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from gym.composition.redact import RedactingFilter, Redactor, Secret, is_secret_name, mask_credentials
from gym.rollouts.identity import digest, identity

CASE = """
model:
  api_key: sk-EXAMPLE-0001
  base_url: https://user:pass-EXAMPLE-0002@models.invalid/v1?token=EXAMPLE-0003
  headers: {Authorization: Bearer EXAMPLE-0004, X-Request-Id: keep-me}
sandbox:
  registry: {username: bot, password: EXAMPLE-0005}
  env: {HF_HUB: EXAMPLE-0006, PATH: /usr/bin}
  env_from_host: [HF_HUB]
exporter:
  connection: "postgresql://svc:EXAMPLE-0007@db.invalid/runs"
  client_secret: EXAMPLE-0008
  credential: EXAMPLE-0009
agent:
  tokenizer: keep-me-too
  max_tokens: 512
  keyboard: qwerty
  monkey: banana
"""
TRANSCRIPT = """step 3: curl -H 'Authorization: Bearer EXAMPLE-0004' https://models.invalid/v1
env: HF_HUB=EXAMPLE-0006
wrote 512 tokens
"""


def case() -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(CASE)
    return data


SECRET_NAMES = """
    key api_key apiKey APIKey X-Api-Key HF_TOKEN token client_secret PASSWORD password Authorization credential
    credentials passwd DB_PWD PGPASSWORD apikey proxy-authorization api_key_2 apiKeyV2 api_keys Set-Cookie
"""
OTHER_NAMES = """
    max_tokens tokenizer keyboard monkey X-Request-Id username HF_HUB PATH num_key_frames token_type key_id tokens
    return_token_id_information passwordless author authority secretary 0 v2
"""


@pytest.mark.parametrize("name", SECRET_NAMES.split())
def test_secret_names(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", [*OTHER_NAMES.split(), ""])
def test_other_names(name: str) -> None:
    assert not is_secret_name(name)


def test_the_case_as_a_mapping() -> None:
    assert Redactor.of(None, case()).mapping(case()) == {
        "model": {
            "api_key": "***",
            "base_url": "https://user:***@models.invalid/v1?token=***",
            "headers": {"Authorization": "***", "X-Request-Id": "keep-me"},
        },
        "sandbox": {
            "registry": {"username": "bot", "password": "***"},
            "env": {"HF_HUB": "*** (from env HF_HUB)", "PATH": "/usr/bin"},
            "env_from_host": ["HF_HUB"],
        },
        "exporter": {
            "connection": "postgresql://svc:***@db.invalid/runs",
            "client_secret": "***",
            "credential": "***",
        },
        "agent": {"tokenizer": "keep-me-too", "max_tokens": 512, "keyboard": "qwerty", "monkey": "banana"},
    }


def test_the_case_as_text() -> None:
    redactor = Redactor.of(None, case())
    assert redactor.text(TRANSCRIPT) == (
        "step 3: curl -H 'Authorization: ***' https://models.invalid/v1\nenv: HF_HUB=***\nwrote 512 tokens\n"
    )
    assert "EXAMPLE" not in redactor.text(CASE) + redactor.text(json.dumps(case())) + repr(redactor.json(case()))


def test_the_identity_of_the_case_does_not_depend_on_secrets() -> None:
    def of(config: dict[str, Any]) -> str:
        redactor = Redactor.of(None, config)
        masked = redactor.mapping(config)
        return digest(identity(masked, lambda _: False, lambda path, _: path in redactor.paths))

    assert of(case()) == of(yaml.safe_load(CASE.replace("EXAMPLE-000", "ROTATED-9")))
    assert of(case()) != of(yaml.safe_load(CASE.replace("qwerty", "dvorak")))


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("https://u:p@h/x", "https://u:***@h/x"),
        ("https://u:p@ss@h:80/x", "https://u:***@h:80/x"),
        ("postgresql://svc:a/b?c@db.invalid/runs", "postgresql://svc:***@db.invalid/runs"),
        ("redis://:pw@h:6379/0", "redis://:***@h:6379/0"),
        ("mongodb+srv://u:pw@h1,h2/db?authSource=admin", "mongodb+srv://u:***@h1,h2/db?authSource=admin"),
        ("https://ghp_0123456789abcdef@github.invalid/x", "https://***@github.invalid/x"),
        ("https://bot@host.invalid/x", "https://bot@host.invalid/x"),
        ("ssh://git@host.invalid/x", "ssh://git@host.invalid/x"),
        ("http://h:8080/a@2x.png", "http://h:8080/a@2x.png"),
        ("http://h/v1?api-key=abc&n=1#access_token=d", "http://h/v1?api-key=***&n=1#access_token=***"),
        ("http://h/v1?max_tokens=5&key_id=7", "http://h/v1?max_tokens=5&key_id=7"),
        ("try https://a:b@h, then https://c:d@i.", "try https://a:***@h, then https://c:***@i."),
        ('["https://a:b@h","https://c:d@i"]', '["https://a:***@h","https://c:***@i"]'),
        ("jdbc:postgresql://h/db?user=svc&password=pw", "jdbc:postgresql://h/db?user=svc&password=***"),
        ("host=db user=svc password=pw dbname=runs", "host=db user=svc password=*** dbname=runs"),
        ("--api-key=sk-1", "--api-key=***"),
        ("X-Api-Key: abc", "X-Api-Key: ***"),
        ("Sort by key=lambda x: x[1]", "Sort by key=lambda x: x[1]"),
        ("", ""),
    ],
)
def test_credentials_by_their_form(text: str, masked: str) -> None:
    assert mask_credentials(text) == masked
    assert mask_credentials(masked) == masked


def of(unresolved: str, environ: Mapping[str, str], **more: Any) -> tuple[Redactor, dict[str, Any]]:
    """A redactor and the masked configuration, resolved by OmegaConf in the given environment."""
    config = OmegaConf.create(unresolved)
    saved = dict(os.environ)
    os.environ.update(environ)
    try:
        resolved: Any = OmegaConf.to_container(config, resolve=True)
    finally:
        os.environ.clear()
        os.environ.update(saved)
    plain: Any = OmegaConf.to_container(config)
    redactor = Redactor.of(plain, resolved, environ=environ, **more)
    return redactor, redactor.mapping(resolved)


KEY = "sk-live-0001"


@pytest.mark.parametrize(
    ("config", "masked"),
    [
        ("a: ${oc.env:POLICY_API_KEY}", {"a": "*** (from env POLICY_API_KEY)"}),
        ("a: ${oc.env:POLICY_API_KEY,none}", {"a": "*** (from env POLICY_API_KEY)"}),
        ("a: run --with ${oc.env:POLICY_API_KEY}", {"a": "run --with ***"}),
        ("a: [x, '${oc.env:POLICY_API_KEY}']", {"a": ["x", "*** (from env POLICY_API_KEY)"]}),
        ("a_key: ${oc.env:PLAIN}\nb: ${oc.env:PLAIN}", {"a_key": "*** (from env PLAIN)", "b": "*** (from env PLAIN)"}),
        ("a: ${oc.env:PLAIN}", {"a": "plain-value"}),
        (
            "a_key: ${oc.env:POLICY_API_KEY}\nb: {c: '${a_key}', d: 'x=${a_key}'}",
            {"a_key": "*** (from env POLICY_API_KEY)", "b": {"c": "*** (from env POLICY_API_KEY)", "d": "x=***"}},
        ),
        ("a: ${oc.decode:${oc.env:PIN_TOKEN}}", {"a": "*** (from env PIN_TOKEN)"}),
        ("headers: {Authorization: 'Bearer ${oc.env:POLICY_API_KEY}'}", {"headers": {"Authorization": "***"}}),
        ("a_key: ''\nb_key: null\nc_key: 5\nd_key: true", {"a_key": "", "b_key": None, "c_key": 5, "d_key": True}),
        ("credentials: {name: ab, at: {path: cd}}", {"credentials": {"name": "***", "at": {"path": "***"}}}),
        ("api_keys: [ab, cd]", {"api_keys": ["***", "***"]}),
        ("args: [--api-key, abc, --model, m]", {"args": ["--api-key", "***", "--model", "m"]}),
        ("api_key: EMPTY\nnote: the EMPTY set", {"api_key": "***", "note": "the EMPTY set"}),
        ("pwd: abc\nnote: abcabc", {"pwd": "***", "note": "abcabc"}),
    ],
)  # fmt: skip
def test_where_values_come_from(config: str, masked: dict[str, Any]) -> None:
    environ = {"POLICY_API_KEY": KEY, "PLAIN": "plain-value", "PIN_TOKEN": "123456"}
    assert of(config, environ)[1] == masked


def test_a_schema_decides_for_numbers_too() -> None:
    redactor, masked = of("a: {pin: 123456, name: x}", {}, is_secret=lambda path: path == ("a", "pin"))
    assert masked == {"a": {"pin": "***", "name": "x"}}
    assert redactor.text("pin 123456") == "pin ***"
    assert redactor.paths == {("a", "pin")}


def test_references_are_shown_in_a_configuration_that_is_not_resolved() -> None:
    config = {"api_key": "${oc.env:POLICY_API_KEY}", "token": "${oc.env:T,sk-default-1}", "key": "???"}
    assert Redactor.of(config, config, environ={}).mapping(config) == {**config, "token": "*** (from env T)"}


def test_a_label_shows_no_secret_either() -> None:
    config = {"a_key": "${oc.env:OTHER_KEY}"}
    resolved = {"a_key": "OTHER_KEY"}
    assert Redactor.of(config, resolved, environ={}).mapping(resolved) == {"a_key": "***"}


@pytest.mark.parametrize(
    ("value", "text", "masked"),
    [
        ("abcd", "xabcdx abcd", "x***x ***"),
        ("Bearer tok-1", "got tok-1 and Bearer tok-1", "got *** and ***"),
        ("sid=0123456789; lang=en", "cookie 0123456789 en", "cookie *** en"),
        ('a"b\\c', json.dumps({"x": 'a"b\\c'}), '{"x": "***"}'),
        ("pässword", json.dumps({"x": "pässword"}), '{"x": "***"}'),
        ("p@ss/word", "https://u:p%40ss%2Fword@h", "https://u:***@h"),
        ("p%40ss", "p@ss", "***"),
        ("sk-live-1\n", "sk-live-1!", "***!"),
        ("-----BEGIN KEY-----\nMIIEvQIBADANBgkq\n-----END KEY-----", "  MIIEvQIBADANBgkq", "  ***"),
        ("1234", '{"n": 1234, "s": "1234", "l": [1, 1234], "f": 1234.5, "e": 1e-1234}',
         '{"n": 1234, "s": "***", "l": [1, 1234], "f": 1234.5, "e": 1e-1234}'),
        ("1234", '[[null, -1234], ["a", 1234], 91234]', '[[null, -1234], ["a", 1234], 91234]'),
        ("1234", 'data: {"n":1234}\n\n', 'data: {"n":1234}\n\n'),
        ("1234", '{"s": "pin\\n1234 or PIN=1234"}', '{"s": "pin\\n*** or PIN=***"}'),
        ("1234", "pin 1234, not 12345", "pin ***, not 12345"),
        ("null", '{"x": null}', '{"x": null}'),
        ("<your key>", "<your key>", "<your key>"),
        ("", "nothing", "nothing"),
    ],
)  # fmt: skip
def test_known_secrets_in_text(value: str, text: str, masked: str) -> None:
    assert Redactor([Secret(value)]).text(text) == masked


def test_the_longest_secret_goes_first() -> None:
    assert Redactor([Secret("abcd"), Secret("abcdefgh")]).text("abcdefgh abcd") == "*** ***"


def test_json_keeps_numbers_and_keys() -> None:
    redactor = Redactor([Secret("1234"), Secret("role"), Secret("sk-1-x")])
    data = {"role": "my role", "n": 1234, "sk-1-x": ["1234", None, True, 1.5], "raw": '{"n": 1234}'}
    assert redactor.json(data) == {"role": "my ***", "n": 1234, "***": ["***", None, True, 1.5], "raw": '{"n": 1234}'}


def test_a_secret_has_no_telling_repr() -> None:
    assert KEY not in repr(Secret(KEY, "env X"))


class Request:
    def __str__(self) -> str:
        return f"<request with {KEY}>"


@pytest.mark.parametrize(
    ("message", "arguments", "shown"),
    [
        (f"key {KEY}", (), "key ***"),
        ("key %s of %d", (KEY, 3), "key *** of 3"),
        ("%r", ({"Authorization": KEY},), "{'Authorization': '***'}"),
        ("%s %r", ([KEY], (KEY, 1)), "['***'] \"('***', 1)\""),
        ("%s", (Request(),), "<request with ***>"),
        ("%(key)s", ({"key": KEY},), "***"),
        ("100%", (), "100%"),
        (Request(), (), "<request with ***>"),
    ],
)
def test_log_records(message: Any, arguments: tuple[Any, ...], shown: str) -> None:
    record = logging.LogRecord("x", logging.INFO, __file__, 1, message, arguments, None)
    assert RedactingFilter(Redactor([Secret(KEY)])).filter(record)
    assert record.getMessage() == shown


def test_log_arguments_without_secrets_stay_as_they_are() -> None:
    peer = ("127.0.0.1", 80)
    record = logging.LogRecord("x", logging.INFO, __file__, 1, "%s %s", (peer, 200), None)
    RedactingFilter(Redactor([Secret(KEY)])).filter(record)
    assert record.args == (peer, 200)


def test_tracebacks_in_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    handler = logging.StreamHandler()
    handler.addFilter(RedactingFilter(Redactor([Secret(KEY)])))
    log = logging.Logger("x")
    log.addHandler(handler)
    try:
        raise ValueError(f"bad {KEY}")
    except ValueError:
        log.exception("failed", stack_info=True)
    shown = capsys.readouterr().err
    assert KEY not in shown
    assert "ValueError: bad ***" in shown


PLAIN_KEYS = st.sampled_from(["model", "tokenizer", "max_tokens", "name", "items", "monkey", "x y", "é", "env"])
SECRET_KEYS = st.sampled_from(["api_key", "HF_TOKEN", "clientSecret", "password", "Authorization", "X-Api-Key"])
# An upper case Q keeps a secret from being part of a key, or of what YAML and JSON write around values.
SECRETS = st.text(st.sampled_from("abcXYZ019-_.@:/%+=~!$#&é'\"\\ \n"), min_size=3, max_size=20).map(
    lambda text: f"Q{text}Q9"
)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text("abc xyz:/'\"\\{}\n")


@st.composite
def configs(draw: st.DrawFn) -> tuple[dict[str, Any], list[str]]:
    """A configuration, and its secrets: under secret names, and from there within any text."""
    secrets = draw(st.lists(SECRETS, min_size=1, max_size=4))
    secret = st.sampled_from(secrets)
    leaking = st.builds("{}{}{}".format, st.text("abc :/"), secret, st.text("abc :/"))
    leaves = PLAIN | secret | leaking
    trees = st.recursive(
        leaves, lambda below: st.lists(below, max_size=3) | st.dictionaries(PLAIN_KEYS | SECRET_KEYS, below, max_size=4)
    )
    config: dict[str, Any] = draw(st.dictionaries(PLAIN_KEYS, trees, max_size=5))
    for number, value in enumerate(secrets):
        config[f"place {number}"] = {draw(SECRET_KEYS): draw(st.sampled_from([value, [value], {"deep": value}]))}
    return config, secrets


@settings(deadline=None)
@given(configs())
def test_no_secret_is_ever_in_a_dump(drawn: tuple[dict[str, Any], list[str]]) -> None:
    config, secrets = drawn
    redactor = Redactor.of(None, config)
    masked = redactor.mapping(config)
    raw = json.dumps(config), json.dumps(config, ensure_ascii=False)
    dumps = [
        yaml.safe_dump(masked, allow_unicode=True, width=10_000),
        json.dumps(masked, ensure_ascii=False),
        json.dumps(redactor.json(config), ensure_ascii=False),
        *map(redactor.text, raw),
        redactor.text("\n".join(secrets)),
    ]
    for secret in secrets:
        spellings = {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
        assert not [dump for dump in dumps for spelling in spellings if spelling in dump]


@settings(deadline=None)
@given(configs())
def test_masking_twice_is_masking_once_and_the_input_is_kept(drawn: tuple[dict[str, Any], list[str]]) -> None:
    config, _ = drawn
    before = json.dumps(config)
    redactor = Redactor.of(None, config)
    masked = redactor.mapping(config)
    assert redactor.mapping(masked) == masked
    assert json.dumps(config) == before


@settings(deadline=None)
@given(st.integers(1000, 10**9), st.recursive(st.integers() | st.floats(allow_nan=False), st.lists))
def test_a_secret_of_digits_never_breaks_a_number(secret: int, numbers: Any) -> None:
    data = {"n": secret, "list": [secret, numbers, [secret]], "text": str(secret)}
    masked = json.loads(Redactor([Secret(str(secret))]).text(json.dumps(data)))
    assert masked == {**data, "text": "***"}
