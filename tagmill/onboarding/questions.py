"""Define the questions that only a person can answer, each with a proposal."""

from collections.abc import Callable
from dataclasses import dataclass

from tagmill.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Question:
    """A question to the operator.

    `option`: what of the command line answers it beforehand, empty: nothing. `proposal` None: only a person
    can say.
    """

    text: str
    proposal: str | None
    choices: tuple[str, ...] = ()
    option: str = ""


Ask = Callable[[Question], str]


def take_proposal(question: Question) -> str:
    """Answer a question with its proposal; raises ConfigurationError where there is none."""
    if question.proposal is None:
        way = (
            f"Give {question.option}, or answer without --yes" if question.option else "Answer without --yes"
        )
        choices = f" (one of {', '.join(question.choices[:20])})" if question.choices else ""
        raise ConfigurationError(
            f"{question.text}{choices}: the servers don't say. Nothing was written. {way}"
        )
    return question.proposal
