"""What a model is declared to be able to do, and what an agent asks of it. Planning compares the two."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Capability = Literal["tools", "images", "reasoning"]


class Capabilities(BaseModel):
    """What a model can do. Null: nobody says, and nothing is checked."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tools: bool | None = Field(None, description="It calls tools.")
    images: bool | None = Field(None, description="It reads images.")
    reasoning: bool | None = Field(None, description="It takes a reasoning effort.")

    def declared(self) -> dict[str, bool]:
        """What is said of it."""
        return self.model_dump(exclude_none=True)
