"""How DAGs look and behave in Airflow: for all pipelines in `[airflow]`, for one in `[pipelines.NAME.airflow]`."""

import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Discriminator, Field, Tag, model_validator

from tagmill.config.base import Section

IMPORT_PATH = r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"
ImportPath = Annotated[str, Field(pattern=f"^{IMPORT_PATH}$")]
# Arguments of notifiers that are secrets.
SECRET_ARGUMENT = re.compile(r"password|secret|token|(api|access|integration|private)_?key", re.IGNORECASE)


def creating_pools(pools: Iterable[str]) -> str:
    """Return the commands that create pools of Airflow."""
    return "; ".join(f'airflow pools set {shlex.quote(name)} 1 "tagmill"' for name in pools)


class Notifier(Section):
    """A notifier of a provider of Airflow; the further keys are its arguments."""

    model_config = ConfigDict(extra="allow", frozen=True)
    notifier: str = Field(
        pattern=rf"^([A-Za-z_]\w*|{IMPORT_PATH})$",
        description="Name that the notifier's module has in its provider (`slack`, `slack_webhook`, `smtp`, `pagerduty`, "
        "…), or `module:Class`. Further keys are its arguments, which Airflow fills in as templates.",
        examples=["slack"],
    )

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the notifier's class."""
        return dict(self.model_extra or {})

    @model_validator(mode="after")
    def _without_secrets(self) -> "Notifier":
        if secret := next(filter(SECRET_ARGUMENT.search, self.arguments), None):
            raise ValueError(
                f"{secret}: a secret doesn't belong in the file; name an Airflow connection that has it"
            )
        return self


def _kind(value: Any) -> str:
    return "function" if isinstance(value, str) else "notifier"


Callback = Annotated[
    Annotated[ImportPath, Tag("function")] | Annotated[Notifier, Tag("notifier")], Discriminator(_kind)
]


class DagSettings(Section):
    """Keys of `[airflow]` that a pipeline may have of its own."""

    owner: str = Field("tagmill", min_length=1, description="Owner of the tasks.", examples=["data-platform"])
    tags: list[str] = Field(
        default_factory=list,
        description="Tags of the DAGs, next to their kind and their pipeline.",
        examples=[["tier-1"]],
    )
    retries: int = Field(4, ge=0, description="Times that a failed task is tried again.", examples=[2])
    retry_delay_seconds: float = Field(
        20,
        gt=0,
        description="Seconds before the first retry; each later one waits twice as long.",
        examples=[60],
    )
    spark_pool: str = Field(
        "spark",
        min_length=1,
        description="Pool of the tasks that start Spark. Where it does not exist, Airflow warns of it, and tasks run in "
        "the default pool.",
        examples=["default_pool"],
    )
    clickhouse_pool: str = Field(
        "clickhouse",
        min_length=1,
        description="Pool of the tasks that insert into ClickHouse.",
        examples=["default_pool"],
    )
    queue: str | None = Field(
        None, description="Queue of the tasks, for executors that have several.", examples=["tagmill"]
    )
    execution_timeout_seconds: float = Field(
        6 * 3600,
        gt=0,
        description="Seconds that a task may take whose work grows with a run. The others may take ten minutes, "
        "plans `lease_wait_seconds` more.",
        examples=[21600],
    )
    on_failure: list[Callback] = Field(
        default_factory=list,
        description="What is called when a task failed for good: functions of the context as `module:name`, and "
        "notifiers of Airflow's providers.",
        examples=[["alerts:tell", {"notifier": "slack", "text": "{{ ti.task_id }} failed"}]],
    )
    deadline_seconds: float | None = Field(
        None,
        gt=0,
        description="Seconds from a run's queueing within which it should be done, for DAGs with a schedule. A run that "
        "takes longer goes on, and `on_deadline` is called. Left out: any time.",
        examples=[7200],
    )
    on_deadline: list[Callback] = Field(
        default_factory=list,
        description="What Airflow's triggerer calls when a run misses `deadline_seconds`, written as in `on_failure`. "
        "The context has `dag_run` and `deadline`.",
        examples=[
            [{"notifier": "smtp", "to": "team@example.org", "subject": "{{ dag_run.dag_id }} is late"}]
        ],
    )
    customize: ImportPath | None = Field(
        None,
        description="Function `module:name` that gets each DAG and may change it, for all that has no key.",
        examples=["our_dags:customize"],
    )


class PipelineDagSettings(DagSettings):
    """How the DAGs of one pipeline differ from those of the others."""


class AirflowSettings(DagSettings):
    """How DAGs look, and which files the person who triggers one may name."""

    input_dir: Path | None = Field(
        None,
        description="Folder on the workers whose files the params of DAGs may name. Left out: none.",
        examples=["/srv/tagmill/inputs"],
    )
    input_max_bytes: int = Field(
        64 * 1024**2,
        ge=1,
        description="Bytes that such a file may have.",
        examples=[67108864],
    )
    shared_session: bool = Field(
        False,
        description="Deliver all pipelines that have a cron schedule in one Spark session: by the DAG "
        "`deliver_all`, whose runs deliver those that are due. Their own DAGs `deliver_<pipeline>` are for a person.",
        examples=[True],
    )

    def of(self, own: DagSettings) -> DagSettings:
        """Return the settings of a pipeline's DAGs: its own keys, and these for the rest."""
        shared = {name: getattr(self, name) for name in DagSettings.model_fields}
        return DagSettings(**shared | {name: getattr(own, name) for name in own.model_fields_set})
