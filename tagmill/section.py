"""What every section of the configuration is made of."""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationInfo, field_validator

from tagmill.names import identifier

Identifier = Annotated[str, AfterValidator(identifier)]

# a hundred years; what lies further back is beyond what calendars know
LONGEST = {"days": 36_525, "seconds": 36_525 * 86_400}
LARGEST = 2**63 - 1


def fit_beside_destination(*names: str) -> None:
    """Raises ValueError where a name that is made from `destination` is no identifier any more."""
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
