"""What Airflow's list of providers shows of this package, by the entry point `apache_airflow_provider`."""

from typing import Any

import tagmill


def get_provider_info() -> dict[str, Any]:
    """Return the package's name, its description, and the links that its operators have in Airflow's UI.

    There are no connection types: Tagmill reads those of the stores' own providers.
    """
    return {
        "package-name": "tagmill",
        "name": "Tagmill",
        "description": str(tagmill.__doc__),
        "versions": [tagmill.__version__],
        "extra-links": ["tagmill.airflow.links.ReportLink"],
    }
