"""Credentials of Airflow connections reach the Spark driver only: no command line, log, XCom or field in the
UI shows them.
"""

import json
import logging
import os
import shlex
import stat
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("airflow")

from tagmill.airflow.compat import AirflowException, AirflowFailException
from tests.support.certificates import Authority

KEY_PASSWORD, CLICKHOUSE_PASSWORD = "s3cr3t of the key", "s3cr3t of ClickHouse"
STORAGE_KEY, STORAGE_SECRET = "spark.hadoop.fs.s3a.secret.key", "s3cr3t of the storage"
PASSWORD = "s3cr3t word = 'quoted' \\ ünï"
SPY = """#!/usr/bin/env python3
import json, os, sys
arguments = sys.argv[1:]
given = dict(zip(arguments, arguments[1:]))
given["@"] = arguments[-1].removeprefix("@")
files = {name: open(given[name]).read() for name in ("--properties-file", "@") if name in given}
modes = {name: os.stat(given[name]).st_mode & 0o777 for name in files}
seen = {"arguments": arguments, "environment": dict(os.environ), "files": files, "modes": modes}
job = [json.loads(line) for line in files["@"].splitlines()]
given |= dict(zip(job, job[1:]))
seen["group"] = os.getpgid(0) == os.getpid()
json.dump(seen, open(os.environ["SPY"], "w"))
print("a line of spark's log")
if (answer := os.environ.get("SPY_REPORT")):
    open(given["--report"], "w").write(answer)
sys.exit(int(os.environ.get("SPY_EXIT", "0")))
"""
OK = json.dumps(
    {
        "step": "seal",
        "ok": True,
        "exit_code": 0,
        "seconds": 1.0,
        "message": "sealed",
        "result": {"run": 7, "rows": 3, "batches": 1},
    }
)


@pytest.fixture
def spark_submit(tmp_path, monkeypatch, config):
    """Return spark_submit(master, deploy_mode), which runs the operator with a spark-submit that records what
    it is given.
    """
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "spark-submit"
    program.write_text(SPY)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SPY", str(tmp_path / "seen.json"))
    monkeypatch.setenv("SPY_REPORT", OK)
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "bm90IGZvciB0aGUgam9icyEhISEhISEhISEhISEhISE=")
    connection = {
        "conn_type": "generic",
        "login": "tagmill",
        "password": PASSWORD,
        "extra": {
            "tls": True,
            "tls_ca_file": str(Authority(tmp_path / "authority").file),
            "tls_certificate_file": "/certificates/us.pem",
            "tls_key_password": KEY_PASSWORD,
        },
    }
    monkeypatch.setenv("AIRFLOW_CONN_TAGMILL_CASSANDRA", json.dumps(connection))
    other = {"conn_type": "generic", "login": "reader", "password": CLICKHOUSE_PASSWORD}
    monkeypatch.setenv("AIRFLOW_CONN_TAGMILL_CLICKHOUSE", json.dumps(other))
    monkeypatch.setenv("TAGMILL_SPARK__CONF", json.dumps({STORAGE_KEY: STORAGE_SECRET}))

    def run(
        master="local[2]",
        deploy_mode="client",
        state="PLANNED",
        more=(),
        few_rows=False,
        run_id="manual__2026-11-21T07:00:00+00:00",
    ):
        from tagmill.airflow.operators import SealOperator

        spark = {"conn_type": "spark", "host": master, "extra": {"deploy-mode": deploy_mode}}
        monkeypatch.setenv("AIRFLOW_CONN_TAGMILL_SPARK", json.dumps(spark))
        planned = {"run": 7, "fence": 3, "state": state, "few_rows": few_rows}
        operator = SealOperator(
            task_id="seal", pipeline="orders", planned=planned, application="seal.py", conn_id="tagmill_spark"
        )
        context = {
            "dag_run": SimpleNamespace(dag_id="deliver_orders", run_id=run_id),
            "ti": SimpleNamespace(try_number=1),
            "params": {},
        }
        run.operator = operator
        monkeypatch.setattr(operator, "job_arguments", lambda: more) if more else None
        return operator.execute(context)

    run.seen = lambda: json.loads((tmp_path / "seen.json").read_text())
    run.started = lambda: (tmp_path / "seen.json").exists()
    return run


