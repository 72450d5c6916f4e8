"""A person's steps in Airflow's UI, in a real browser: log in, read Tagmill's page, trigger the DAG, see the
run succeed.
"""

import re
import shutil
import time
from datetime import UTC, datetime

import pytest
from playwright.sync_api import expect, sync_playwright

from tests.support.standalone import DAG

# Seconds for which the api-server keeps the warnings that it has recorded (tagmill.airflow.pools).
RECORDED_SECONDS = 2
CHROMIUM = shutil.which("chromium")
# Chromium runs as root here, and must not connect to any host outside.
OPTIONS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update"
    " --disable-sync"
).split()
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no chromium on PATH: apt-get install chromium"
)


@pytest.fixture(scope="module")
def browser(delivered, tmp_path_factory):
    """Yield a browser with its own profile at Airflow's address, without a login."""
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            tmp_path_factory.mktemp("chromium"),
            executable_path=CHROMIUM,
            args=OPTIONS,
            base_url=delivered.api.base,
        )
        context.set_default_timeout(60_000)
        expect.set_options(timeout=60_000)
        yield context
        context.close()


@pytest.fixture(scope="module")
def page(browser, delivered):
    """Return Tagmill's page, opened without a login, so that Airflow asks for one and leads back."""
    opened = browser.new_page()
    opened.goto("/tagmill/")
    opened.get_by_role("heading", name="Sign into Airflow").wait_for()
    user, password = delivered.airflow.login()
    opened.get_by_label("Username").fill(user)
    opened.get_by_label("Password").fill(password)
    opened.get_by_role("button", name="Sign in").click()
    opened.wait_for_url("**/tagmill/")
    opened.get_by_role("heading", name="Tagmill").wait_for()
    return opened


def test_dag_page_warns_of_a_missing_pool(page, delivered) -> None:
    """Read the warning of a deleted pool on the DAG's page, with the command that creates it."""
    delivered.call("DELETE", "/pools/clickhouse")
    try:
        time.sleep(RECORDED_SECONDS)
        page.goto(f"/dags/{DAG}")
        page.get_by_role("button", name=re.compile("warning", re.IGNORECASE)).click()
        page.get_by_text('airflow pools set clickhouse 1 "tagmill"').wait_for()
    finally:
        delivered.api.set_pool("clickhouse", 2, "Inserts into ClickHouse")


@pytest.fixture
def dialog(page):
    """Return the dialog that 'Trigger' opens on the DAG's page."""
    page.goto(f"/dags/{DAG}")
    page.get_by_role("button", name="Trigger Dag").click()
    opened = page.get_by_role("dialog").filter(has_text="Run Parameters")
    opened.get_by_text("deliver only these tags of the pipeline").wait_for()
    return opened


def button(dialog):
    """Return the button that triggers the run."""
    return dialog.get_by_test_id("trigger-dag-submit")


def choose_tag(page, dialog, tag):
    """Choose one tag in the dialog."""
    dialog.get_by_label("Clear selected options").click()
    dialog.get_by_role("combobox", name="Select one or multiple values").fill(tag)
    page.keyboard.press("Enter")


def choose_moment(page, dialog, label, date, time):
    """Choose date and time in a field of the dialog."""
    dialog.get_by_role("group").filter(has_text=label).get_by_test_id("datetime-input").click()
    page.get_by_placeholder("YYYY/MM/DD").fill(date)
    page.get_by_placeholder("HH:mm").fill(time)
    page.keyboard.press("Escape")
    page.get_by_placeholder("YYYY/MM/DD").wait_for(
        state="detached"
    )  # otherwise the next picker would be a second one


def write_json(page, dialog, text):
    """Write the run's params as JSON in the dialog."""
    dialog.get_by_role("button", name="Advanced Options").click()
    dialog.locator(".monaco-editor").click()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(text)
    page.keyboard.press("Control+Shift+End")  # the editor closes brackets by itself
    page.keyboard.press("Delete")


def test_the_menu_leads_to_tagmills_page(page):
    page.goto("/")
    page.get_by_role("button", name="Browse").click()
    page.get_by_role("menuitem", name="Tagmill").click()
    shown = page.frame_locator("iframe")
    for tag in ("billing", "order", "shipping"):
        row = shown.get_by_role("row").filter(has=page.get_by_role("cell", name=tag, exact=True))
        expect(row.get_by_role("cell").last).to_have_text(re.compile("^(counts agree|exactly once)"))
    shown.get_by_role("link", name="page").last.click()
    expect(shown.get_by_role("heading", name="run-00000001 passed")).to_be_visible()


def test_dialog_without_tag_disables_trigger(dialog):
    expect(button(dialog)).to_be_enabled()
    dialog.get_by_label("Clear selected options").click()
    expect(button(dialog)).to_be_disabled()


def test_dialog_wrong_tag_is_refused_with_reason(page, dialog, delivered):
    known = delivered.api.runs(DAG)
    write_json(page, dialog, '{"tags": ["nope"]}')
    button(dialog).click()
    expect(dialog).to_contain_text("Invalid input for param tags: 'nope' is not one of")
    assert delivered.api.runs(DAG) == known


