"""What a bubblewrap sandbox sees of this machine: system folders, a small /etc, a Python. Never anything private.

The home folder, the project and the installed framework (its benchmarks hold the answers) are hidden even where they
lie inside a system folder.
"""

from __future__ import annotations

import functools
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PYTHON = "/gym-python"
MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
ETC = (
    *("/etc/alternatives", "/etc/ld.so.cache", "/etc/ca-certificates", "/etc/pki/ca-trust", "/etc/pki/tls/certs"),
    # Not the whole of /etc/ssl: it has a folder for private keys.
    *("/etc/ssl/certs", "/etc/ssl/cert.pem", "/etc/ssl/openssl.cnf"),
)
# Folders that must stay visible even if somebody works or lives in them.
ESSENTIAL = tuple(f"/usr{local}/{name}" for local in ("", "/local") for name in (*MERGED, "share"))


@functools.cache
def folders() -> tuple[tuple[str, str], ...]:
    """System folders to mount read-only: source on this machine, and path in the sandbox."""
    merged = [(str(Path("/", name).resolve()), f"/{name}") for name in MERGED if Path("/", name).is_dir()]
    return (("/usr", "/usr"), *merged)


@functools.cache
def names() -> frozenset[str]:
    """Top-level names in the sandbox that belong to the system."""
    return frozenset(target[1:] for _, target in folders()) | {"etc", "proc", "dev", PYTHON[1:]}


def write_etc(directory: Path, home: str, *, with_network: bool) -> None:
    """Write the small files of a sandbox, and mount points for `etc`, into `directory`."""
    etc = directory / "etc"
    etc.mkdir()
    texts = {
        "passwd": f"root:x:0:0:root:{home}:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
        "group": "root:x:0:\nnogroup:x:65534:\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
        "hostname": "sandbox\n",
        "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    }
    if with_network:
        texts |= {name: _text(Path("/etc", name)) for name in ("hosts", "resolv.conf")}
    for name, text in texts.items():
        (etc / name).write_text(text)
    for source in _present_etc():
        point = directory / source[1:]
        point.parent.mkdir(parents=True, exist_ok=True)
        point.mkdir() if Path(source).is_dir() else point.touch()
    if (found := python()) is not None:
        (directory / "python3").write_text(found.script())
        (directory / "python3").chmod(0o755)


def etc(directory: Path) -> list[tuple[str, str]]:
    """Mounts that make /etc out of the files in `directory` and public parts of this machine's own."""
    return [(str(directory / "etc"), "/etc"), *((path, path) for path in _present_etc())]


@functools.cache
def _present_etc() -> tuple[str, ...]:
    return tuple(path for path in ETC if Path(path).exists())


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


@functools.cache
def private_masks(root: Path) -> tuple[str, ...]:
    """Options that hide private folders, and the `root` of all sandboxes, inside the visible system folders."""
    return tuple(word for path in hidden([*_private(), root]) for word in ("--tmpfs", path, "--remount-ro", path))


def hidden(private: list[Path]) -> list[str]:
    """Those of `private` that must be masked: below /usr, and not above something essential."""
    found = set()
    for path in {path.resolve() for path in private}:
        above_essential = any(Path(name).is_relative_to(path) for name in ESSENTIAL)
        if path.is_relative_to("/usr") and not above_essential and path.is_dir():
            found.add(str(path))
    return sorted(found)


@functools.cache
def _private() -> tuple[Path, ...]:
    package = Path(__file__).resolve().parents[3]
    checkout = [package.parent] if (package.parent / "conf").is_dir() else []
    return (*_homes(), package, *checkout)


@functools.cache
def _homes() -> tuple[Path, ...]:
    places = [Path("~").expanduser().resolve()]
    with suppress(OSError):  # the current folder may have been removed
        places.append(Path.cwd())
    return tuple(places)


@dataclass(frozen=True)
class Python:
    """The running interpreter's installation, where it lies outside of the system folders.

    It is mounted under another name, since its own path may lead through a home folder.
    """

    prefix: Path
    version: str

    def script(self) -> str:
        """A `python3` that starts it. A shared library is searched by absolute path, so it needs help to move."""
        library = f'LD_LIBRARY_PATH="{PYTHON}/library" ' if self.libraries() else ""
        return f'#!/bin/sh\n{library}exec {PYTHON}/python/bin/{self.version} "$@"\n'

    def libraries(self) -> list[Path]:
        """The interpreter's own shared libraries."""
        return sorted(self.prefix.glob(f"lib/lib{self.version}*.so.*"))

    def mounts(self, directory: Path) -> list[tuple[str, str]]:
        """Read-only mounts: the interpreter, its library folders, and a start script from `directory`."""
        program = self.prefix / "bin" / self.version
        names = [name for name in ("lib", "lib64", "ssl") if (self.prefix / name).is_dir()]
        return [
            (str(program), f"{PYTHON}/python/bin/{self.version}"),
            *((str(self.prefix / name), f"{PYTHON}/python/{name}") for name in names),
            *((str(library), f"{PYTHON}/library/{library.name}") for library in self.libraries()),
            (str(directory / "python3"), f"{PYTHON}/bin/python3"),
        ]

    def packages(self) -> list[str]:
        """Folders of installed packages, as seen in the sandbox; they are not shown."""
        found = self.prefix.glob("lib*/python3*/site-packages")
        return [f"{PYTHON}/python/{path.relative_to(self.prefix)}" for path in sorted(found)]


@functools.cache
def python() -> Python | None:
    """The running interpreter's installation, unless it lies in a system folder anyway."""
    prefix = Path(sys.base_prefix).resolve()
    version = f"python{sys.version_info.major}.{sys.version_info.minor}{sys.abiflags}"
    if prefix.is_relative_to("/usr") or not (prefix / "bin" / version).exists():
        return None
    shown = [prefix / name for name in ("lib", "lib64", "ssl")]
    if any(path.is_relative_to(folder) for path in _homes() for folder in shown):
        return None
    return Python(prefix, version)


def python_options(directory: Path) -> list[str]:
    """Options that show the interpreter, read-only and without installed packages."""
    found = python()
    if found is None:
        return []
    options = ["--tmpfs", PYTHON]
    for source, target in found.mounts(directory):
        options += ["--ro-bind", source, target]
    for path in found.packages():
        options += ["--tmpfs", path, "--remount-ro", path]
    return [*options, "--remount-ro", PYTHON]
