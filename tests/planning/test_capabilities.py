"""What a model is declared to be able to do, against agents and tasks."""

from __future__ import annotations

import json

import pytest

from gym.composition.compose import compose
from gym.errors import UserError
from gym.planning.plan import Plan, plan
from gym.planning.resolve import resolve
from gym.tasks.collate import collate

OURS = "policy_model.responses_api_models.embedded_model.capabilities"
CODEX = "agent.responses_api_agents.codex_agent"
ONBOARDING = ["+experiment=onboarding"]


def made(*arguments: str) -> Plan:
    return plan(resolve(compose([*ONBOARDING, *arguments])))


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["agent=codex"], None),
        (["agent=codex", f"++{OURS}.tools=true", f"++{OURS}.reasoning=false"], None),
        (["agent=codex", f"++{OURS}.tools=false"], "agent (codex_agent) works with tools of its own"),
        (
            ["agent=codex", f"++{OURS}.reasoning=false", f"++{CODEX}.reasoning_effort=low"],
            "declared to do without reasoning, but agent (codex_agent) has a reasoning_effort",
        ),
        (
            ["agent=pi", f"++{OURS}.tools=false", "++agent.responses_api_agents.pi_agent.enable_tools=false"],
            "agent (pi_agent) gets the tools of counter",
        ),
        (["agent=simple", f"++{OURS}.tools=false"], "agent (simple_agent) gets the tools of counter"),
        ([f"++{OURS}.tolls=false"], "did you mean"),
    ],
)
def test_an_agent_that_asks_for_more_is_refused(arguments: list[str], problem: str | None) -> None:
    if problem is None:
        made(*arguments)
        return
    with pytest.raises(UserError) as caught:
        made(*arguments)
    (told,) = map(str, caught.value.problems)
    assert problem in told
    assert told.startswith("command line: ++policy_model.")


@pytest.mark.parametrize("images", ["true", "null", "false"])
def test_rows_with_images_are_refused_for_a_blind_model(project, images: str) -> None:
    picture = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
    params = {"input": [{"role": "user", "content": [picture]}]}
    asked = [{"input": "hi"}, {"input": "an input_image"}, params]
    rows = [{"responses_create_params": one, "test_script": "#!/bin/sh\nexit 0"} for one in asked]
    folder = project({"rows.jsonl": "".join(json.dumps(row) + "\n" for row in rows)})
    ready = made("input=rows.jsonl", f"++{OURS}.images={images}")
    if images != "false":
        assert len(collate(ready, folder / "tasks.jsonl").digests) == 3
        return
    with pytest.raises(UserError) as caught:
        collate(ready, folder / "tasks.jsonl")
    (told,) = map(str, caught.value.problems)
    assert told.startswith("rows.jsonl:3  bad row: has an image, and policy_model is declared to do without images")
