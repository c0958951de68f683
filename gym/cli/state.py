"""Where running servers are: `.gym/servers.json` in the folder they were started in, for their user alone.

The file holds the token of the servers. It is written once they answer, and removed when they have stopped.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gym.errors import Problem, UserError

if TYPE_CHECKING:
    from gym.planning.plan import Plan
    from gym.servers.client import Client

FILE = Path(".gym") / "servers.json"
LIVE_SECONDS = 10.0
"""How long a server may take to say that it lives: the first answer of all loads the HTTP side."""


@dataclass(frozen=True)
class Servers:
    """Servers that one process runs.

    Attributes:
        pid: That process; `ticks` is when it began, in the kernel's own clock, so that a later process of the same
            number is not taken for it.
        base_url: Where the servers without processes of their own are.
        instances: Type, implementation and URL of each, and its own processes, where it has some.
        identity: What they were configured with, without secrets and operational settings.
        digest: Of the identity.
        operational: What else they were started with, without secrets.
        images: The digest of each image that settings of theirs name.
    """

    pid: int
    ticks: int
    started_at: str
    base_url: str
    token: str
    instances: dict[str, dict[str, Any]]
    identity: dict[str, Any]
    digest: str
    operational: dict[str, Any] = field(default_factory=dict)
    images: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Servers(pid={self.pid}, base_url={self.base_url!r})"

    @property
    def is_process_alive(self) -> bool:
        """Whether the process that started them still runs."""
        return started_ticks(self.pid) == self.ticks

    def answers(self, name: str = "") -> bool:
        """Whether an instance, or the host of them all, says that it lives."""
        return _is_live(f"{self.instances[name]['url'] if name else self.base_url}/livez")


def _is_live(url: str) -> bool:
    from urllib.request import ProxyHandler, build_opener

    try:
        with build_opener(ProxyHandler({})).open(url, timeout=LIVE_SECONDS) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError):
        return False


def started_ticks(pid: int) -> int | None:
    """When a process began, in clock ticks since boot; None where there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # a program's name may hold spaces and brackets
    return None if fields[0] in "ZX" else int(fields[19])


