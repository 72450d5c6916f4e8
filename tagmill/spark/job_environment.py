"""Find the Python environment in which Airflow's workers run Spark jobs."""

import os
from pathlib import Path

from tagmill.errors import ConfigurationError

# The folder where it is, unless `[spark] environment` names another one.
DEFAULT = Path("/opt/tagmill")
# The variable with the options by which pyspark starts spark-submit, if a job without a JVM asks for a session.
SUBMIT_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"


def find(named: Path | None) -> Path | None:
    """Return the environment's folder; None: the first `spark-submit` on PATH decides.

    Args:
        named: the configured folder. Left out: the default one counts if it has PySpark.

    Raises ConfigurationError if the configured one has none.
    """
    if pyspark_of(named or DEFAULT) is not None:
        return named or DEFAULT
    if named is None:
        return None
    raise ConfigurationError(
        f"spark.environment: {named} has no PySpark. Nothing was started. Install tagmill[spark] there"
    )


def is_decided() -> bool:
    """Return whether spark-submit has decided this process's master, or will by the options in its environment."""
    named = "--master" in os.environ.get(SUBMIT_ARGUMENTS, "").split()
    return named or "SPARK_ENV_LOADED" in os.environ  # set by spark-submit's launcher


def pyspark_of(folder: Path) -> Path | None:
    """Return the folder of the package pyspark in an environment, or None."""
    homes = sorted(folder.glob("lib/python3*/site-packages/pyspark"))
    return homes[-1] if homes and (folder / "bin" / "spark-submit").is_file() else None


def variables(named: Path | None) -> dict[str, str]:
    """Return the variables with which `spark-submit` runs in that environment; none where PATH decides.

    `named`: the configured folder. Raises ConfigurationError if it has no PySpark.
    """
    folder = find(named)
    if folder is None:
        return {}
    python = str(folder / "bin" / "python")
    return {
        "PATH": os.pathsep.join([str(folder / "bin"), os.environ.get("PATH", os.defpath)]),
        "PYSPARK_DRIVER_PYTHON": python,
        "PYSPARK_PYTHON": python,
        "PYTHONPATH": "",
        "SPARK_HOME": str(pyspark_of(folder)),
    }
