"""Properties: whatever was said comes back whole through every pair of APIs, streamed in pieces of any size or not."""

from __future__ import annotations

import json
from itertools import groupby, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym.apis.clients.api import ClientApi
from gym.apis.clients.chat import ChatClient
from gym.apis.clients.messages import MessagesClient
from gym.apis.clients.responses import ResponsesClient
from gym.apis.events import fold, unfold
from gym.apis.responses import (
    Item,
    ResponsesRequest,
    ResponsesResponse,
    Usage,
    function_call,
    function_call_output,
    message,
    reasoning,
    texts_of,
)
from gym.apis.sse import Parser
from gym.apis.upstreams.api import Decoder, UpstreamApi
from gym.apis.upstreams.chat import ChatUpstream
from gym.apis.upstreams.chat_request import ChatDialect
from gym.apis.upstreams.messages import MessagesUpstream
from gym.apis.upstreams.responses import ResponsesUpstream

CLIENTS: dict[str, ClientApi] = {"chat": ChatClient(), "responses": ResponsesClient(), "messages": MessagesClient()}
UPSTREAMS: dict[str, UpstreamApi] = {
    "chat": ChatUpstream("m", ChatDialect(reasoning_field="reasoning_content")),
    "responses": ResponsesUpstream("m", open_reasoning=True),
    "messages": MessagesUpstream("m"),
}
PAIRS = [(first, second) for first in CLIENTS for second in CLIENTS]

texts = st.text(min_size=1, max_size=12)
names = st.from_regex(r"[a-z]{1,6}", fullmatch=True)
objects = st.dictionaries(names, st.integers() | texts | st.none() | st.lists(texts, max_size=2), max_size=3)
calls = st.lists(st.tuples(names, objects, texts), max_size=3)
turns = st.lists(st.tuples(st.lists(texts, min_size=1, max_size=2), texts | st.none(), calls), min_size=1, max_size=3)


@st.composite
def requests(draw: Any) -> ResponsesRequest:
    items: list[Item] = []
    number = 0
    for user, said, called in draw(turns):
        items += [message("user", text) for text in user]
        items += [message("assistant", said)] if said is not None else []
        made = [(f"call_{number + at}", *entry) for at, entry in enumerate(called)]
        number += len(made)
        items += [function_call(name, arguments, call_id) for call_id, name, arguments, _ in made]
        items += [function_call_output(call_id, output) for call_id, _, _, output in made]
    tool = {"type": "function", "name": "bash", "parameters": {"type": "object", "properties": {}}, "strict": False}
    fields = {
        "model": "m",
        "input": items,
        "instructions": draw(texts),
        "tools": [tool],
        "tool_choice": draw(st.sampled_from(["auto", "required", {"type": "function", "name": "bash"}])),
        "parallel_tool_calls": draw(st.sampled_from([None, False])),
        "max_output_tokens": draw(st.integers(1, 9999)),
        "temperature": draw(st.none() | st.floats(0, 1)),
        "top_p": draw(st.none() | st.floats(0.1, 1)),
        "reasoning": draw(st.sampled_from([None, {"effort": "low"}, {"effort": "high"}])),
    }
    return ResponsesRequest.model_validate({name: value for name, value in fields.items() if value is not None})


def outline(request: ResponsesRequest) -> Any:
    """What every API can say of a request: neighbouring messages of one speaker count as one."""
    system = [request.instructions] if request.instructions else []
    entries: list[tuple[str, Any]] = []
    for item in request.items():
        match item.get("type") or "message":
            case "message" if item["role"] == "system":
                system += texts_of(item)
            case "message":
                entries += [(item["role"], text) for text in texts_of(item)]
            case "function_call":
                entries.append(("call", (item["call_id"], item["name"], json.loads(item["arguments"]))))
            case "function_call_output":
                output = item["output"]
                text = output if isinstance(output, str) else "".join(texts_of({"content": output}))
                entries.append(("output", (item["call_id"], text)))
            case kind:
                raise AssertionError(kind)
    extra = request.model_extra or {}
    settings_ = (request.max_output_tokens, request.temperature, request.top_p, request.tool_choice)
    said = [(kind, [value for _, value in group]) for kind, group in groupby(entries, lambda entry: entry[0])]
    return system, said, settings_, extra.get("reasoning"), extra.get("parallel_tool_calls"), request.tools