def read() -> Servers | None:
    """What the file of this folder says; None where there is no file.

    Raises:
        UserError: It cannot be read.
    """
    try:
        return Servers(**json.loads(FILE.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        fix = "stop the servers it speaks of, and remove it"
        raise UserError(Problem(f"cannot be read: {error}", fix, str(FILE))) from error


def running() -> Servers:
    """The servers of this folder.

    Raises:
        UserError: None run, or they do not answer.
    """
    found = read()
    if found is None or not found.is_process_alive:
        raise UserError(Problem("no servers run in this folder", "start them with `gym env start`", str(FILE)))
    if not found.answers():
        what = f"process {found.pid} runs, but its servers at {found.base_url} do not answer"
        raise UserError(Problem(what, "`gym env stop`, then `gym env start`", str(FILE)))
    return found


def refuse_running() -> None:
    """Raises where servers run in this folder already; what a crashed process left is removed."""
    found = read()
    if found is None:
        return
    if found.is_process_alive:
        what = f"servers run here already (process {found.pid}, {found.base_url})"
        raise UserError(Problem(what, "`gym env stop` stops them", str(FILE)))
    FILE.unlink(missing_ok=True)


@contextlib.contextmanager
def written(servers: Servers) -> Iterator[None]:
    """Keeps the file while the servers run.

    Raises:
        UserError: Others were started here meanwhile, or the file cannot be written.
    """
    try:
        FILE.parent.mkdir(mode=0o700, exist_ok=True)
        FILE.parent.chmod(0o700)
        (FILE.parent / ".gitignore").write_text("*\n", encoding="utf-8")
        _create(json.dumps(asdict(servers), indent=2) + "\n")
    except FileExistsError:
        refuse_running()
        raise UserError(Problem("servers were started here at the same time", "try again", str(FILE))) from None
    except OSError as error:
        raise UserError(Problem(f"cannot be written: {error.strerror}", where=str(FILE))) from error
    try:
        yield
    finally:
        FILE.unlink(missing_ok=True)


def rewrite(servers: Servers) -> None:
    """Replaces what the file says, in one step: a process was started again, and has another number."""
    handle, name = tempfile.mkstemp(dir=FILE.parent, prefix=".servers-")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(json.dumps(asdict(servers), indent=2) + "\n")
    Path(name).replace(FILE)


def _create(text: str) -> None:
    """Makes the file in one step, with its whole text, unless there is one."""
    handle, name = tempfile.mkstemp(dir=FILE.parent, prefix=".servers-")  # made with mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.link(name, FILE)
    finally:
        Path(name).unlink()


def identity_of(made: Plan) -> dict[str, Any]:
    """What running servers must have in common with a run that uses them: instances and sandbox providers."""
    from gym.rollouts.execute import identity

    used = {*made.instances, *made.resolved.components}
    return {key: value for key, value in identity(made).items() if key.partition(".")[0] in used}


def refuse_others(servers: Servers, made: Plan) -> None:
    """Refuses to run a plan on servers that are configured otherwise; more instances than needed are no matter.

    Raises:
        UserError: What differs, one line a setting.
    """
    from gym.rollouts import identity

    mine = identity_of(made)
    if identity.digest(mine) == servers.digest:
        return
    used = {*made.instances, *made.resolved.components}
    theirs = {key: value for key, value in servers.identity.items() if key.partition(".")[0] in used}
    differences = identity.compare(theirs, mine)
    if not differences:
        return
    fix = "give both commands the same configuration, or start the servers again"
    head = Problem("the running servers have another configuration", fix, str(FILE), order=(0, 0))
    hide = made.resolved.redactor.text
    rows = [
        Problem(
            f"running: {hide(_shown(item.old))}  wanted: {hide(_shown(item.new))}",
            key=item.key,
            order=(0, number),
            data={"kind": "changed_setting"},
        )
        for number, item in enumerate(differences, 1)
    ]
    raise UserError([head, *rows])


def operational_of(made: Plan) -> dict[str, Any]:
    """What running servers keep whatever a run that uses them asks for: operational settings, budgets, prices."""
    from gym.rollouts.execute import everything, identity

    mine, of_run = identity(made), _of_run()
    return {
        key: value
        for key, value in _used(everything(made), made).items()
        if key not in mine or key.partition(".")[0] in of_run
    }


def _of_run() -> set[str]:
    """Settings of a run that its servers keep to."""
    from gym.capture.budget import Budgets

    return {*Budgets.model_fields, "prices", "capture"}


def _used(values: Mapping[str, Any], made: Plan) -> dict[str, Any]:
    heads = {*made.instances, *made.resolved.components, *_of_run()}
    return {key: value for key, value in values.items() if key.partition(".")[0] in heads}


def kept(servers: Servers, made: Plan) -> str | None:
    """The settings that have no effect on the running servers, which were started with others; None for none."""
    from gym.rollouts import identity

    hide = made.resolved.redactor.text
    differing = [
        f"{item.key} (running: {hide(_shown(item.old))}, asked for: {hide(_shown(item.new))})"
        for item in identity.compare(_used(servers.operational, made), operational_of(made))
    ]
    return f"the running servers keep what they were started with: {', '.join(differing)}" if differing else None


def _shown(value: Any) -> str:
    import enum

    from gym.composition.credentials import mask_credentials

    return str(value.value) if isinstance(value, enum.Enum) else mask_credentials(json.dumps(value, ensure_ascii=False))


@contextlib.asynccontextmanager
async def client(servers: Servers) -> AsyncIterator[Client]:
    """Reaches the running servers."""
    from gym.servers.client import Client, Directory

    made = Client(Directory(remote={name: item["url"] for name, item in servers.instances.items()}), servers.token)
    try:
        yield made
    finally:
        await made.aclose()


def as_shown(servers: Servers) -> Mapping[str, Any]:
    """The servers as JSON data without their token."""
    return {
        "pid": servers.pid,
        "started_at": servers.started_at,
        "base_url": servers.base_url,
        "digest": servers.digest,
        "instances": servers.instances,
    }
