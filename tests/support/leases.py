"""Free the lease of a pipeline: one that names this living process counts as held, as by a step that was never ended."""

from typing import Any


def free_lease(session: Any, pipeline: str, ledger: str = "tagmill_test") -> None:
    """Delete a pipeline's lease from a ledger, as if the process that holds it had died."""
    session.execute(f"DELETE FROM {ledger}.leases WHERE pipeline = %s", (pipeline,))
