"""The steps of an ATIF document: what the agent was told, then a step for each answer of its model.

A step has what the model said and called at once, with the results of these calls. Where it is not known which answer
an item is of, a step goes on until its calls have results.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from gym.report.captured import Answer
from gym.report.lenient import Fields, iso_time, known, text_of

CALLS = {"function_call": "arguments", "custom_tool_call": "input", "local_shell_call": "action"}
"""Kinds of tool calls, and the field that has what the tool is given."""

NOTHING: Fields = MappingProxyType({})
"""The record of an activation that has none."""


@dataclass
class Steps:
    """The steps so far. `timings` are the records of tool calls in the observations, by call id."""

    timings: Mapping[str, Fields]
    done: list[dict[str, Any]] = field(default_factory=list)
    _of_answers: dict[Answer, dict[str, Any]] = field(default_factory=dict)
    _loose: tuple[dict[str, Any], Fields] | None = None

    def told(self, role: str, text: str) -> None:
        """A message that the agent did not write in this rollout."""
        source = {"user": "user", "assistant": "agent"}.get(role, "system")
        step = {"step_id": len(self.done) + 1, "source": source, "message": text}
        self.done.append(step | ({"is_copied_context": True} if source == "agent" else {}))

    def take(self, item: Fields, invocation: Fields, answer: Answer | None) -> None:
        """One item of the response: of which activation, and of which captured answer."""
        kind = str(item.get("type") or "message")
        if kind.endswith("_output"):
            self._result(item, invocation)
            return
        step = self._step(invocation, answer)
        if kind == "message":
            _join(step, "message", text_of(item.get("content")))
        elif kind == "reasoning":
            _join(step, "reasoning_content", text_of(item.get("content")) or text_of(item.get("summary")))
        elif kind in CALLS:
            step.setdefault("tool_calls", []).append(self._call(item, kind))
        else:
            step.setdefault("extra", {}).setdefault("items", []).append(dict(item))

    def _step(self, invocation: Fields, answer: Answer | None = None) -> dict[str, Any]:
        """The step of an answer; without one, the last step while it goes on: until its calls have results."""
        if answer is not None:
            if answer not in self._of_answers:
                self._of_answers[answer] = self._begin(invocation, answer)
            return self._of_answers[answer]
        step, before = self._loose or ({}, {})
        if not self.done or self.done[-1] is not step or "observation" in step or before is not invocation:
            step = self._begin(invocation)
            self._loose = step, invocation
        return step

    def _begin(self, invocation: Fields, answer: Answer | None = None) -> dict[str, Any]:
        step = {"step_id": len(self.done) + 1, "source": "agent", "message": ""}
        whose = known({name: invocation.get(name) for name in ("activation", "invocation_id")})
        told = {} if answer is None else _metrics(answer)
        extra = {**told.pop("extra", {}), **whose}
        self.done.append({**step, **told, **({"extra": extra} if extra else {})})
        return self.done[-1]

    def _call(self, item: Fields, kind: str) -> dict[str, Any]:
        call_id = str(item.get("call_id") or item.get("id") or f"call_{len(self.done)}")
        arguments, raw = _arguments(item.get(CALLS[kind]))
        timing = {name: value for name in ("status", "started_at", "duration_ms")
                  if (value := self.timings.get(call_id, {}).get(name)) is not None}  # fmt: skip
        extra = timing if raw is None else {**timing, "raw_arguments": raw}
        call = {"tool_call_id": call_id, "function_name": str(item.get("name") or kind), "arguments": arguments}
        return {**call, "extra": extra} if extra else call

    def _result(self, item: Fields, invocation: Fields) -> None:
        """Goes to the step with its call; without one it stands where it came, and names no call."""
        call_id = str(item.get("call_id"))
        of_call = (step for step in reversed(self.done) if call_id in _call_ids(step))
        step = next(of_call, None)
        result = {"content": text_of(item.get("output"))}
        if step is None:
            step = self._step(invocation)
        else:
            result["source_call_id"] = call_id
        step.setdefault("observation", {"results": []})["results"].append(result)


def _metrics(answer: Answer) -> dict[str, Any]:
    """What was captured of the call behind a step."""
    call, tokens = answer.call, answer.call.tokens
    counts = {"prompt_tokens": tokens.input_tokens, "completion_tokens": tokens.output_tokens}
    counts |= {"cached_tokens": tokens.cached_input_tokens}
    thought = {} if tokens.reasoning_tokens is None else {"extra": {"reasoning_tokens": tokens.reasoning_tokens}}
    metrics = known({**counts, "cost_usd": call.cost_usd}) | thought
    about: dict[str, Any] = {"activation": call.activation, "invocation_id": call.invocation}
    about |= {"response_id": answer.response_id or None, "seconds": call.seconds}
    told = {"timestamp": iso_time(call.started_at), "model_name": call.model or None, "llm_call_count": 1}
    return {**known(told), **({"metrics": metrics} if metrics else {}), "extra": known(about)}


def _arguments(given: Any) -> tuple[dict[str, Any], str | None]:
    """Arguments as a mapping; and as they were written, where they are no JSON object."""
    if isinstance(given, str):
        try:
            given = json.loads(given or "{}")
        except (ValueError, RecursionError):
            return {}, str(given)
    return (dict(given), None) if isinstance(given, Mapping) else ({}, json.dumps(given))


def _call_ids(step: Fields) -> set[str]:
    return {call["tool_call_id"] for call in step.get("tool_calls", ())}


def _join(step: dict[str, Any], name: str, text: str) -> None:
    if text:
        step[name] = f"{step[name]}\n{text}" if step.get(name) else text
