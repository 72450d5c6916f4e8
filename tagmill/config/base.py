"""The base of every section of the configuration."""

from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)

from tagmill.domain.identifiers import identifier
from tagmill.domain.schedules import require_schedule

Identifier = Annotated[
    str,
    AfterValidator(identifier),
    WithJsonSchema({"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9_]{0,47}$"}),
]

# Keys that several sections have, with one meaning.
Tls = Annotated[bool, Field(description="Connect by TLS.", examples=[True])]
TlsCaFile = Annotated[
    Path | None,
    Field(
        description="File of the certificate authorities (PEM) that sign the servers' certificates. Left "
        "out: those of the system.",
        examples=["certificates/ca.pem"],
    ),
]
TlsCertificateFile = Annotated[
    Path | None,
    Field(
        description="File of the certificate (PEM) that Tagmill shows servers which ask for one, with those "
        "between it and their authority behind it. Only with `tls`.",
        examples=["certificates/tagmill.pem"],
    ),
]
TlsKeyFile = Annotated[
    Path | None,
    Field(
        description="File of that certificate's private key (PEM). Left out: `tls_certificate_file` holds it.",
        examples=["certificates/tagmill.key"],
    ),
]
TlsKeyPassword = Annotated[
    SecretStr | None,
    Field(
        description="Password of an encrypted private key; from the environment or the Airflow connection only.",
        examples=["…"],
    ),
]
Username = Annotated[
    str | None,
    Field(
        description="User name; from the environment or the Airflow connection only.", examples=["tagmill"]
    ),
]
Password = Annotated[
    SecretStr | None,
    Field(description="Password; from the environment or the Airflow connection only.", examples=["…"]),
]
LeaseSeconds = Annotated[
    int,
    Field(
        ge=5,
        le=3600,
        description="Seconds after which another run may take over from a process that died. A living "
        "one renews its lease.",
        examples=[60],
    ),
]
LeaseWaitSeconds = Annotated[
    float,
    Field(
        ge=0,
        description="Seconds that a command waits for another run of the pipeline before it gives up.",
        examples=[30],
    ),
]
# A preset of Airflow or a cron expression.
Schedule = Annotated[str, AfterValidator(require_schedule)]
DeliverySchedule = Annotated[
    Schedule | None,
    Field(
        description="When Airflow runs the DAG deliver_<pipeline>: a preset or a cron expression, in UTC.",
        examples=["*/10 * * * *"],
    ),
]
RetentionDays = Annotated[
    int,
    Field(ge=1, description="Days that sealed files and ledger rows of closed runs are kept.", examples=[30]),
]


def host(name: str) -> str:
    """Return the name if it can be a host's name or address; raise ValueError if not."""
    if not name or set(name) & set("/@?# \t\n"):
        raise ValueError(f"{name!r} is no host: give its name or address alone")
    if name.count(":") == 1:  # an IPv6 address has more
        raise ValueError(f"{name!r} is no host: the key port has the port")
    return name


Host = Annotated[str, AfterValidator(host)]
ConnectTimeoutSeconds = Annotated[
    float, Field(gt=0, description="Seconds until an attempt to connect fails.", examples=[10])
]

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


class TlsKeys(Protocol):
    """The keys of a section that say how its servers are connected to by TLS."""

    @property
    def tls(self) -> bool:
        """Whether to connect by TLS."""

    @property
    def tls_ca_file(self) -> Path | None:
        """The authorities that are trusted; None: the system's."""

    @property
    def tls_certificate_file(self) -> Path | None:
        """The certificate that servers are shown."""

    @property
    def tls_key_file(self) -> Path | None:
        """The certificate's private key; None: the certificate's file holds it."""

    @property
    def tls_key_password(self) -> SecretStr | None:
        """Password of an encrypted key."""


class Section(BaseModel):
    """A section of the file: unknown keys are errors, and numbers and paths that nothing behind the file could take."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _fits(cls, value: Any, info: ValidationInfo) -> Any:
        largest = LONGEST.get((info.field_name or "").rpartition("_")[2], LARGEST)
        if isinstance(value, int | float) and abs(value) > largest:
            raise ValueError(f"at most {largest} is possible")
        paths = value.values() if isinstance(value, dict) else [value]
        if any(isinstance(path, Path) and "\0" in str(path) for path in paths):
            raise ValueError("a file's name has no NUL")
        return value
