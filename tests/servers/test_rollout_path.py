from __future__ import annotations

import pytest

from gym.servers.rollout_path import split, with_rollout


@pytest.mark.parametrize(
    ("path", "rollout", "rest"),
    [
        ("/v1/responses", None, "/v1/responses"),
        ("/ng-rollout/12-0-a1/v1/responses", "12-0-a1", "/v1/responses"),
        ("/ng-rollout/12-0/training-token-capture/v1/responses", "12-0", "/v1/responses"),
        ("/ng-rollout/12-0", "12-0", "/"),
        ("/ng-rollouts/12-0/verify", None, "/ng-rollouts/12-0/verify"),
    ],
)
def test_a_path_may_name_its_rollout(path: str, rollout: str | None, rest: str) -> None:
    assert split(path) == (rollout, rest)


def test_the_two_go_together() -> None:
    assert split(with_rollout("/v1/responses", "r.1-a2")) == ("r.1-a2", "/v1/responses")
