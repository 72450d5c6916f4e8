"""Callbacks of [airflow]: notifiers of providers, by name and by import path, and deadlines."""

import asyncio
import sys
from datetime import timedelta

import pytest

pytest.importorskip("airflow")

from tagmill.airflow.callbacks import deadline_missed
from tagmill.errors import ConfigurationError
from tests.dags.test_integrity import bag
from tests.support.airflow_names import DagSerialization
from tests.support.mail import mail_server

MAIL = '{ notifier = "smtp", to = "team@example.org", subject = "{{ dag_run.dag_id }} is late", html_content = "." }'
CONTEXT = {"dag_run": {"dag_id": "deliver_orders", "dag_run_id": "r-1"}, "deadline": {}}


@pytest.fixture
def airflow_section(config, tmp_path, monkeypatch):
    """Return write(text), which gives the configuration a section [airflow] with these keys."""
    (tmp_path / "our_calls.py").write_text(
        "called = []\n\n\ndef tell(context):\n    called.append(context)\n\n\n"
        "def fail(context):\n    raise ValueError('no line')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "our_calls", raising=False)

    def write(text: str) -> None:
        config.write_text(f"{config.read_text()}\n[airflow]\n{text}\n")

    return write


@pytest.fixture
def mails(monkeypatch):
    """Yield the mails that arrive by Airflow's connection smtp_default."""
    with mail_server() as (connection, arrived):
        monkeypatch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", connection)
        yield arrived


@pytest.mark.parametrize(
    "name", ["smtp", "airflow.providers.smtp.notifications.smtp:SmtpNotifier"], ids=["name", "path"]
)
def test_notifier_sends_filled_in_arguments(airflow_section, mails, name):
    """Send a mail by a provider's notifier, whose arguments Airflow fills in, when a task fails."""
    airflow_section(f'on_failure = ["our_calls:tell", {MAIL.replace(chr(34) + "smtp", chr(34) + name)}]')
    loaded = bag()
    assert loaded.import_errors == {}
    for dag in loaded.dags.values():
        assert all(len(task.on_failure_callback) == 2 for task in dag.tasks)
    for callback in loaded.dags["deliver_orders"].task_dict["push"].on_failure_callback:
        callback(dict(CONTEXT))
    (mail,) = mails
    assert "To: team@example.org" in mail and "deliver_orders is late" in mail


@pytest.mark.parametrize("key", ["on_failure", "on_deadline"])
def test_notifier_not_installed_is_a_warning(airflow_section, key):
    """Load all DAGs although a provider is missing; the import's warnings and the DAG's page name it, and its cure."""
    airflow_section(f'deadline_seconds = 60\n{key} = ["our_calls:tell", {{ notifier = "pagerduty" }}]')
    loaded = bag()
    warned = [text for texts in loaded.captured_warnings.values() for text in texts]
    said = f"UserWarning: airflow.{key}: no installed provider has the notifier pagerduty (installed: smtp)"
    assert any(said in text for text in warned), warned
    assert loaded.import_errors == {} and len(loaded.dags) > 10
    dag = loaded.dags["deliver_orders"]
    assert dag.doc_md.startswith(
        f"**Warning:** airflow.{key}: no installed provider has the notifier pagerduty"
    )
    assert "install the provider" in dag.doc_md
    if key == "on_failure":
        assert len(dag.task_dict["push"].on_failure_callback) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('on_failure = [{ notifier = "smtp", tos = "x" }]', "airflow.on_failure: notifier smtp: "),
        ('on_failure = [{ notifier = "nowhere:Notifier" }]', "airflow.on_failure: nowhere:Notifier can't be"),
        (
            'deadline_seconds = 9\non_deadline = ["our_calls:no"]',
            "airflow.on_deadline: our_calls:no can't be",
        ),
        ('on_failure = [{ notifier = "a b" }]', "airflow.on_failure.0"),
        (
            'on_failure = [{ notifier = "pagerduty", integration_key = "k" }]',
            "integration_key: a secret doesn't",
        ),
    ],
    ids=["argument", "module", "deadline", "name", "secret"],
)
def test_wrong_callback_is_an_import_error(airflow_section, text, said):
    airflow_section(text)
    errors = bag().import_errors
    assert errors and all(said in error for error in errors.values()), errors


def test_deadline_is_for_scheduled_dags(airflow_section):
    """Give each DAG with a schedule a deadline, which Airflow can store and read back, and no other DAG."""
    airflow_section(f'deadline_seconds = 90\non_deadline = ["our_calls:tell", {MAIL}]')
    loaded = bag()
    assert loaded.import_errors == {}
    for dag in loaded.dags.values():
        assert bool(dag.deadline) == (dag.schedule is not None), dag.dag_id
    (alert,) = loaded.dags["deliver_orders"].deadline
    assert alert.interval == timedelta(seconds=90)
    assert alert.callback.path == "tagmill.airflow.callbacks.deadline_missed"
    stored = DagSerialization.to_dict(loaded.dags["deliver_orders"])
    (again,) = DagSerialization.from_dict(stored).deadline
    assert (
        "deadline_missed" in str(getattr(again, "callback", again))
        or again.callback.path == alert.callback.path
    )


def test_missed_deadline_calls_all_callbacks(airflow_section, mails):
    """Call functions and notifiers for a run that is late; one that fails keeps none of the others back."""
    airflow_section(f'deadline_seconds = 90\non_deadline = ["our_calls:fail", "our_calls:tell", {MAIL}]')
    (alert,) = bag().dags["deliver_orders"].deadline
    import our_calls

    with pytest.raises(ConfigurationError, match=r"on_deadline: our_calls:fail: no line$"):
        asyncio.run(deadline_missed(**alert.callback.kwargs, context=dict(CONTEXT)))
    assert [context["dag_run"] for context in our_calls.called] == [CONTEXT["dag_run"]]
    (mail,) = mails
    assert "deliver_orders is late" in mail
