"""Runs Spark jobs from Airflow: the provider's operator, with secrets kept out of sight and failures
classified by the job's report.
"""

import os
import re
import shlex
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import Context

from tagmill.airflow import connections, steps
from tagmill.airflow.compat import EACH_RUN_SUBMITS, AirflowException, AirflowSkipException
from tagmill.airflow.dry_run import missed_by
from tagmill.airflow.failures import failure_of_job, read_report, small, told_to_airflow
from tagmill.airflow.links import ReportLink
from tagmill.airflow.operations import job_arguments
from tagmill.airflow.pages import docs_link
from tagmill.airflow.steps import owner
from tagmill.config.settings import Settings
from tagmill.domain.batches.states import RunState
from tagmill.errors import ConfigurationError
from tagmill.operations.model import Operation
from tagmill.operations.work_size import few_events, little_to_audit
from tagmill.runs.privacy import UMASK, make_folder, private_file
from tagmill.runs.report_folders import ALL_PIPELINES, REPORTS
from tagmill.runs.temporary_folders import OwnFolder, own_folder
from tagmill.spark.job_environment import SUBMIT_ARGUMENTS

# The stores that jobs log in to: most of them hold the ledger, or the clock, against ClickHouse.
STORES: tuple[connections.StoreName, ...] = ("cassandra", "clickhouse")
WITH_KAFKA: tuple[connections.StoreName, ...] = (*STORES, "kafka")
# Characters of a DAG run's id in a file's name; file systems take 255 bytes in all.
LONGEST_NAME = 150
# Settings of Spark that name the Python of a driver.
PYTHON_KEYS = ("spark.pyspark.driver.python", "spark.pyspark.python")


class QuietSparkSubmitHook(SparkSubmitHook):
    """spark-submit whose secrets travel in its environment, and which leaves no process behind when it is
    stopped.

    The provider's own `env_vars` become `--conf` arguments on YARN and Kubernetes, visible to every user of
    the machine.

    Args:
        secrets: variables of the job.
        default_master: Spark's master URL where there is no connection.
        own: the folder of the job.
        python: runs the job's script itself, without a JVM. If the script needs Spark, pyspark starts
            spark-submit with the same options. None: spark-submit runs the script.
        kwargs: those of the provider's hook.
    """

    def __init__(
        self,
        *,
        secrets: Mapping[str, str],
        default_master: str,
        own: OwnFolder,
        python: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._secrets, self._own, self._python = dict(secrets), own, python
        if connections.find(self._conn_id) is None:  # the provider would silently go to YARN
            self._connection["master"] = default_master
        if self.master.startswith("local"):  # else the driver listens on the address of the host's name
            self._conf = self._conf | {
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
            }

    @property
    def master(self) -> str:
        """Spark's master URL."""
        return str(self._connection["master"])

    @property
    def deploy_mode(self) -> str | None:
        """client, cluster, or None for Spark's own default, which is client."""
        mode: str | None = self._connection["deploy_mode"]
        return mode

    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        """Start the job in a process group of its own and wait for it; raises AirflowException unless it ends
        with 0.
        """
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("AIRFLOW__", "AIRFLOW_CONN_"))
        }
        if self._python is not None:
            environment |= {SUBMIT_ARGUMENTS: self._options(application), "PYTHONUNBUFFERED": "YES"}
        more = {"process_group": 0, "umask": UMASK, "pass_fds": [self._own.lock]}
        driver: str | None = super().submit(application, env=environment | self._secrets, **more, **kwargs)
        return driver

    def _build_spark_submit_command(self, application: str) -> list[str]:
        if self._python is None:
            return list(super()._build_spark_submit_command(application))
        self.log.info("There are few rows: %s starts without spark-submit", application)
        return [self._python, application, *(self._application_args or [])]

    def _options(self, application: str) -> str:
        """Return the options of spark-submit as the variable of pyspark holds them."""
        command = super()._build_spark_submit_command(application)
        of_script = 1 + len(self._application_args or [])
        return shlex.join([*command[command.index("--master") : -of_script], "pyspark-shell"])

    def on_kill(self) -> None:
        """Stop the JVM and the Python driver below it, which the provider would leave running."""
        super().on_kill()
        if self._submit_sp is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._submit_sp.pid, signal.SIGKILL)


