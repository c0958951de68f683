"""Bodies as servers of the run send them to each other."""

from __future__ import annotations

import json

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError


def dumped(body: BaseModel) -> bytes:
    """A body as JSON, with the fields that are set.

    Models write half of a surrogate pair at times, for which UTF-8 has no place: it is escaped.
    """
    try:
        return body.model_dump_json(exclude_unset=True).encode()
    except PydanticSerializationError:
        return json.dumps(body.model_dump(mode="json", exclude_unset=True)).encode()
