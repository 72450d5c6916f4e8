"""What every section of the configuration is made of."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

from tagmill.names import identifier

Identifier = Annotated[str, AfterValidator(identifier)]


class Section(BaseModel):
    """A section of the file: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
