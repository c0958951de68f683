"""Build a small Docker base image from the Debian packages of this machine, without a registry and without a network.

    python tests/tools/base_image.py [TAG] [--with PACKAGE ...]

The named packages and everything installed that they depend on are packed as they lie here, without documentation,
translations and test suites, into one layer of about 70 MB. The result has a shell, the usual tools, and a Python with
its standard library: what agents and verifiers expect of the smallest task image.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

TAG = "gym-base"
USER_ID = 1000
WANTED = (
    *("base-files", "bash", "dash", "coreutils", "tar", "gzip", "bzip2", "xz-utils", "sed", "grep", "findutils"),
    *(
        "diffutils",
        "util-linux",
        "procps",
        "hostname",
        "debianutils",
        "mawk",
        "netbase",
        "media-types",
        "ca-certificates",
    ),
    *("libpython3-stdlib", "python3-minimal", "python3"),
)
# Not needed to run anything, or replaced below.
LEFT_OUT = re.compile(
    r"^usr/(share/(doc|man|info|locale|lintian|bug|zoneinfo|bash-completion|common-licenses|pixmaps|menu)|games)(/|$)"
    r"|/(test|tests|idlelib|lib2to3|turtledemo|tkinter|ensurepip)/|^(run|proc|sys|dev|home|root)(/|$)|\.pyc$"
)
MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
SKELETON = (
    *("dev", "proc", "sys", "run", "etc", "opt", "srv", "mnt", "usr", "var", "var/lib", "var/log", "home"),
    *("home/agent", "root", "tmp", "var/tmp"),
)
TEXTS = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/bash\n"
    f"agent:x:{USER_ID}:{USER_ID}:agent:/home/agent:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "etc/group": f"root:x:0:\nagent:x:{USER_ID}:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
EXTRA = (
    *("etc/ssl/certs/ca-certificates.crt", "etc/ld.so.cache", "usr/bin/awk", "etc/alternatives/awk"),
    *("usr/bin/which", "etc/alternatives/which"),
)
ENVIRONMENT = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def main() -> int:
    """Build the image, unless the same one is there."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tag", nargs="?", default=TAG, help=f"name of the image (default: {TAG})")
    parser.add_argument("--with", nargs="+", default=[], dest="more", metavar="PACKAGE", help="further packages")
    arguments = parser.parse_args()
    tag = arguments.tag
    for program in ("docker", "dpkg-query"):
        if shutil.which(program) is None:
            print(f"`{program}` is needed, and is not here: this works on Debian and its relatives", file=sys.stderr)
            return 2
    packages = closure((*WANTED, *arguments.more))
    recipe = hashlib.sha256(Path(__file__).read_bytes() + repr(sorted(packages.items())).encode()).hexdigest()
    if present(tag) == recipe:
        print(f"{tag}: is there")
        return 0
    size = build(tag, recipe, sorted(packages))
    print(f"{tag}: {len(packages)} packages, {size / 1e6:.0f} MB")
    return 0


def closure(wanted: tuple[str, ...]) -> dict[str, str]:
    """The installed ones of the wanted packages and of all that they depend on, with their versions."""
    form = "${Package}\t${db:Status-Status}\t${Version}\t${Provides}\t${Pre-Depends}, ${Depends}\n"
    lines = subprocess.run(["dpkg-query", "-W", "-f", form], capture_output=True, text=True, check=True).stdout
    version: dict[str, str] = {}
    needs: dict[str, list[str]] = {}
    provider: dict[str, str] = {}
    for line in lines.splitlines():
        name, status, number, provides, depends = line.split("\t")
        if status == "installed":
            version[name] = number
            needs[name] = names(depends)
            provider |= dict.fromkeys(names(provides), name)
    found: dict[str, str] = {}
    pending = list(wanted)
    while pending:
        name = pending.pop()
        name = name if name in version else provider.get(name, "")
        # Configuration helpers that nothing here runs.
        if name and name not in found and name not in ("debconf", "dpkg", "perl-base", "init-system-helpers"):
            found[name] = version[name]
            pending += needs[name]
    return found


def names(relations: str) -> list[str]:
    """Package names of a dependency field, alternatives included."""
    return [re.split(r"[\s:(]", part.strip())[0] for part in re.split(r"[,|]", relations) if part.strip()]


def present(tag: str) -> str:
    """The recipe that an image of that name was made by; empty where there is none."""
    form = '{{index .Config.Labels "gym.recipe"}}'
    done = subprocess.run(["docker", "image", "inspect", "-f", form, tag], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def build(tag: str, recipe: str, packages: list[str]) -> int:
    """Stream the files of the packages into `docker import`; returns the bytes packed."""
    changes = [f"ENV {ENVIRONMENT}", 'CMD ["/bin/bash"]', f"LABEL gym.recipe={recipe}"]
    words = ["docker", "import", *(word for change in changes for word in ("-c", change)), "-", tag]
    importing = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert importing.stdin is not None
    size = 0
    # When the daemon refuses the stream, its own message is on standard error.
    with contextlib.suppress(BrokenPipeError):
        with tarfile.open(fileobj=importing.stdin, mode="w|", format=tarfile.GNU_FORMAT) as archive:
            add_folders(archive)
            size = sum(add(archive, Path("/", name), name) for name in sorted(set(files(packages))))
            for name, text in TEXTS.items():
                add_text(archive, name, text)
        importing.stdin.close()
    if importing.wait():
        raise SystemExit(f"`docker import` failed for {tag}")
    return size


def files(packages: list[str]) -> Iterator[str]:
    """Names of the packages' files, relative to the root, as a merged /usr has them."""
    shown = subprocess.run(["dpkg-query", "-L", *packages], capture_output=True, text=True, check=True).stdout
    for line in (*shown.splitlines(), *EXTRA):
        name = line.strip().lstrip("/")
        first, _, rest = name.partition("/")
        merged = f"usr/{name}" if first in MERGED and rest else name
        ours = merged in (*MERGED, *SKELETON, *TEXTS, "", ".")
        if not ours and not LEFT_OUT.search(merged):
            yield merged


def add_folders(archive: tarfile.TarFile) -> None:
    """The skeleton of the root: folders that no package brings, and the links of a merged /usr."""
    for name in SKELETON:
        info = tarfile.TarInfo(name)
        info.type = tarfile.DIRTYPE
        info.mode = 0o1777 if name.endswith("tmp") else 0o700 if name == "root" else 0o755
        info.uid = info.gid = USER_ID if name == "home/agent" else 0
        archive.addfile(info)
    for name in MERGED:
        if Path("/", name).is_symlink():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, f"usr/{name}"
            archive.addfile(info)


def add(archive: tarfile.TarFile, path: Path, name: str) -> int:
    """Pack one file, link or folder, where it exists; returns its size."""
    if not path.is_symlink() and not path.exists():
        return 0
    info = archive.gettarinfo(path, arcname=str(PurePosixPath(name)))
    if info.islnk():
        # Hard links of this machine need not lead to something that is packed too.
        info.type, info.linkname, info.size = tarfile.REGTYPE, "", path.stat().st_size
    info.uname = info.gname = ""
    if not info.isreg():
        archive.addfile(info)
        return 0
    with path.open("rb") as file:
        archive.addfile(info, file)
    return info.size


def add_text(archive: tarfile.TarFile, name: str, text: str) -> None:
    """Pack a small file of our own."""
    info = tarfile.TarInfo(name)
    info.size = len(text.encode())
    archive.addfile(info, io.BytesIO(text.encode()))


if __name__ == "__main__":
    sys.exit(main())
