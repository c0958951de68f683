"""What agents and tasks ask of their model, against what the model is declared to be able to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gym.environment_servers.single_agent_turn.app import SingleAgentTurnConfig
from gym.planning.resolve import Instance
from gym.planning.routes import agent_of
from gym.servers.agent import AgentServer, AgentServerConfig
from gym.servers.base import Server
from gym.servers.capabilities import Capabilities, Capability
from gym.servers.model import ModelServerConfig
from gym.servers.resources import ResourcesServer

if TYPE_CHECKING:
    from gym.planning.plan import Plan

IMAGES = ("input_image", "image_url", "image")
"""Types of content parts that are images."""


def check(made: Plan) -> None:
    """Refuses agents whose model is declared not to do what they cannot do without."""
    for agent in made.of_type("responses_api_agents"):
        model = model_of(made, agent)
        if model is None:
            continue
        for name, why in _asked(made, agent).items():
            if getattr(declared(model), name) is False:
                made.resolved.problem(
                    (*model.key, "capabilities", name),
                    f"{model.name} is declared to do without {name}, but {agent.name} ({agent.implementation}) {why}",
                    "choose another agent or model, or correct the declaration",
                )


def _asked(made: Plan, agent: Instance) -> dict[Capability, str]:
    """What an agent cannot do without, and why."""
    assert issubclass(agent.server_class, AgentServer)
    asked = agent.server_class.asks_of_model(agent.config)
    for environment in made.of_type("environment_servers"):
        config = environment.config
        if not isinstance(config, SingleAgentTurnConfig) or config.agent_server.name != agent.name:
            continue
        resources = made.instances.get(config.resources_server.name)
        offers = resources.server_class if resources and config.resources_tool_transports else Server
        if resources and issubclass(offers, ResourcesServer) and offers.tools():
            asked.setdefault("tools", f"gets the tools of {resources.name}")
    return asked


def model_of(made: Plan, agent: Instance) -> Instance | None:
    """The model server of an agent."""
    config = agent.config
    ref = config.model_server if isinstance(config, AgentServerConfig) else None
    model = made.instances.get(ref.name) if ref else None
    return model if model is not None and isinstance(model.config, ModelServerConfig) else None


def declared(model: Instance) -> Capabilities:
    """What a model is declared to be able to do."""
    assert isinstance(model.config, ModelServerConfig)
    return model.config.capabilities


def blind_model(made: Plan, taskset: str) -> str | None:
    """The model that a taskset's tasks go to, if it is declared not to read images."""
    environment = made.instances.get(made.routes.get(taskset, ""))
    agent = made.instances.get(agent_of(environment) or "") if environment else None
    model = model_of(made, agent) if agent else None
    return model.name if model is not None and declared(model).images is False else None


def has_image(request: Any) -> bool:
    """Whether a request to an agent holds an image anywhere in its input."""
    if isinstance(request, dict):
        return request.get("type") in IMAGES or any(map(has_image, request.values()))
    return isinstance(request, list) and any(map(has_image, request))