def test_password_is_only_in_job_environment(spark_submit, tmp_path, caplog, capfd):
    """Arguments, logs, output, XCom and template fields show no password; the job's environment holds it."""
    caplog.set_level(logging.DEBUG)
    result = spark_submit()
    seen = spark_submit.seen()
    assert seen["environment"]["TAGMILL_CASSANDRA__PASSWORD"] == PASSWORD
    assert seen["environment"]["TAGMILL_CASSANDRA__TLS_KEY_PASSWORD"] == KEY_PASSWORD
    assert seen["environment"]["TAGMILL_CASSANDRA__TLS_CERTIFICATE_FILE"] == "/certificates/us.pem"
    assert seen["environment"]["TAGMILL_CLICKHOUSE__PASSWORD"] == CLICKHOUSE_PASSWORD
    assert seen["environment"]["TAGMILL_CLICKHOUSE__USERNAME"] == "reader"
    assert '"--start-spark"' not in seen["files"]["@"].splitlines()
    assert seen["environment"]["TAGMILL_CASSANDRA__USERNAME"] == "tagmill"
    assert seen["environment"]["TAGMILL_CASSANDRA__TLS"] == "true"
    assert seen["environment"]["TAGMILL_CASSANDRA__TLS_CA_FILE"] == str(tmp_path / "authority" / "ca.pem")
    shown = [*seen["arguments"], caplog.text, *capfd.readouterr(), json.dumps(result)]
    shown += [repr(getattr(spark_submit.operator, field)) for field in spark_submit.operator.template_fields]
    assert not [text for text in shown if PASSWORD in text or "s3cr3t" in text]


def test_long_run_ids_have_reports_of_their_own(spark_submit):
    """Run ids may have 250 characters, a file's name 255 bytes; those that differ only at their end stay apart."""
    from tagmill.config.settings import Settings

    for run_id in ("x" * 249 + "a", "x" * 249 + "b", "x" * 249 + "é"):
        spark_submit(run_id=run_id)
    assert len(list(Path(Settings.load().storage.root).rglob("seal-xxx*.json"))) == 3


def test_job_loads_settings_from_environment(spark_submit, monkeypatch, tmp_path):
    """Settings loaded from the job's environment hold the connection's user, password and TLS."""
    spark_submit()
    for name, value in spark_submit.seen()["environment"].items():
        if name.startswith("TAGMILL_"):
            monkeypatch.setenv(name, value)
    from tagmill.config.settings import Settings

    cassandra = Settings.load().cassandra
    assert cassandra.password.get_secret_value() == PASSWORD
    assert (cassandra.username, cassandra.tls) == ("tagmill", True)
    assert cassandra.tls_ca_file == tmp_path / "authority" / "ca.pem"


def test_airflows_own_secrets_do_not_reach_the_job(spark_submit):
    spark_submit()
    assert not [
        name for name in spark_submit.seen()["environment"] if name.startswith(("AIRFLOW__", "AIRFLOW_CONN_"))
    ]


@pytest.mark.parametrize(
    ("master", "prefix"),
    [("yarn", "spark.yarn.appMasterEnv"), ("k8s://https://cluster:6443", "spark.kubernetes.driverEnv")],
)
def test_cluster_driver_gets_credentials_by_private_file(spark_submit, master, prefix, monkeypatch):
    """Drivers in a cluster get the credentials by a properties file of mode 600, which is removed
    afterwards.
    """
    if master.startswith("k8s"):
        pytest.importorskip("kubernetes")
    spark_submit(master, "cluster")
    seen = spark_submit.seen()
    assert seen["modes"] == {"--properties-file": 0o600, "@": 0o600}
    assert '"--start-spark"' in seen["files"]["@"].splitlines()
    assert not [text for text in seen["arguments"] if "s3cr3t" in text]
    lines = (line.partition("=") for line in seen["files"]["--properties-file"].splitlines())
    given = {key: value.encode().decode("unicode_escape") for key, _, value in lines}
    assert given[f"{prefix}.TAGMILL_CASSANDRA__PASSWORD"] == PASSWORD
    assert given[STORAGE_KEY] == STORAGE_SECRET
    assert not Path(seen["arguments"][seen["arguments"].index("--properties-file") + 1]).exists()


def test_the_connection_decides_where_spark_runs(spark_submit):
    spark_submit("spark://master:7077")
    arguments = spark_submit.seen()["arguments"]
    assert arguments[arguments.index("--master") + 1] == "spark://master:7077"
    assert not [text for text in arguments if text.startswith(("spark.master=", "spark.driver.host="))]


