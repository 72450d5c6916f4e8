"""Pages in Airflow's UI: none without a login, none outside of the folder of pages, and no name becomes
markup.
"""

from datetime import UTC, datetime
from pathlib import Path

import pytest

pytest.importorskip("airflow")

HOSTILE = "<script>alert('x')</script>\"&"


@pytest.fixture
def app(config, monkeypatch):
    monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "0123456789" * 8)
    from tagmill.airflow import web

    return web.create_app()


@pytest.fixture
def stranger(app):
    from starlette.testclient import TestClient

    return TestClient(app, raise_server_exceptions=False)


@pytest.fixture
def user(app, stranger):
    from airflow.api_fastapi.core_api.security import get_user

    app.dependency_overrides[get_user] = lambda: "a user"
    return stranger


@pytest.fixture
def pages(config) -> Path:
    """Write a page of run 7 of orders and files that must not be served; return the run's folder."""
    folder = config.parent / "data" / "orders" / "docs" / "run-00000007"
    folder.mkdir(parents=True)
    (folder / "index.html").write_text("the page")
    (folder / "verdict.json").write_text("{}")
    (folder / "outside.html").symlink_to(config)
    (config.parent / "data" / "orders" / "secret.html").write_text("secret")
    (config.parent / "secret.html").write_text("secret")
    return folder


@pytest.mark.parametrize(
    "path", ["/", "/api/pipelines", "/docs/orders/run-00000007/index.html", "/docs/nope/x.html"]
)
def test_nothing_is_shown_without_a_login(stranger, pages, path):
    answer = stranger.get(path)
    assert answer.status_code == 401
    assert "the page" not in answer.text


def test_a_strangers_browser_is_sent_to_the_login(stranger, pages):
    path = "/docs/orders/run-00000007/index.html"
    answer = stranger.get(path, headers={"Accept": "text/html,*/*;q=0.8"}, follow_redirects=False)
    assert answer.status_code == 302
    assert answer.headers["Location"].endswith(f"/api/v2/auth/login?next={path}")


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/openapi.json"])
def test_the_frameworks_own_pages_are_off(user, path):
    assert user.get(path).status_code == 404


def test_every_route_asks_for_the_login(app):
    from airflow.api_fastapi.core_api.security import get_user

    for route in app.routes:
        assert get_user in [dependency.call for dependency in route.dependant.dependencies], route.path


def test_docs_page_is_served_without_scripts(user, pages):
    """Pages of runs are served with a policy that allows no script."""
    answer = user.get("/docs/orders/run-00000007/index.html")
    assert (answer.status_code, answer.text) == (200, "the page")
    assert "script-src" not in answer.headers["Content-Security-Policy"]
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")


@pytest.mark.parametrize(
    "path",
    [
        "orders/../secret.html",
        "orders/%2e%2e/secret.html",
        "orders/..%2fsecret.html",
        "orders/run-00000007/%2e%2e%2f%2e%2e%2fsecret.html",
        "orders//etc/passwd.html",
        "orders/%2fetc%2fhosts.html",
        "orders/run-00000007/outside.html",
        "orders/run-00000007/verdict.json",
        "orders/run-00000007/index.html%00.html",
        "orders/run-00000007\\..\\..\\secret.html",
        "orders/run-00000007/missing.html",
        "orders/run-00000007",
        "payments/run-00000007/index.html",
        "unknown/run-00000007/index.html",
        "../secret.html",
        "%2e%2e/secret.html",
    ],
)
def test_nothing_but_pages_of_runs_is_served(user, pages, path):
    answer = user.get(f"/docs/{path}")
    assert answer.status_code == 404
    assert "secret" not in answer.text


def test_names_of_applications_never_become_markup(user, monkeypatch):
    from tagmill.airflow import overview, web

    now = datetime(2026, 11, 21, 7, tzinfo=UTC)
    line = overview.TagLine(HOSTILE, 5, 4321, 5, 1, 1, 5, HOSTILE, "held")
    run = overview.RunLine(
        7, "SEALED", HOSTILE, HOSTILE, 2, 1, 5, now, None, "docs/orders/run-00000007/index.html"
    )
    audit = overview.AuditLine(3, (HOSTILE,), now, False, HOSTILE, "docs/orders/audit-00000003/index.html")
    view = overview.PipelineView("orders", "deliver_orders", HOSTILE, (line,), (run,), (audit,))
    monkeypatch.setattr(web, "overview", lambda settings, count_view: [view])
    answer = user.get("/")
    assert answer.status_code == 200
    assert "<script>" not in answer.text
    assert answer.text.count("&lt;script&gt;") == 7
    assert '<td class="number">4321</td>' in answer.text
    assert 'href="docs/orders/run-00000007/index.html"' in answer.text
    assert 'href="docs/orders/audit-00000003/index.html"' in answer.text
    assert user.get("/api/pipelines").json()[0]["tags"][0]["tag"] == HOSTILE


