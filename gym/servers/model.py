"""Base of the model servers: one policy behind the Responses API."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, TypeVar

from gym.apis.responses import ResponsesRequest, ResponsesResponse
from gym.servers.base import Call, Server, ServerConfig, route


class ModelServerConfig(ServerConfig):
    """Settings that every model server has."""


ModelConfigT = TypeVar("ModelConfigT", bound=ModelServerConfig)


class ModelServer(Server[ModelConfigT]):
    """A policy that answers Responses requests.

    Attributes:
        scripted: True for a policy that plays a script and runs nothing of a model's choosing.
    """

    config_type: ClassVar[type[ServerConfig]] = ModelServerConfig
    scripted: ClassVar[bool] = False

    def opens_to_keys(self, path: str) -> bool:
        """A session key opens the model APIs."""
        return path.startswith("/v1/")

    @route("/v1/responses")
    async def responses(self, body: ResponsesRequest, call: Call) -> ResponsesResponse:
        """Answers one request.

        Raises:
            EpisodeFailure: `provider_*`: the provider failed or refused, with its own status and text.
        """
        return await self.respond(body, call)

    @abstractmethod
    async def respond(self, request: ResponsesRequest, call: Call) -> ResponsesResponse:
        """The policy's answer to one request."""