def test_a_local_driver_listens_on_this_machine_only(spark_submit):
    spark_submit("local[2]")
    assert "spark.driver.bindAddress=127.0.0.1" in spark_submit.seen()["arguments"]


def test_without_a_connection_the_configurations_master_holds(spark_submit, monkeypatch):
    from tagmill.airflow import connections

    monkeypatch.setattr(connections, "find", lambda conn_id: None)
    with pytest.raises(AirflowException):
        monkeypatch.setenv("SPY_EXIT", "1")
        monkeypatch.setenv("SPY_REPORT", "")
        spark_submit("spark://not-this:7077")
    arguments = spark_submit.seen()["arguments"]
    assert arguments[arguments.index("--master") + 1] == "local[2]"


def test_sealed_run_starts_no_spark(spark_submit):
    """Runs that are sealed already need no Spark job."""
    assert "SEALED already" in spark_submit(state="SEALED")["message"]
    assert not spark_submit.started()


def test_job_report_outranks_exit_status(spark_submit, monkeypatch):
    """Reports of the job decide how the task ends, not the exit status of spark-submit."""
    stopped = {"ok": False, "exit_code": 3, "error_type": "DataQualityStop", "error": "12 % held"}
    monkeypatch.setenv(
        "SPY_REPORT",
        json.dumps(
            stopped
            | {
                "docs": os.environ["TAGMILL_CONFIG"].replace(
                    "tagmill.toml", "data/orders/docs/run-00000007/index.html"
                )
            }
        ),
    )
    monkeypatch.setenv("SPY_EXIT", "3")
    with pytest.raises(
        AirflowFailException, match=r"12 % held\nData Docs: .*/tagmill/docs/orders/run-00000007/index.html"
    ):
        spark_submit()


def test_a_job_that_was_killed_is_tried_again(spark_submit, monkeypatch):
    """Jobs that were killed fail with a plain AirflowException, which Airflow retries."""
    monkeypatch.setenv("SPY_REPORT", "")
    monkeypatch.setenv("SPY_EXIT", "137")
    with pytest.raises(AirflowException, match="died without a report") as told:
        spark_submit()
    assert type(told.value) is AirflowException


def test_report_of_earlier_attempt_is_ignored(spark_submit, monkeypatch):
    """Attempts without a report of their own have died, even if an earlier attempt left a report."""
    spark_submit()
    monkeypatch.setenv("SPY_REPORT", "")
    with pytest.raises(AirflowException) as told:
        spark_submit()
    assert type(told.value) is AirflowException


def test_spark_submit_has_own_process_group(spark_submit):
    """Spark runs in its own process group, so that it can be stopped as a whole."""
    spark_submit()
    assert spark_submit.seen()["group"]


def test_arguments_of_any_size_go_by_file(spark_submit, tmp_path):
    """Command lines take at most 128 KiB per argument, and show every user what a person named."""
    from spark_jobs import operation

    names = [f'odd {number} \n"ü" {"x" * 200}' for number in range(5000)]
    parameters = json.dumps({"persistence_ids": names})
    spark_submit(more=["--operation", "views rebuild", "--parameters", parameters])
    seen = spark_submit.seen()
    assert sum(map(len, seen["arguments"])) < 10_000 and not [
        text for text in seen["arguments"] if "odd" in text
    ]
    assert seen["modes"] == {"@": 0o600} and not list(tmp_path.rglob("*.arguments"))
    file = tmp_path / "again"
    file.write_text(seen["files"]["@"])
    parsed = operation.parse([f"@{file}"])
    assert parsed.parameters == {"persistence_ids": names} and parsed.pipeline == "orders"


def test_error_of_job_is_the_last_word(spark_submit, monkeypatch):
    """End the traceback with the job's own sentence. The task's link leads to the page that shows why."""
    page = os.environ["TAGMILL_CONFIG"].replace("tagmill.toml", "data/orders/docs/run-00000007/index.html")
    stopped = {
        "ok": False,
        "exit_code": 3,
        "error_type": "DataQualityStop",
        "error": "12 % held",
        "docs": page,
    }
    monkeypatch.setenv("SPY_REPORT", json.dumps(stopped))
    monkeypatch.setenv("SPY_EXIT", "3")
    with pytest.raises(AirflowFailException) as raised:
        spark_submit()
    shown = traceback.format_exception(raised.value)
    assert "Cannot execute" not in "".join(shown) and "12 % held" in shown[-1]
    (link,) = spark_submit.operator.operator_extra_links
    assert link.get_link(spark_submit.operator, ti_key=None).endswith(
        "/tagmill/docs/orders/run-00000007/index.html"
    )