def test_overview_shows_streams_and_problems(user, monkeypatch):
    """Topics and Kafka journals are shown with their figures, or with the problem that prevents it.

    Hostile names are escaped.
    """
    from tagmill.airflow import overview, web
    from tagmill.kafka_journal.model import PartitionStatus

    lag = PartitionStatus(
        topic=HOSTILE, partition=0, replicated_to=None, first=0, end=77, waiting=76, problem="made anew"
    )
    views = [
        overview.PipelineView(
            "products",
            "deliver_products",
            "x",
            stream=overview.StreamLine(11, 12, 13, 14, 15, HOSTILE, "waiting"),
        ),
        overview.PipelineView("carts", "replicate_carts", "keyspace carts", partitions=(lag,)),
        overview.PipelineView("gone", "deliver_gone", "y", problem=HOSTILE),
    ]
    monkeypatch.setattr(web, "overview", lambda settings, count_view: views)
    text = user.get("/").text
    assert "<script>" not in text and text.count("&lt;script&gt;") == 3
    assert all(f'<td class="number">{number}</td>' in text for number in (11, 12, 13, 14, 15, 77))
    assert '<td class="number open">76</td>' in text and '<td class="bad">made anew</td>' in text
    assert text.count("no run yet") == 2 and "Not audited" not in text


def test_overview_without_ledger_is_one_line(user, monkeypatch):
    """Ledgers that do not answer give status 503 and one escaped line without a traceback."""
    from tagmill.airflow import web
    from tagmill.errors import StoreUnavailable

    def down(settings, count_view):
        raise StoreUnavailable("Cassandra <b>does not answer</b>")

    monkeypatch.setattr(web, "overview", down)
    answer = user.get("/")
    assert answer.status_code == 503
    assert "Cassandra &lt;b&gt;does not answer" in answer.text
    assert user.get("/api/pipelines").json() == {"detail": "Cassandra <b>does not answer</b>"}


def test_plugin_loads_web_only_where_served(config):
    """Registering the plugin loads no web framework in a process that serves no pages."""
    import subprocess
    import sys

    code = "import sys; from tagmill.airflow.plugin import TagmillPlugin; print('tagmill.airflow.web' in sys.modules)"
    shown = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert shown.stdout.split()[-1] == "False"


@pytest.mark.parametrize(
    ("page", "link"),
    [
        (
            "{root}/orders/docs/run-00000007/index.html",
            "http://localhost:8080/tagmill/docs/orders/run-00000007/index.html",
        ),
        (
            "file://{root}/orders/docs/run-00000007/index.html",
            "http://localhost:8080/tagmill/docs/orders/run-00000007/index.html",
        ),
        ("/elsewhere/index.html", "/elsewhere/index.html"),
        ("https://docs.example/x", "https://docs.example/x"),
        ("{root}/orders/run-00000007/x.html", "{root}/orders/run-00000007/x.html"),
    ],
)
def test_docs_link_leads_behind_login(config, monkeypatch, page, link):
    """Links to pages of runs lead to the page in Airflow's UI, behind its login; other texts stay
    unchanged.
    """
    from tagmill.airflow import pages
    from tagmill.config.settings import Settings

    monkeypatch.setattr(pages, "base_url", lambda: "http://localhost:8080")
    root = config.parent / "data"
    assert pages.docs_link(Settings.load(), page.format(root=root)) == link.format(root=root)


def test_error_of_pipeline_leaves_the_others(user, monkeypatch):
    """Show any error of one pipeline as that pipeline's line, not as the page's end."""
    from contextlib import nullcontext

    from tagmill.airflow import overview
    from tagmill.kafka_journal import status

    def failing(error):
        def fail(*_, **__):
            raise error

        return fail

    def runs(workspace):
        if workspace.name == "orders":
            raise PermissionError(13, "Permission denied", "/data/orders/docs")
        return iter(())

    monkeypatch.setattr(overview, "Ledger", nullcontext)
    monkeypatch.setattr(overview, "_runs", runs)
    monkeypatch.setattr(overview, "_audits", lambda *_: ())
    monkeypatch.setattr(overview, "tag_table", lambda *_, **__: [])
    monkeypatch.setattr(overview, "topic_line", failing(KeyError("rows")))
    monkeypatch.setattr(status, "replication_line", failing(OSError("the socket was closed")))
    answer = user.get("/api/pipelines")
    problems = {view["name"]: view["problem"] for view in answer.json()}
    assert answer.status_code == 200
    assert problems["orders"].startswith("/data/orders/docs: Permission denied") and not problems["payments"]
    assert problems["products"].startswith("unexpected KeyError: 'rows'")
    assert problems["carts"].startswith("unexpected OSError: the socket was closed")
