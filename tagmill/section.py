"""What every section of the configuration is made of."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

from tagmill.names import identifier

Identifier = Annotated[str, AfterValidator(identifier)]


def fit_beside_destination(*names: str) -> None:
    """Raises ValueError where a name that is made from `destination` is no identifier any more."""
    for name in names:
        try:
            identifier(name)
        except ValueError as error:
            raise ValueError(f"destination: too long for what stands beside it: {error}") from None


class Section(BaseModel):
    """A section of the file: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