def test_misspelt_connection_key_is_an_error(config, monkeypatch):
    """Misspelt keys of a connection are errors: `tsl` must not mean a connection without TLS."""
    from tagmill.airflow.connections import load_settings
    from tagmill.errors import ConfigurationError

    monkeypatch.setenv(
        "AIRFLOW_CONN_TAGMILL_CASSANDRA", json.dumps({"conn_type": "generic", "extra": {"tsl": True}})
    )
    with pytest.raises(ConfigurationError, match="tagmill_cassandra: tsl"):
        load_settings()


def test_credentials_without_a_connection_come_from_the_environment(config, monkeypatch):
    from tagmill.airflow.connections import load_settings

    monkeypatch.setenv("TAGMILL_CLICKHOUSE__USERNAME", "from the environment")
    assert load_settings().clickhouse.username == "from the environment"


def test_kafka_credentials_reach_only_kafka_jobs(spark_submit, monkeypatch, tmp_path):
    """Kafka's credentials are in the environment of jobs that read Kafka, and of no others."""
    from tagmill.airflow import connections
    from tagmill.airflow.operators import OperationJob
    from tagmill.operations.kafka_journal import REPLICATE

    connection = {"conn_type": "generic", "login": "reader", "password": PASSWORD, "extra": {"tls": True}}
    monkeypatch.setenv("AIRFLOW_CONN_TAGMILL_KAFKA", json.dumps(connection))
    spark_submit()
    assert not [name for name in spark_submit.seen()["environment"] if name.startswith("TAGMILL_KAFKA__")]
    job = OperationJob(task_id="replicate", pipeline="carts", operation=REPLICATE, jobs=tmp_path)
    job.set_arguments(REPLICATE, {"dry_run": False})
    found = connections.spark_environment(connections.load_settings(), *job.stores)
    assert found["TAGMILL_KAFKA__PASSWORD"] == PASSWORD and found["TAGMILL_KAFKA__USERNAME"] == "reader"
    assert found["TAGMILL_KAFKA__TLS"] == "true" and found["TAGMILL_CASSANDRA__PASSWORD"] == PASSWORD


def test_jobs_run_in_the_configured_environment(spark_submit, config, tmp_path):
    """The environment of `[spark]` comes first: its spark-submit, its Python, and no packages of Airflow's."""
    home = tmp_path / "jobs" / "lib" / "python3.11" / "site-packages" / "pyspark"
    home.mkdir(parents=True)
    text = config.read_text()
    config.write_text(text + '[spark]\nenvironment = "jobs"\n')
    with pytest.raises(AirflowFailException, match="jobs has no PySpark. Nothing was started"):
        spark_submit()
    (tmp_path / "bin").rename(tmp_path / "jobs" / "bin")
    spark_submit()
    environment = spark_submit.seen()["environment"]
    assert environment["SPARK_HOME"] == str(home) and environment["PYTHONPATH"] == ""
    assert environment["PYSPARK_PYTHON"] == str(tmp_path / "jobs" / "bin" / "python")


def test_jobs_run_in_the_default_environment(spark_submit, monkeypatch, tmp_path):
    """Without a key, the environment on the default place comes first if it has PySpark, else PATH decides."""
    from tagmill.spark import job_environment

    default = tmp_path / "default"
    monkeypatch.setattr(job_environment, "DEFAULT", default)
    spark_submit()
    assert "PYSPARK_PYTHON" not in spark_submit.seen()["environment"]
    (default / "lib" / "python3.11" / "site-packages" / "pyspark").mkdir(parents=True)
    (tmp_path / "bin").rename(default / "bin")
    spark_submit()
    assert spark_submit.seen()["environment"]["PYSPARK_PYTHON"] == str(default / "bin" / "python")


