"""Folders of files that belong to the package: tables (`schema`) and Spark job scripts (`spark_jobs`).

A wheel has them inside of the package. In a checkout, which an editable installation uses, they are next to it.
"""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def package_folder(name: str) -> Path:
    """Return the folder of this name, `schema` or `spark_jobs`."""
    inside = PACKAGE / name
    return inside if inside.is_dir() else PACKAGE.parent / name
