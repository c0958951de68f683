"""`_inherit_from`: a block is its template with the block's own settings merged over it.

Done once, on the merged configuration. Maps merge; lists and scalars replace; null sets null. Interpolations stay
text. The implementation of a server comes from the template, so a block that names another one is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gym.errors import Problem, UserError, did_you_mean

DIRECTIVE = "_inherit_from"
KeyPath = tuple[str, ...]
Where = Callable[[KeyPath], str]


def merge(template: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """`own` over `template`; neither is changed."""
    result = dict(template)
    for key, value in own.items():
        base = result.get(key)
        result[key] = merge(base, value) if isinstance(value, Mapping) and isinstance(base, Mapping) else value
    return result


class Inheritance:
    """Resolves the directives of one configuration.

    Attributes:
        template_of: The template's path of each block that inherits, both as dotted text.
        problems: What is wrong.
    """

    def __init__(self, config: Mapping[str, Any], server_types: tuple[str, ...], where: Where) -> None:
        self._config = config
        self._types = server_types
        self._where = where
        self.template_of: dict[str, str] = {}
        self.problems: list[Problem] = []

    def resolve(self) -> dict[str, Any]:
        """The configuration without directives.

        Raises:
            UserError: Missing templates, cycles, or other implementations; all of them.
        """
        result = {key: self._block(value, (key,), ()) for key, value in self._config.items()}
        if self.problems:
            raise UserError(self.problems)
        return result

    def _block(self, value: Any, path: KeyPath, chain: tuple[KeyPath, ...]) -> Any:
        if not isinstance(value, Mapping):
            return value
        own = {key: self._block(item, (*path, key), chain) for key, item in value.items() if key != DIRECTIVE}
        source = value.get(DIRECTIVE)
        if source is None:
            return own
        template = self._template(source, path, (*chain, path))
        if template is None:
            return own
        self._refuse_other_implementation(template, own, path, str(source))
        return merge(template, own)

    def _template(self, source: Any, path: KeyPath, chain: tuple[KeyPath, ...]) -> Mapping[str, Any] | None:
        directive = (*path, DIRECTIVE)
        target: KeyPath = tuple(str(source).split("."))
        if target in chain:
            names = " -> ".join(".".join(item) for item in (*chain[chain.index(target) :], target))
            self._add(f"inherits from itself: {names}", "break the cycle", directive)
            return None
        found: Any = self._config
        for part in target:
            found = found.get(part) if isinstance(found, Mapping) else None
        if not isinstance(found, Mapping):
            guess = did_you_mean(str(source), self._config)
            self._add(f"no template `{source}`", guess or "import the file that defines it", directive)
            return None
        self.template_of[".".join(path)] = str(source)
        block: Mapping[str, Any] = self._block(found, target, chain)
        return block

    def _refuse_other_implementation(
        self, template: Mapping[str, Any], own: Mapping[str, Any], path: KeyPath, source: str
    ) -> None:
        for kind in self._types:
            base, mine = template.get(kind), own.get(kind)
            if not isinstance(base, Mapping) or not isinstance(mine, Mapping):
                continue
            for name in mine:
                if name not in base:
                    expected = ", ".join(base)
                    self._add(
                        f"names the implementation `{name}`, but its template `{source}` is `{expected}`",
                        f"write {expected}, or inherit from a template of {name}",
                        (*path, kind, name),
                    )

    def _add(self, what: str, fix: str, key: KeyPath) -> None:
        problem = Problem(what, fix, self._where(key), ".".join(key))
        if problem not in self.problems:
            self.problems.append(problem)
