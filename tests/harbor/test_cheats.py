"""Attempts to deceive a verifier: the grade is what it would have been without them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gym.sandbox.interface import SandboxProvider
from responses_api_agents.oracle_agent.app import OracleAgent
from tests.harbor.folders import folder
from tests.harbor.trials import build
from tests.sandbox.conftest import docker

AT_ONCE = 4
TASK = '[environment]\ndocker_image = "gym-base"\nworkdir = "/app"\nnetwork_mode = "no-network"\n'
USERS = f'{TASK}[agent]\nuser = "agent"\n'
SEPARATE = f'artifacts = ["/app/answer", "/app/more"]\n{TASK}[verifier]\nenvironment_mode = "separate"\n'
# The one who knows the word has solved the task. Whoever finds the word here has not.
TESTS: dict[str, str | None] = {
    "environment/Dockerfile": None,
    "tests/word": "marzipan\n",
    "tests/check.py": "from pathlib import Path\n"
    "said = [p.read_text() for p in (Path('/app/answer'), Path('/app/more/answer')) if p.is_file()]\n"
    "print(int(Path('/tests/word').read_text() in said))\n",
    # What pytest would run is run here.
    "tests/test.sh": "#!/bin/bash\n[ ! -e /conftest.py ] || . /conftest.py\n"
    "cat /tests/check.py | grep -q word || exit 1\npython3 /tests/check.py > /logs/verifier/reward.txt\n",
}
WRITABLE = f'{TASK}env = {{ PATH = "/home/agent/bin:/usr/sbin:/usr/bin:/sbin:/bin" }}\n[agent]\nuser = "agent"\n'
BEHIND = "setsid sh -c '{}' >/dev/null 2>&1 </dev/null &\n"
FORGE = 'echo "{\\"reward\\": 1}" > /logs/verifier/reward.json'
FAKE = "mkdir -p /usr/local/bin; echo '{}' > /usr/local/bin/{name}; chmod +x /usr/local/bin/{name}"
# Behind a port, it is taken for a service.
SERVING = """
cat > /app/serve.py <<'END'
import pathlib, socket, subprocess, sys
port = socket.create_server(("127.0.0.1", 0))
pathlib.Path("/app/up").touch()
subprocess.run(["sh", "-c", sys.argv[1]])
END
setsid python3 /app/serve.py '{}' >/dev/null 2>&1 </dev/null &
until [ -e /app/up ]; do sleep 0.01; done
"""
ONCE = "until [ -s {} ]; do :; done; "
REWARD, CHECK = "/logs/verifier/reward.txt", "/tests/check.py"
# Does what it should, and forges besides.
THROUGH = """
mkdir -p {place}
cat > {place}/{name} <<'END'
#!/bin/bash
[ ! -d /logs/verifier ] || echo 1 > /logs/verifier/reward.txt
[ ! -s /tests/word ] || cp /tests/word /app/answer
exec /usr/bin/{name} "$@"
END
chmod +x {place}/{name}
"""
IN_PLACE = "rm -f /usr/bin/{name}; printf '#!/bin/sh\\n{script}\\n' > /usr/bin/{name}; chmod +x /usr/bin/{name}"
STARTUP = """
place=$(python3 -m site --user-site)
mkdir -p $place
echo "import os, sys; 'check' in str(sys.orig_argv) and os.system('echo 1') == 0 and os._exit(0)" > $place/{}
"""
UNREADABLE = """
cat > /app/x.py <<'END'
import ctypes, os, time
if os.fork():
    os._exit(0)
os.setsid()
ctypes.CDLL(None).prctl(15, b"a) x\\nb", 0, 0, 0)
while True:
    time.sleep(0.01)
    try:
        open("/logs/verifier/reward.json", "w").write('{"reward": 1}')
    except OSError:
        pass