class JobOperator(SparkSubmitOperator):
    """Runs a script of spark_jobs/ where the Spark connection says, and reads its report.

    Args:
        pipeline: name in the configuration.
        application: path of the job script; its name is the step's.
    """

    ui_color = "#d8e8f8"
    operator_extra_links = (ReportLink(),)
    stores = STORES

    def __init__(self, *, pipeline: str, application: str, **kwargs: Any) -> None:
        self.step = Path(application).stem
        super().__init__(
            application=application, name=f"tagmill-{self.step}-{pipeline}", **EACH_RUN_SUBMITS, **kwargs
        )
        self.pipeline = pipeline
        self.report_page: str | None = None

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Run the job. Out: its report as figures and short texts.

        Raises AirflowFailException for wrong configuration and data quality (with the link to the page),
        AirflowException for what a retry may solve.
        """
        from tagmill.spark.session import LOCAL_DIR, names_disks

        with told_to_airflow():
            settings = connections.load_settings()
            report_file = self._report_file(settings, context)
            few = self.has_few_rows(settings)
            arguments = self._arguments(report_file, owner(context), few)
            parent = None if names_disks(settings) else settings.spark.conf.get(LOCAL_DIR)
            with own_folder(parent) as own, self._hook_for(settings, own, arguments, few) as self._hook:
                report = self._run(settings, report_file, context)
        self.log.info("%s", report.get("message"))
        return small(report)

    def _job(self) -> str:
        """Return a description of the job for messages."""
        return f"{self.step} of {self.pipeline}"

    def job_arguments(self) -> Sequence[str]:
        """Return the arguments that only this job has."""
        return ()

    def needs_no_spark(self, settings: Settings) -> bool:
        """Return whether the job is likely to need no Spark at all."""
        return False

    def has_few_rows(self, settings: Settings) -> bool:
        """Return whether the job has so little to read that its session suits that."""
        return False

    def _report_folder(self) -> str:
        """Return the folder of the job's reports, relative to the pipeline's folder."""
        return REPORTS

    def _report_name(self) -> str:
        """Return how the names of the job's reports begin."""
        return self.step

    def _run(self, settings: Settings, report_file: Path, context: Context) -> dict[str, Any]:
        """Run Spark and return the job's report, which decides if the job succeeded, however spark-submit
        ended.
        """
        job = self._job()
        died: AirflowException | None = None
        try:
            super().execute(context)
        except AirflowException as error:
            died = error
        report = read_report(report_file)
        if report is not None and (docs := report.get("docs") or (report.get("result") or {}).get("docs")):
            report["docs"] = docs_link(settings, docs)
            self.report_page = report["docs"]
        if report is None or not report.get("ok"):
            raise failure_of_job(report, job)
        if died is not None:
            self.log.warning("%s: the job reported success, then spark-submit failed: %s", job, died)
        return report

    def _arguments(self, report_file: Path, owner: str, few_rows: bool) -> Sequence[str]:
        return [
            *("--pipeline", self.pipeline),
            *(["--few-rows"] if few_rows else []),
            *self.job_arguments(),
            *("--owner", owner),
            *("--config", str(connections.config_file())),
            *("--report", str(report_file)),
        ]

    def _report_file(self, settings: Settings, context: Context) -> Path:
        """Return the path of a new report for this attempt, whose folder is created and which does not exist
        yet.

        It lies below the storage root, or below AIRFLOW_HOME if the root is not a folder.
        """
        root = Path(settings.storage.root)
        if "://" in settings.storage.root:
            root = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser() / "tagmill-reports"
        run = _short(re.sub(r"[^A-Za-z0-9.-]", "_", context["dag_run"].run_id))
        attempt = f"{run}-{context['ti'].try_number}"
        file = root / self.pipeline / self._report_folder() / f"{self._report_name()}-{attempt}.json"
        make_folder(file.parent)
        file.unlink(missing_ok=True)
        return file

    @contextmanager
    def _hook_for(
        self, settings: Settings, own: OwnFolder, arguments: Sequence[str], few_rows: bool
    ) -> Iterator[QuietSparkSubmitHook]:
        """Make the hook.

        Arguments travel in a file, since a command line is limited in length and readable for every user.

        A driver on a cluster inherits neither the environment of this process nor its folder for temporary
        files. It gets secrets, also those among Spark's settings, by a file. A driver on this machine gives the
        latter to its session itself.
        """
        from tagmill.spark import job_environment
        from tagmill.spark.job_report import write_arguments
        from tagmill.spark.session import names_disks, public, spark_conf

        jobs = job_environment.variables(settings.spark.environment)
        names_python = any(key in settings.spark.conf for key in PYTHON_KEYS)
        python = (
            jobs.get("PYSPARK_DRIVER_PYTHON") if not names_python and self.needs_no_spark(settings) else None
        )
        secrets = connections.spark_environment(settings, *self.stores)
        conf = spark_conf(settings, few_rows=few_rows)
        shown = public(conf)
        self.conf = _without_master(shown)
        hook = self._new_hook(settings, secrets, own)
        if hook.deploy_mode != "cluster":
            self.conf = _without_master(public(spark_conf(settings, own.path, few_rows=few_rows)))
            self.application_args = [write_arguments(own.path / "arguments", arguments)]
            variables = {"TMPDIR": str(own.path)} | (
                {} if names_disks(settings) else {"SPARK_LOCAL_DIRS": str(own.path)}
            )
            yield self._new_hook(settings, secrets | variables | jobs, own, python=python)
            return
        if "://" in settings.storage.root:
            raise ConfigurationError(
                f"Airflow connection {self._conn_id}: deploy-mode cluster needs a storage.root that is a "
                "folder which the "
                f"driver and this worker share, for the job's report; it is {settings.storage.root}. Use "
                "deploy-mode client"
            )
        shared = Path(arguments[-1]).with_suffix(".arguments")
        file = own.path / "secrets.properties"
        secret_conf = {key: value for key, value in conf.items() if key not in shown}
        with private_file(file) as stream:
            stream.write(properties(driver_variables(hook.master, secrets) | secret_conf))
        try:
            self.application_args = [write_arguments(shared, ["--start-spark", *arguments])]
            yield self._new_hook(settings, secrets | jobs, own, properties_file=str(file))
        finally:
            shared.unlink(missing_ok=True)

    def _new_hook(
        self,
        settings: Settings,
        secrets: Mapping[str, str],
        own: OwnFolder,
        properties_file: str | None = None,
        python: str | None = None,
    ) -> QuietSparkSubmitHook:
        return QuietSparkSubmitHook(
            secrets=secrets,
            default_master=settings.spark.master,
            own=own,
            python=python,
            conf=self.conf,
            conn_id=self._conn_id,
            name=self.name,
            application_args=self.application_args,
            properties_file=properties_file,
        )


