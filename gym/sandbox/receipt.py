"""What a supervisor leaves of a launch: how it ended. See `supervisor`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from signal import Signals

RECEIPT_BYTES = 4096


@dataclass(frozen=True)
class Receipt:
    """How a launch ended.

    Attributes:
        return_code: Exit code of the program, 128+N when signal N ended it; 126 and 127 when it could not be started;
            None when the supervisor itself was killed, so that nobody knows.
        timed_out: Its deadline was over and it was ended.
        stopped: `Launch.stop` ended it.
        cleanup_confirmed: None of its processes is left.
        started_at: Seconds since 1970, by the sandbox's clock; None when nobody knows.
        ended_at: The same for its end.
    """

    return_code: int | None
    timed_out: bool = False
    stopped: bool = False
    cleanup_confirmed: bool = False
    started_at: float | None = None
    ended_at: float | None = None

    @property
    def signal(self) -> int | None:
        """The signal that ended the program, as far as the exit code tells."""
        number = (self.return_code or 0) - 128
        return number if number in {int(one) for one in Signals} else None


def parse(text: bytes) -> Receipt | None:
    """A receipt from the sandbox, if it is one: whatever runs in there could have written it."""
    try:
        fields = json.loads(text)
        return Receipt(
            return_code=int(fields["return_code"]),
            timed_out=bool(fields["timed_out"]),
            stopped=bool(fields["stopped"]),
            cleanup_confirmed=bool(fields["cleanup_confirmed"]),
            started_at=float(fields["started_at"]),
            ended_at=float(fields["ended_at"]),
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
