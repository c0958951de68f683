"""Build the images of the OpenSandbox tests: the stand-in daemon on our base image, and the stand-in egress sidecar.

python tests/sandbox/opensandbox/images.py
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from pathlib import Path

HERE = Path(__file__).parent
BASE_IMAGE = HERE.parents[1] / "tools" / "base_image.py"
BASE = "gym-base"
SANDBOX = "gym-opensandbox-test"
EGRESS = "gym-opensandbox-test-egress"
# What the sidecar blocks connections with; the base image does not have it.
FIREWALL = ("iptables", "libxtables12", "libmnl0", "libnftnl11")

STAND_INS = {"execd": "execd.py", "bootstrap.sh": "bootstrap.sh", "egress": "egress.py"}


def build() -> None:
    """Build both images, or see that they are there.

    Raises:
        subprocess.CalledProcessError: something is missing on this machine; its output says what.
    """
    subprocess.run([sys.executable, str(BASE_IMAGE), BASE], check=True, capture_output=True)
    # Imported once, what the stand-ins import is there in compiled form, and sandboxes start sooner.
    imports = """RUN python3 -c 'import runpy; [runpy.run_path(f"/{name}") for name in ("execd", "egress")]'"""
    _docker_build(SANDBOX, [f"FROM {BASE}", "COPY execd bootstrap.sh egress /", imports], STAND_INS)
    _docker_build(EGRESS, [f"FROM {SANDBOX}", "COPY root /", 'CMD ["/egress"]'], {}, _firewall())


def _docker_build(tag: str, recipe: list[str], names: dict[str, str], files: tuple[str, ...] = ()) -> None:
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as archive:
        text = "\n".join(recipe).encode()
        entry = tarfile.TarInfo("Dockerfile")
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text))
        for name, source in names.items():
            archive.add(HERE / "standin" / source, name, filter=_executable)
        for name in files:
            archive.add(name, f"root{name}", recursive=False)
    subprocess.run(["docker", "build", "-q", "-t", tag, "-"], input=context.getvalue(), check=True, capture_output=True)


def _executable(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.mode, entry.uid, entry.gid = 0o755, 0, 0
    # A fixed time, so that Docker finds the same layer again.
    entry.mtime = 0
    return entry


def _firewall() -> tuple[str, ...]:
    """Programs and libraries of the installed firewall packages."""
    listed = subprocess.run(["dpkg-query", "-L", *FIREWALL], check=True, capture_output=True, text=True).stdout
    found = (Path(line) for line in listed.splitlines() if line.startswith("/usr/") and "/share/" not in line)
    return tuple(str(path) for path in found if path.is_file() or path.is_symlink())


if __name__ == "__main__":
    build()
