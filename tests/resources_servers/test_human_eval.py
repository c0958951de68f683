"""Functions and their tests in real sandboxes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from gym.sandbox.providers.local.provider import LocalProvider
from gym.sandbox.providers.local.settings import LocalProviderConfig
from gym.servers.base import ServerContext
from resources_servers.human_eval.app import HumanEval, HumanEvalConfig, program
from tests.environment_servers.wiring import World, build, turn

Make = Callable[..., World]
EXAMPLES = Path(__file__).parents[2] / "resources_servers/human_eval/data/example.jsonl"
MIDDLE, SQUARES = map(json.loads, EXAMPLES.read_text().splitlines())
RIGHT = "def middle(word):\n    return word[(len(word) - 1) // 2 : len(word) // 2 + 1]\n"


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    provider = LocalProvider(LocalProviderConfig(allow_unisolated=True, root=tmp_path / "sandboxes"))
    worlds: list[World] = []

    def made(answer: str, **settings: Any) -> World:
        said = turn({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": answer}]})

        def resources(context: ServerContext) -> HumanEval:
            return HumanEval(HumanEvalConfig(**settings), context)

        worlds.append(build(resources, [said], provider=provider))
        return worlds[-1]

    yield made
    for world in worlds:
        await world.stop()
    await provider.aclose()
    assert list((tmp_path / "sandboxes").glob("gym-*")) == []


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (f"Here it is:\n```python\n{RIGHT}```\nDone.", "passed"),
        (RIGHT, "passed"),
        ("    return word[(len(word) - 1) // 2 : len(word) // 2 + 1]", "passed"),
        (f"```python\nprint('noise')\n{RIGHT}```", "passed"),
        ("```python\ndef middle(word):\n    return word\n```", "AssertionError"),
        ("```python\ndef middle(word:\n```", "SyntaxError: '(' was never closed"),
        ("```python\ndef middle(word):\n    while True: pass\n```", "timed out"),
        (
            "```python\nimport os\ndef middle(word):\n    os._exit(0)\n```",
            "ended with exit code 0 before its tests did",
        ),
        ("", "no code in the answer"),
    ],
)
async def test_the_tests_decide(make: Make, answer: str, outcome: str) -> None:
    world = make(answer, test_timeout_seconds=2)
    result = (await world.run({name: MIDDLE[name] for name in ("prompt", "entry_point", "test")})).result
    assert result is not None
    said = result.model_dump()
    assert (said["outcome"], said["reward"]) == (outcome, float(outcome == "passed"))


async def test_helpers_of_the_prompt_stay(make: Make) -> None:
    world = make("```python\ndef squares_between(low, high):\n" + SQUARES["canonical_solution"] + "```")
    result = (await world.run({name: SQUARES[name] for name in ("prompt", "entry_point", "test")})).result
    assert result is not None
    assert result.reward == 1.0


def test_the_last_block_that_defines_the_function_counts() -> None:
    answer = "```python\ndef f(): return 1\n```\nBetter:\n```python\ndef f(): return 2\n```\n```sh\nls\n```"
    assert program("import re\n\ndef f():\n", "f", answer) == "import re\n\n\ndef f(): return 2\n\n"