@pytest.fixture
def jobs(spark_submit, config, tmp_path):
    """Configure an environment for jobs, whose Python records what it is given, like its spark-submit."""
    (tmp_path / "jobs" / "lib" / "python3.11" / "site-packages" / "pyspark").mkdir(parents=True)
    (tmp_path / "bin").rename(tmp_path / "jobs" / "bin")
    python = tmp_path / "jobs" / "bin" / "python"
    python.write_text(f"#!{sys.executable}\n{SPY}")
    python.chmod(0o755)
    config.write_text(f'{config.read_text()}[spark]\nenvironment = "jobs"\n')
    return config


def test_run_of_few_rows_starts_no_submit(jobs, spark_submit):
    """The job's Python starts the script; it gets the secrets and, for pyspark, the options of spark-submit."""
    assert spark_submit("spark://master:7077", few_rows=True)["rows"] == 3
    seen = spark_submit.seen()
    assert seen["arguments"][0] == "seal.py" and seen["arguments"][1].startswith("@")
    assert seen["group"] and seen["modes"] == {"@": 0o600}
    assert seen["environment"]["TAGMILL_CASSANDRA__PASSWORD"] == PASSWORD
    options = shlex.split(seen["environment"]["PYSPARK_SUBMIT_ARGS"])
    assert options[:2] == ["--master", "spark://master:7077"] and options[-1] == "pyspark-shell"
    assert "spark.sql.session.timeZone=UTC" in options and "seal.py" not in options
    assert not [text for text in options if "s3cr3t" in text]


@pytest.mark.parametrize(
    ("few_rows", "deploy_mode", "conf"),
    [
        (False, "client", ""),
        (True, "cluster", ""),
        (True, "client", '[spark.conf]\n"spark.pyspark.python" = "/usr/bin/python3"\n'),
    ],
    ids=["more rows", "driver on a cluster", "another Python"],
)
def test_other_runs_start_by_submit(jobs, spark_submit, few_rows, deploy_mode, conf):
    jobs.write_text(jobs.read_text() + conf)
    spark_submit("yarn", deploy_mode, few_rows=few_rows)
    seen = spark_submit.seen()
    assert "--master" in seen["arguments"] and "PYSPARK_SUBMIT_ARGS" not in seen["environment"]


def test_job_of_few_rows_that_dies_is_retried(jobs, spark_submit, monkeypatch):
    monkeypatch.setenv("SPY_REPORT", "")
    monkeypatch.setenv("SPY_EXIT", "137")
    with pytest.raises(AirflowException, match="died without a report"):
        spark_submit(few_rows=True)


@pytest.fixture
def operation_job(jobs, spark_submit, monkeypatch, tmp_path):
    """Return a function that runs a build as a job, with answers of its own about its rows, and returns what was
    started.
    """
    from dataclasses import replace

    from tagmill.airflow.operators import OperationJob
    from tagmill.operations.views import BUILD

    def run(**answers):
        said = {name: lambda settings, pipeline, answer=answer: answer for name, answer in answers.items()}
        operation = replace(BUILD, **said)
        monkeypatch.setenv("AIRFLOW_CONN_TAGMILL_SPARK", '{"conn_type": "spark", "host": "local[2]"}')
        more = {"operation": operation, "jobs": tmp_path, "conn_id": "tagmill_spark"}
        job = OperationJob(task_id="build", pipeline="payments", **more)
        context = {
            "dag_run": SimpleNamespace(dag_id="deliver_payments", run_id="manual__1"),
            "ti": SimpleNamespace(try_number=1),
            "params": {},
        }
        job.execute(context)
        return spark_submit.seen()

    return run


@pytest.mark.parametrize("needs", [True, False])
def test_operation_that_needs_no_spark_starts_no_submit(operation_job, needs):
    seen = operation_job(has_few_rows=True, needs_no_spark=not needs)
    assert ("--master" in seen["arguments"]) is needs
    assert ("PYSPARK_SUBMIT_ARGS" in seen["environment"]) is not needs


@pytest.mark.parametrize("few", [True, False])
def test_operation_of_few_rows_gets_fast_jvm(operation_job, few):
    """The operator counts before the JVM starts, and tells spark-submit and the job."""
    seen = operation_job(has_few_rows=few)
    assert ("spark.sql.codegen.wholeStage=false" in seen["arguments"]) is few
    assert ("TieredStopAtLevel" in str(seen["arguments"])) is few
    assert ('"--few-rows"' in seen["files"]["@"].splitlines()) is few
