"""The captured model calls of a rollout beside what its harness tells: whose answer each item is, and what differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gym.apis.events import Event, ItemDone, Started
from gym.apis.responses import Item
from gym.apis.sse import Parser
from gym.apis.upstreams.api import ApiName, Decoder
from gym.apis.upstreams.chat_answer import ChatDecoder
from gym.apis.upstreams.messages_answer import MessagesDecoder
from gym.apis.upstreams.responses import ResponsesDecoder
from gym.capture.reader import Calls, ModelCall
from gym.failures import EpisodeFailure
from gym.report.lenient import text_of

DECODERS: dict[ApiName, type[ChatDecoder | MessagesDecoder | ResponsesDecoder]] = {
    "chat": ChatDecoder,
    "messages": MessagesDecoder,
    "responses": ResponsesDecoder,
}


@dataclass(frozen=True, eq=False)
class Answer:
    """What the policy answered to one call.

    Attributes:
        response_id: As the client got it; empty where it got none.
        items: As far as they came whole.
    """

    call: ModelCall
    response_id: str
    items: Sequence[Item]


@dataclass(frozen=True)
class Captured:
    """The policy's calls in one try, in the order in which they began.

    Attributes:
        failed: Calls without a whole answer.
    """

    answers: Sequence[Answer] = ()
    failed: Sequence[ModelCall] = ()

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self.answers or self.failed)

    def sources(self, items: Iterable[Mapping[str, Any]]) -> Iterator[Answer | None]:
        """Whose each item is: of the answer of the item before, or of a later one; None: of none of them.

        An item is an answer's that has its call id or, of messages and reasoning, its words.
        """
        left = [Counter(map(_name, answer.items)) for answer in self.answers]
        at = 0
        for item in items:
            name = _name(item)
            found = next((number for number in range(at, len(left)) if left[number][name]), None)
            if found is None:
                yield None
                continue
            at = found
            left[at][name] -= 1
            yield self.answers[at]

    def differences(self, told: Iterable[str]) -> dict[str, list[str]]:
        """Ids of responses that only the harness tells of, and of those that only the model server knows.

        Nothing can be said of a harness that names no response.
        """
        said = Counter(name for name in told if name)
        known = Counter(answer.response_id for answer in self.answers if answer.response_id)
        both = {"harness_only": said - known, "captured_only": known - said}
        return {name: list(ids.elements()) for name, ids in both.items() if ids} if said else {}


def of_try(calls: Calls, key: str, begun: float, policies: Iterable[str] = ()) -> Captured:
    """The policy's calls of a try.

    Args:
        key: `EpisodeId.key`. A start of the run that was interrupted may have recorded calls of the same name.
        begun: Unix time.
        policies: Model servers that the harness asked; without any, those that were asked in a session are the policy.
    """
    found = calls.of(key)
    if not found or found[-1].started_at < begun:
        return Captured()
    found = [call for call in found if call.run == found[-1].run]
    names = set(policies)
    asked = [call for call in found if (call.instance in names if names else call.activation is not None)]
    whole = [call for call in asked or found if call.error is None]
    return Captured([_answer(call) for call in whole], [call for call in asked or found if call.error is not None])


def _answer(call: ModelCall) -> Answer:
    """An answer that no API has a place for has the items that came before."""
    events: list[Event] = []
    with suppress(EpisodeFailure, LookupError, ValueError, TypeError, AttributeError):
        decoder: Decoder = DECODERS[call.api](call.model)
        if not call.stream:
            said = call.answer_json()
            return Answer(call, str(said.get("id") or ""), decoder.whole(said).output)
        for sent in Parser().feed(call.answer):
            events += decoder.feed(sent)
        events += decoder.end()
    name = next((event.id for event in events if isinstance(event, Started)), "")
    return Answer(call, name, [event.item for event in events if isinstance(event, ItemDone)])


def _name(item: Mapping[str, Any]) -> tuple[str, str]:
    """What an item is known by, whoever tells of it: harnesses give messages ids of their own."""
    kind = str(item.get("type") or "message")
    if kind in ("message", "reasoning"):
        return kind, "".join((text_of(item.get("content")) or text_of(item.get("summary"))).split())
    return ("result" if kind.endswith("_output") else "call"), str(item.get("call_id") or item.get("id"))
