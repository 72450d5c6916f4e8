"""The base of every section of the configuration."""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationInfo, field_validator

from tagmill.domain.identifiers import identifier

Identifier = Annotated[str, AfterValidator(identifier)]

# The longest span of time in each unit: a hundred years, since calendars don't reach back without limit.
LONGEST = {"days": 36_525, "seconds": 36_525 * 86_400}
LARGEST = 2**63 - 1


def fit_beside_destination(*names: str) -> None:
    """Raise ValueError if a name that is made from `destination` is not a valid identifier."""
    for name in names:
        try:
            identifier(name)
        except ValueError as error:
            raise ValueError(f"destination: too long for what stands beside it: {error}") from None


class Section(BaseModel):
    """A section of the file: unknown keys are errors, and numbers that nothing behind the file could take."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _fits(cls, value: Any, info: ValidationInfo) -> Any:
        largest = LONGEST.get((info.field_name or "").rpartition("_")[2], LARGEST)
        if isinstance(value, int | float) and abs(value) > largest:
            raise ValueError(f"at most {largest} is possible")
        return value