class SealOperator(JobOperator):
    """Runs spark_jobs/seal.py for a planned run.

    Args:
        planned: what the plan task returned (run, fence, state, and few_rows if Spark is not needed).
    """

    template_fields: Sequence[str] = ("planned",)

    def __init__(self, *, planned: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.planned = planned

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Seal the run, unless it is sealed already."""
        run, state = self.planned["run"], self.planned["state"]
        if state == RunState.PLANNED:
            return super().execute(context)
        message = f"run {run} of {self.pipeline} is {state} already: Spark is not started"
        self.log.info("%s", message)
        return {"run": run, "message": message}

    def needs_no_spark(self, settings: Settings) -> bool:
        """Return what the plan says."""
        return bool(self.planned.get("few_rows"))

    def _job(self) -> str:
        return f"seal of run {self.planned['run']} of {self.pipeline}"

    def job_arguments(self) -> Sequence[str]:
        """Return the run and the fence of the plan."""
        return ("--run", str(self.planned["run"]), "--fence", str(self.planned["fence"]))

    def _report_folder(self) -> str:
        return f"run-{self.planned['run']:08d}/{REPORTS}"


class TopicSealOperator(SealOperator):
    """Runs spark_jobs/seal.py for a run of a topic, also for a sealed one whose ids are not noted yet: then
    the job notes them.
    """

    stores = WITH_KAFKA

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Run the job in any state of the run: it seals the run, or finishes a sealed one."""
        return JobOperator.execute(self, context)


class OperationJob(JobOperator):
    """Runs spark_jobs/operation.py: an operation that tagmill.operations declares.

    Args:
        jobs: the folder of the Spark job scripts.
        operation: the declared operation; None if a subclass chooses it for each run.
    """

    template_fields: Sequence[str] = ()
    arguments: Sequence[str] = ()

    def __init__(self, *, jobs: Path, operation: Operation[Any] | None = None, **kwargs: Any) -> None:
        super().__init__(application=str(jobs / "operation.py"), **kwargs)
        self.operation = operation

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Run the operation with the run's params. Out: the job's report as figures and short texts."""
        assert self.operation is not None
        with told_to_airflow():
            self.set_arguments(self.operation, {**context["params"], "dry_run": False})
        return super().execute(context)

    def set_arguments(self, operation: Operation[Any], params: Mapping[str, Any]) -> None:
        """Set the job's arguments, its name and its stores from an operation and the run's params."""
        self.step = operation.step
        self.name = f"tagmill-{self.step}-{self.pipeline}"
        self.stores = WITH_KAFKA if operation.kafka else STORES
        self.arguments = job_arguments(operation, params)
        self._has_few_rows, self._needs_no_spark = operation.has_few_rows, operation.needs_no_spark

    def job_arguments(self) -> Sequence[str]:
        """Return the operation and its parameters."""
        return self.arguments

    def has_few_rows(self, settings: Settings) -> bool:
        """Return what the operation says of the rows that it has to read."""
        return self._has_few_rows(settings, self.pipeline)

    def needs_no_spark(self, settings: Settings) -> bool:
        """Return what the operation says."""
        return self._needs_no_spark(settings, self.pipeline)


class AuditOperator(JobOperator):
    """Runs spark_jobs/audit.py for the tags that the run's params name; fails with the link to the page when
    something differs. With the param `full` it reads again what was proven.

    With the param `repair` it repairs what it finds, for all tags, and fails only when the second audit
    differs.
    """

    template_fields: Sequence[str] = ()
    tags: Sequence[str] = ()
    full = False
    why: str | None = None

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Run the audit that the params ask for. Out: the job's report as figures and short texts.

        A scheduled run that missed its moment is skipped if another audit has been begun since, or is queued:
        triggering a paused DAG by its form, which switches it on, audits once.
        """
        if missed_by(context["dag_run"]) and (other := steps.audit_since_due(self.pipeline, context)):
            raise AirflowSkipException(f"pipeline {self.pipeline}: this run was due earlier, and {other}")
        self.set_arguments(context["params"], context["dag_run"])
        return super().execute(context)

    def set_arguments(self, params: Mapping[str, Any], dag_run: Any) -> None:
        """Set what to audit, and the reason for a repair, from the run's params."""
        self.tags, self.full = list(params["tags"]), bool(params["full"])
        self.why = f"param repair of DAG run {dag_run.run_id}" if params["repair"] else None
        if self.why:
            self.log.warning(
                "the next version has no param repair: trigger maintenance_%s, operation repair",
                self.pipeline,
            )

    def job_arguments(self) -> Sequence[str]:
        """Return what to read, and the reason for a repair, or the tags."""
        # A tag may begin with a dash.
        what = ["--repair", self.why] if self.why else [f"--tag={tag}" for tag in self.tags]
        return ["--full", *what] if self.full else what

    def has_few_rows(self, settings: Settings) -> bool:
        """Return whether there are few rows to read."""
        return (few_events if self.full else little_to_audit)(settings, self.pipeline)


class DeliverOperator(JobOperator):
    """Runs spark_jobs/deliver.py: the pipelines that have something to do, in one session.

    Args:
        planned: what the plan task returned; `deliver` has the pipelines.
    """

    template_fields: Sequence[str] = ("planned",)
    stores = WITH_KAFKA

    def __init__(self, *, planned: Any, **kwargs: Any) -> None:
        super().__init__(pipeline=ALL_PIPELINES, **kwargs)
        self.planned = planned

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Deliver them. Out: `outcomes`, each pipeline's own, and the message."""
        self._outcomes: dict[str, Any] = {}
        return {**super().execute(context), "outcomes": self._outcomes}

    def _run(self, settings: Settings, report_file: Path, context: Context) -> dict[str, Any]:
        report = super()._run(settings, report_file, context)
        self._outcomes = report["result"]["outcomes"]
        for outcome in self._outcomes.values():
            if outcome["docs"]:
                outcome["docs"] = docs_link(settings, outcome["docs"])
        return report

    def job_arguments(self) -> Sequence[str]:
        """Return the pipelines; in the second half of the task's time no run begins, so that the last one may end."""
        limit = [f"--seconds={self.execution_timeout.total_seconds() / 2}"] if self.execution_timeout else []
        return [*limit, *(f"--deliver={name}" for name in self.planned["deliver"])]


def _short(name: str) -> str:
    """Return a name that fits into a file's name, and is no other name's."""
    return (
        name
        if len(name) <= LONGEST_NAME
        else f"{name[:LONGEST_NAME]}_{sha256(name.encode()).hexdigest()[:16]}"
    )


def _without_master(conf: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in conf.items() if key != "spark.master"}


class DrainBacklogOperator(TriggerDagRunOperator):
    """Triggers the same DAG once more if the plan was capped, so that a backlog drains without waiting for
    the schedule.
    """

    template_fields: Sequence[str] = (*TriggerDagRunOperator.template_fields, "planned")

    def __init__(self, *, planned: Any, **kwargs: Any) -> None:
        super().__init__(
            logical_date=None, skip_when_already_exists=True, openlineage_inject_parent_info=False, **kwargs
        )
        self.planned = planned

    def execute(self, context: Context) -> None:
        """Trigger the DAG again with the same params; the task is skipped if nothing was left over."""
        if not self.planned.get("more"):
            raise AirflowSkipException("nothing is left over")
        params = context["params"]
        self.conf = {"tags": list(params["tags"])} if "tags" in params else {}
        # This run only finished an earlier one, so what its params ask of a topic is still to be done.
        if not self.planned.get("planned_now", True):
            self.conf |= {name: True for name in ("accept_lost", "replay_dead_letters") if params.get(name)}
        if reread := self.planned.get("reread"):
            self.conf |= {"reread_from": reread[0], "reread_until": reread[1]}
        super().execute(context)


def driver_variables(master: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the Spark properties that set a remote driver's environment, on YARN or Kubernetes.

    Raises ConfigurationError for any other master.
    """
    if "yarn" in master:
        prefix = "spark.yarn.appMasterEnv"
    elif "k8s" in master:
        prefix = "spark.kubernetes.driverEnv"
    else:
        raise ConfigurationError(
            f"Spark master {master}: a Python job can't run there with deploy-mode cluster; use client"
        )
    return {f"{prefix}.{name}": value for name, value in variables.items()}


def properties(values: Mapping[str, str]) -> str:
    """Return the text of a Java properties file with these values; each character is written as its UTF-16
    code, whatever it is.
    """
    escaped = {key: value.encode("utf-16-be").hex(" ", 2).split() for key, value in values.items()}
    return "".join(
        f"{key}={''.join(f'{chr(92)}u{unit}' for unit in units)}\n" for key, units in escaped.items()
    )
