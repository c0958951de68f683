"""`gym env prefetch`: has ready what the implementations of a configuration need, so that no run waits for it.

Implementations whose `requirements.txt` this environment does not meet get a virtual environment of their own, and
harnesses their runtime. Images that settings name for sandboxes are pulled.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path

from gym.cli.console import print_json, print_table
from gym.cli.eval_prepare import is_of_models
from gym.cli.verbs import Arguments
from gym.composition.compose import compose
from gym.errors import EXIT_OK, EXIT_SOME_FAILED, Problem, UserError
from gym.launch import environments, requirements
from gym.planning.instances import TARGET, Block, sort, starting
from gym.planning.resolve import Resolved, resolve


@dataclass(frozen=True)
class Need:
    """Something that a part of the configuration needs.

    Attributes:
        state: `ok`; `apart`: not in this environment, but in the one that the part gets; `missing`.
        detail: The version that is here, where else it is, or what is wrong.
    """

    part: str
    need: str
    state: str
    detail: str


@dataclass(frozen=True)
class Environment:
    """A virtual environment for a part.

    Attributes:
        state: `built` now, `here` already, or `failed`.
        detail: Its interpreter, or the installer's words.
    """

    part: str
    state: str
    detail: str


def run(arguments: Arguments) -> int:
    """Prints what is needed, and builds what is missing. Returns 1 where something is missing afterwards."""
    composed = compose(arguments.overrides(), arguments.files)
    resolved = resolve(composed)
    files = _files(resolved)
    if problems := [problem for problem in resolved.problems if not _may_stand(resolved, problem, files)]:
        raise UserError(problems)
    needs: list[Need] = []
    made: list[Environment] = []
    for part, file in files:
        lines = requirements.lines_of(file)
        environment = None if all(line.met for line in lines) else _environment(part, file)
        made += [environment] if environment else []
        needs += [_need(part, line, environment) for line in lines]
    needs += [*_runtimes(resolved), *_sandboxes(resolved), *asyncio.run(_images(resolved))]
    if arguments.json:
        print_json({"needs": [need.__dict__ for need in needs], "environments": [one.__dict__ for one in made]})
    else:
        _print(needs, made)
    return EXIT_SOME_FAILED if any(need.state == "missing" for need in needs) else EXIT_OK


def _print(needs: list[Need], made: list[Environment]) -> None:
    if needs:
        print_table(["part", "needs", "state", "detail"], [[n.part, n.need, n.state, n.detail] for n in needs])
        print()
    if not any(need.need != "sandbox" for need in needs):
        print(f"No part of this configuration has a {requirements.FILE} or a runtime; there is nothing to install.")
    for environment in made:
        print(f"virtual environment of {environment.part}: {environment.state}, {environment.detail}")


def _may_stand(resolved: Resolved, problem: Problem, files: list[tuple[str, Path]]) -> bool:
    """Whether a problem is no matter here: no model is needed, and what a part imports may be installed just now."""
    part = problem.key.partition(".")[0]
    return is_of_models(resolved, problem) or part in {name for name, _ in files}


def _files(resolved: Resolved) -> list[tuple[str, Path]]:
    """The requirements files beside the implementations of the instances that start."""
    blocks = sort(resolved.composed.values)
    routes = resolved.settings.environment_server_routes.values()
    started = starting(blocks, resolved.composed.template_of, routes)
    found = ((block.name, folder / requirements.FILE) for block in started if (folder := _folder(block)) is not None)
    return [(name, file) for name, file in found if file.is_file()]


def _folder(block: Block) -> Path | None:
    """The folder of an implementation, found without importing it: what it needs may be missing."""
    module = str(block.settings.get(TARGET, "")).rpartition(".")[0]
    try:
        spec = importlib.util.find_spec(module) if module else None
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).parent if spec and spec.origin else None


def _environment(part: str, file: Path) -> Environment:
    def tell(text: str) -> None:
        print(f"{part}: {text}", file=sys.stderr, flush=True)

    try:
        known = environments.installed(file)
        python = environments.prepare(file, tell)
    except UserError as error:
        return Environment(part, "failed", error.problems[0].what)
    return Environment(part, "here" if known else "built", str(python))


def _need(part: str, line: requirements.Line, environment: Environment | None) -> Need:
    if line.met:
        return Need(part, line.text, "ok", line.detail)
    if environment is None or environment.state == "failed":
        return Need(part, line.text, "missing", line.detail)
    return Need(part, line.text, "apart", f"{line.detail} here; in a virtual environment of its own")


def _runtimes(resolved: Resolved) -> list[Need]:
    """What harnesses run on, installed once for all sandboxes."""
    from gym.harness import bundles

    found = []
    for recipe, parts in bundles.recipes_of(resolved.instances.values()).items():
        try:
            path = bundles.prepare(
                recipe, lambda made, text: print(f"{made}: {text}", file=sys.stderr, flush=True)
            ).path
            found += [Need(part, str(recipe), "ok", str(path)) for part in parts]
        except UserError as error:
            found += [Need(part, str(recipe), "missing", error.problems[0].what) for part in parts]
    return found


def _sandboxes(resolved: Resolved) -> list[Need]:
    found = []
    for name, component in resolved.components.items():
        try:
            found.append(Need(name, "sandbox", "ok", component.component_class(component.config).describe()))
        except UserError as error:
            found.append(Need(name, "sandbox", "missing", str(error.problems[0])))
    return found


async def _images(resolved: Resolved) -> list[Need]:
    """The images that settings name, pulled several at a time."""
    from gym.launch import images
    from gym.launch.closing import close_all
    from gym.planning.plan import Plan

    steps = images.Steps(lambda event: print(event.text, file=sys.stderr) if event.kind == "note" else None)
    made = Plan(resolved, dict(resolved.instances))
    for name, component in resolved.components.items():
        provider = component.component_class(component.config)
        with contextlib.suppress(UserError):  # one that does not work here is told among the sandboxes
            provider.describe()
            made.providers[name] = provider

    async def need(block: str, image: str | None) -> list[Need]:
        try:
            digests = await made.providers[block].prepare([image], steps)
        except UserError as error:
            named = str(error.problems[0].data.get("image", image or "image"))
            return [Need(block, named, "missing", str(error.problems[0]))]
        return [Need(block, name, "ok", digest) for name, digest in digests.items()]

    try:
        wanted = images.wanted(made).items()
        found = await asyncio.gather(*(need(block, image) for block, named in wanted for image in named))
    finally:
        for left in await close_all(made.providers):
            print(left.text, file=sys.stderr)
    return [item for needs in found for item in needs]
