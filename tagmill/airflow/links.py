"""Links of a task in Airflow's UI: to the report's page of its job, or to Tagmill's page if the job wrote
none.
"""

from airflow.sdk import BaseOperatorLink
from airflow.sdk.bases.operator import BaseOperator

from tagmill.airflow.compat import TaskInstanceKey
from tagmill.airflow.pages import PREFIX, base_url


class ReportLink(BaseOperatorLink):
    """Leads to the page of the run's quality gate or audit."""

    name = "Tagmill report"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the address that the job's report names; Airflow asks once, at the end of the task."""
        return getattr(operator, "report_page", None) or f"{base_url()}{PREFIX}/"