def test_dialog_chosen_params_run_succeeds(page, dialog, delivered, append, stack):
    append("by-browser", "order", 5, at=datetime(2026, 11, 21, 8, 30, tzinfo=UTC))  # long past the watermark
    choose_tag(page, dialog, "order")
    choose_moment(page, dialog, "Read again from", "2026/11/21", "08:00")
    choose_moment(page, dialog, "Read again until", "2026/11/21", "09:00")
    button(dialog).click()
    page.wait_for_url(re.compile("/runs/manual__"))
    run = page.url.rpartition("/")[2]
    conf = {
        "tags": ["order"],
        "reread_from": "2026-11-21T08:00:00.000Z",
        "reread_until": "2026-11-21T09:00:00.000Z",
    }
    assert delivered.call("GET", f"/dags/{DAG}/dagRuns/{run}")["conf"] == conf
    delivered.succeed(DAG, run)
    # The run, plan, seal, push and close succeeded; no second round was needed.
    expect(page.get_by_text("Success", exact=True)).to_have_count(5)
    found = stack.rows(
        "SELECT tag, sequence_nr FROM orders WHERE persistence_id = 'by-browser' ORDER BY sequence_nr"
    )
    assert list(found) == [("order", number) for number in range(1, 6)]


FORMS = ["maintenance_orders", "maintenance_products", "maintenance_carts"]
OTHER_FORMS = [
    *("deliver_orders", "audit_orders", "cleanup_orders"),
    *("deliver_products", "cleanup_products", "expire_products", "replicate_carts", "purge_carts"),
    *("deliver_cart_events", "cleanup_cart_events"),
]


def triggered(page, delivered, dag, fill=lambda opened: None):
    """Open a DAG's form while the DAG is paused, fill it in and trigger it; return the run, which waits and is
    deleted.
    """
    paused = delivered.call("GET", f"/dags/{dag}")["is_paused"]
    delivered.api.pause(dag, True)
    page.goto(f"/dags/{dag}")
    page.get_by_role("button", name="Trigger Dag").click()
    opened = page.get_by_role("dialog")
    fill(opened)
    opened.get_by_text(f"Unpause {dag} on trigger").click()
    expect(button(opened)).to_be_enabled()
    button(opened).click()
    page.wait_for_url(re.compile("/runs/manual__"))
    run = page.url.rpartition("/")[2]
    made = delivered.call("GET", f"/dags/{dag}/dagRuns/{run}")
    delivered.call("DELETE", f"/dags/{dag}/dagRuns/{run}")
    delivered.api.pause(dag, paused)
    return made


@pytest.mark.parametrize("dag", [*FORMS, *(pytest.param(dag, marks=pytest.mark.long) for dag in OTHER_FORMS)])
def test_form_is_triggered_as_it_opens(page, delivered, dag):
    """Trigger each form with its defaults, which the browser accepts."""
    made = triggered(page, delivered, dag)
    assert made["state"] == "queued" and made["conf"].get("dry_run", True) is True


def choose(opened, operation):
    """Choose an operation, and open the section with the fields that only it has."""
    chooser = opened.locator("#element_operation").get_by_role("combobox")
    chooser.fill(f"{operation}:")
    chooser.press("Enter")
    opened.get_by_role("button", name=operation, exact=True).click()


def rebucket(opened):
    """Choose the operation `views rebucket` and the bucket size that it needs."""
    choose(opened, "views rebucket")
    opened.locator("[name=element_bucket_size]").fill("Minute")


def migrate(opened):
    """Choose the operation `views migrate` and one of its steps."""
    choose(opened, "views migrate")
    steps = opened.get_by_role("combobox", name="Select one or multiple values").first
    steps.fill("tables")
    steps.press("Enter")


@pytest.mark.long
@pytest.mark.parametrize(
    ("fill", "chosen"),
    [
        (rebucket, {"operation": "views rebucket", "bucket_size": "Minute"}),
        (migrate, {"operation": "views migrate", "steps": ["tables"]}),
    ],
    ids=["rebucket", "migrate"],
)
def test_form_with_chosen_operation_is_triggered(page, delivered, fill, chosen):
    """Choose an operation other than that with which the form opens, and its fields: a dry run waits with
    them.
    """
    made = triggered(page, delivered, "maintenance_orders", fill)
    assert made["state"] == "queued" and made["conf"]["dry_run"] is True
    assert {name: made["conf"][name] for name in chosen} == chosen


def test_steps_of_migration_are_listed(page, delivered):
    page.goto("/dags/maintenance_orders")
    page.get_by_role("button", name="Trigger Dag").click()
    opened = page.get_by_role("dialog")
    opened.get_by_role("button", name="views migrate", exact=True).click()
    opened.get_by_role("combobox", name="Select one or multiple values").first.click()
    for step in ("tables", "tags-column", "columns", "pids", "tags"):
        expect(page.get_by_role("option", name=step, exact=True)).to_be_visible()
    page.keyboard.press("Escape")