@pytest.mark.parametrize(("first", "second"), PAIRS)
@settings(deadline=None, max_examples=30)
@given(asked=requests(), stream=st.booleans())
def test_a_request_comes_through(first: str, second: str, asked: ResponsesRequest, stream: bool) -> None:
    """What a client of one API asks reaches an upstream of another as it would reach one of its own."""
    request = asked
    for api in (first, second):
        body, _ = UPSTREAMS[api].ask(request, stream=stream)
        assert bool(body.get("stream")) == stream
        request = CLIENTS[api].request(json.loads(json.dumps(body)))
    assert outline(request) == outline(asked)


counts = st.tuples(st.integers(60, 99), st.integers(0, 30), st.integers(0, 30), st.integers(9, 99), st.integers(0, 9))


@st.composite
def responses(draw: Any) -> ResponsesResponse:
    output: list[Item] = []
    if (thought := draw(st.none() | texts)) is not None:
        output.append(reasoning(thought))
    if (said := draw(st.none() | texts)) is not None:
        output.append(message("assistant", said))
    output += [function_call(name, arguments, f"call_{at}") for at, (name, arguments, _) in enumerate(draw(calls))]
    incomplete = draw(st.sampled_from([None, "max_output_tokens", "content_filter"]))
    read, cached, stored, wrote, thought_tokens = draw(counts)
    return ResponsesResponse(
        id="r1",
        model="m",
        status="incomplete" if incomplete else "completed",
        incomplete_details={"reason": incomplete} if incomplete else None,
        output=output,
        usage=Usage(
            input_tokens=read,
            output_tokens=wrote,
            total_tokens=read + wrote,
            input_tokens_details={"cached_tokens": cached, "cache_write_tokens": stored},
            output_tokens_details={"reasoning_tokens": thought_tokens},
        ),
    )


def said(response: ResponsesResponse) -> Any:
    """What every API can say of a response."""
    items = [
        (item["type"], "".join(texts_of(item)), item.get("call_id"), item.get("name"), arguments(item))
        for item in response.output
    ]
    usage = response.usage.model_dump() if response.usage else None
    return items, response.status, response.incomplete_details, usage, response.model, response.id


def arguments(item: Item) -> Any:
    return json.loads(item["arguments"]) if "arguments" in item else None


def streamed(api: str, response: ResponsesResponse, pieces: int) -> bytes:
    encoder = CLIENTS[api].encoder({"stream_options": {"include_usage": True}})
    return b"".join(encoder.event(event) for event in unfold(response, pieces))


def read(decoder: Decoder, stream: bytes, cuts: list[int]) -> ResponsesResponse:
    """The response of a stream that comes in pieces cut at these places."""
    parser, events = Parser(), []
    places = sorted({cut % (len(stream) + 1) for cut in cuts} | {0, len(stream)})
    for start, end in pairwise(places):
        for sent in parser.feed(stream[start:end]):
            events += decoder.feed(sent)
    return fold([*events, *decoder.end()])


def decoder_of(api: str) -> Decoder:
    return UPSTREAMS[api].ask(ResponsesRequest(input="hi", max_output_tokens=1), stream=True)[1]


cuts = st.lists(st.integers(0, 5000), max_size=12)


@pytest.mark.parametrize(("first", "second"), PAIRS)
@settings(deadline=None, max_examples=30)
@given(response=responses(), pieces=st.integers(1, 5), cuts=cuts)
def test_an_answer_comes_through(
    first: str, second: str, response: ResponsesResponse, pieces: int, cuts: list[int]
) -> None:
    """Whole and streamed, of one API to a client of another: the same answer."""
    whole = response
    for api in (first, second):
        answer = json.loads(json.dumps(CLIENTS[api].answer(whole, {})))
        whole = decoder_of(api).whole(answer)
    stream = response
    for api in (first, second):
        stream = read(decoder_of(api), streamed(api, stream, pieces), cuts)
    assert said(whole) == said(stream) == said(response)


@settings(deadline=None, max_examples=50)
@given(cuts=cuts, data=st.lists(texts.filter(lambda text: "\r" not in text and "\n" not in text), max_size=4))
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_events_are_read_whatever_the_pieces(end: str, cuts: list[int], data: list[str]) -> None:
    lines = ["\ufeff: a comment", "", *(f"event: e{end}data: {text}{end}data: {text}{end}id: 7{end}" for text in data)]
    stream = (end.join(lines) + end).encode()
    parser, got = Parser(), []
    places = sorted({cut % (len(stream) + 1) for cut in cuts} | {0, len(stream)})
    for start, stop in pairwise(places):
        got += parser.feed(stream[start:stop])
    got += parser.feed(b"\n") if end == "\r" else []
    assert [(sent.event, sent.data) for sent in got] == [("e", f"{text}\n{text}") for text in data]
