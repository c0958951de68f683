from __future__ import annotations

import pytest
from pydantic import ValidationError

from resources_servers.mcqa.app import McqaTask, answered

CHOICES = ["red", "green", "blue", "The answer is black"]


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("Answer: B", "B"),
        ("**Answer: (c)**", "C"),
        ("First I thought the answer is A. But no.\n\nThe final answer is: $\\boxed{D}$", "D"),
        ("The answer is B because A is not.", "B"),
        ("It is \\boxed{\\text{C}}.", "C"),
        ("B", "B"),
        ("Let me see.\n\n**B.**", "B"),
        ("So:\nC. blue", "C"),
        ("green", "B"),
        ("The answer is black", "D"),
        ("Answer: B\n\nHope that helps!", "B"),
        ("The correct answer is `A`", "A"),
        ("Answer: E", None),
        ("answer: better ask someone", None),
        ("A dog is an animal", None),
        ("I do not know.", None),
        ("", None),
    ],
)
def test_the_letter_that_a_text_answers_with(text: str, letter: str | None) -> None:
    assert answered(text, CHOICES) == letter


def test_the_right_answer_is_one_of_the_choices() -> None:
    with pytest.raises(ValidationError, match="the answer is D, but there are 2 choices"):
        McqaTask(choices=["yes", "no"], answer="D")
