"""Token ids and log probabilities of an answer, for training.

Sources, in order: fields of the message (`prompt_token_ids`, `generation_token_ids`, `generation_log_probs`); what vLLM
gives for `return_token_ids` (`prompt_token_ids` of the answer, `token_ids` of the choice); tokens of the log
probabilities, which vLLM writes as `token_id:<number>` for `return_tokens_as_token_ids`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

REQUEST_FIELDS: dict[str, Any] = {
    "logprobs": True,
    "top_logprobs": 0,
    "return_tokens_as_token_ids": True,
    "return_token_ids": True,
}
"""What asks vLLM for them."""

PREFIX = "token_id:"
ITEM_FIELDS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")
"""What an item has of them."""


def token_ids_of(item: Mapping[str, Any]) -> dict[str, Any]:
    """Those fields of an item; empty where it has none."""
    return {name: item[name] for name in ITEM_FIELDS if name in item}


class TokenIds:
    """Collects them over the chunks of an answer."""

    def __init__(self) -> None:
        self._prompt: list[int] = []
        self._generated: list[int] = []
        self._named: list[int] = []
        self._log_probs: list[float] = []
        self._of_message: dict[str, Any] = {}

    def add(self, prompt: list[int] | None, generated: list[int] | None, logprobs: Any, message: Any) -> None:
        """Takes what an answer, or the next chunk of one, has."""
        self._prompt = prompt or self._prompt
        self._generated += generated or []
        for name in ITEM_FIELDS:
            if (value := getattr(message, name)) is not None:
                self._of_message[name] = value
        entries = logprobs.get("content") if isinstance(logprobs, dict) else None
        for entry in entries or ():
            self._log_probs.append(float(entry["logprob"]))
            if str(entry.get("token")).startswith(PREFIX):
                self._named.append(int(entry["token"].removeprefix(PREFIX)))

    def fields(self) -> dict[str, Any]:
        """Item fields; empty where the upstream gave none."""
        found = {
            "prompt_token_ids": self._prompt,
            "generation_token_ids": self._generated or self._named,
            "generation_log_probs": self._log_probs,
        }
        return {name: value for name, value in found.items() if value} | self._of_message