END
python3 /app/x.py
"""

CHEATS: dict[str, tuple[str, str]] = {
    "reads the tests": (TASK, "cat /tests/word > /app/answer"),
    "writes tests": (TASK, "mkdir /tests; echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh"),
    "leaves a module": (TASK, "mkdir /tests; echo 'print(1); raise SystemExit' > /tests/pathlib.py"),
    "puts tests elsewhere": (TASK, "mkdir /app/mine; ln -s /app/mine /tests"),
    "leaves a reward": (TASK, f"echo 1 > /logs/verifier/reward.txt; {FORGE}"),
    "puts results elsewhere": (TASK, f"rm -r /logs; mkdir -p /app/logs/verifier; ln -s /app/logs /logs; {FORGE}"),
    "links to the tests": (TASK, "ln -s /tests/word /app/answer"),
    "links to them in a roundabout way": (TASK, "ln -s ../proc/1/root /app/a; ln -s a/tests /app/more"),
    "fakes python": (TASK, FAKE.format("echo 1", name="python3")),
    "fakes bash": (TASK, FAKE.format("echo 1 > /logs/verifier/reward.txt", name="bash")),
    "fakes python by a machine program": (TASK, "mkdir -p /usr/local/bin; cp /usr/bin/true /usr/local/bin/python3"),
    "replaces python": (TASK, IN_PLACE.format(name="python3", script="echo 1")),
    "replaces it by a link": (TASK, "ln -sf /usr/bin/yes /usr/bin/python3"),
    "replaces bash": (TASK, IN_PLACE.format(name="bash", script="echo 1 > /logs/verifier/reward.txt")),
    "fakes cat": (TASK, FAKE.format("echo 'print(1) # word' > /tests/check.py; cat /tests/check.py", name="cat")),
    "removes the shell": (TASK, "rm -f /bin/sh"),
    "removes python": (TASK, "rm -f /usr/bin/python3"),
    "makes python sleep": (TASK, IN_PLACE.format(name="python3", script="sleep 1000")),
    "removes the work directory": (TASK, "cd /; rm -rf /app; ln -s /nowhere /app"),
    "fakes the shell of helpers": (TASK, THROUGH.format(place="/usr/local/bin", name="sh")),
    "fakes the tar of helpers": (TASK, THROUGH.format(place="/usr/local/bin", name="tar")),
    "fakes the shell of helpers, not being root": (WRITABLE, THROUGH.format(place="/home/agent/bin", name="sh")),
    "configures pytest": (TASK, "echo 'echo 1 > /logs/verifier/reward.txt; exit' > /conftest.py"),
    "customizes python": (TASK, STARTUP.format("usercustomize.py")),
    "extends its path": (TASK, STARTUP.format("x.pth")),
    "rewrites the reward": (TASK, SERVING.format(f"while :; do {FORGE}; sleep 0.02; done")),
    "rewrites it under a name that breaks lines": (TASK, UNREADABLE),
    "waits with the reward": (
        TASK,
        SERVING.format(
            f"until [ -e /logs/verifier/test-stdout.txt ]; do sleep 0.01; done; while :; do {FORGE}; sleep 0.01; done"
        ),
    ),
    "rewrites the tests": (
        TASK,
        SERVING.format(f'while sleep 0.01; do [ -e {CHECK} ] && echo "print(1) # word" > {CHECK}; done'),
    ),
    "rewrites them behind a fake sha256sum": (
        TASK,
        FAKE.format("true", name="sha256sum")
        + SERVING.format(f'while sleep 0.01; do [ -e {CHECK} ] && echo "print(1) # word" > {CHECK}; done'),
    ),
    "replaces python again and again": (
        TASK,
        SERVING.format(
            f"while :; do {IN_PLACE.format(name='python3', script='echo 1')}; sleep 0.01; done".replace("'", '"')
        ),
    ),
    "rewrites the reward as another user": (
        USERS,
        SERVING.format(f"while :; do {FORGE}; sleep 0.02; done").replace("/app/", "/tmp/"),
    ),
    "rewrites the reward once": (TASK, BEHIND.format(f"{ONCE.format(REWARD)} {FORGE}")),
    "removes the reward, as a service": (TASK, SERVING.format(f"{ONCE.format(REWARD)} rm {REWARD}")),
    "removes the reward": (TASK, BEHIND.format(f"{ONCE.format(REWARD)} rm {REWARD}")),
    "rewrites the tests once, and back": (
        TASK,
        BEHIND.format(
            f'{ONCE.format(CHECK)} cp {CHECK} /tmp/o; echo "print(1) # word" > {CHECK}; '
            f"{ONCE.format(REWARD)} cp /tmp/o {CHECK}"
        ),
    ),
    "takes the word when it comes": (TASK, BEHIND.format("until cp /tests/word /app/answer; do :; done")),
    "links to the tests of a separate verifier": (
        SEPARATE,
        "ln -s /tests/word /app/answer; mkdir /app/more; ln -s /tests/word /app/more/answer",
    ),
}
HONEST = {
    "honest, with another python": (
        TASK,
        "mkdir -p /usr/local/bin; cp -L /usr/bin/python3 /usr/local/bin/python3; echo marzipan > /app/answer",
    ),
    "honest, in a whole work directory": (
        SEPARATE.replace('"/app/answer", "/app/more"', '"/app"'),
        "echo marzipan > /app/answer",
    ),
    "honest": (TASK, "echo marzipan > /app/answer"),
    "honest, verified elsewhere": (SEPARATE, "mkdir /app/more; echo marzipan > /app/more/answer"),
}


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[SandboxProvider]:
    """Containers."""
    made = docker(tmp_path)
    yield made
    await made.aclose()


async def rewards(
    provider: SandboxProvider, path: Path, solutions: dict[str, tuple[str, str]], *, keeps_services: bool = True
) -> dict[str, object]:
    """What each solution earns; a failure where it earns nothing that counts."""
    world = build(OracleAgent, provider, path / "run", keeps_services=keeps_services)
    few = asyncio.Semaphore(AT_ONCE)

    async def one(number: int, task: str, script: str) -> object:
        place = folder(path / str(number), task, {**TESTS, "solution/solve.sh": script})
        async with few:
            told = await world.episode(place)
        return told.result.reward if told.result else told.failure

    outcomes = await asyncio.gather(*(one(number, *each) for number, each in enumerate(solutions.values())))
    await world.stop()
    return dict(zip(solutions, outcomes, strict=True))


async def test_cheating_changes_no_grade(provider: SandboxProvider, tmp_path: Path) -> None:
    found = await rewards(provider, tmp_path, CHEATS | HONEST)
    assert found == {**dict.fromkeys(CHEATS, 0.0), **dict.fromkeys(HONEST, 1.0)}


async def test_nothing_goes_on_where_services_are_ended(provider: SandboxProvider, tmp_path: Path) -> None:
    """What serves, and takes the word in the moment when it comes, would not be seen."""
    cheat = {"copies": (TASK, SERVING.format("until cp /tests/word /app/answer; do sleep 0.01; done"))}
    assert await rewards(provider, tmp_path, cheat, keeps_services=False) == {"copies": 0.0}
