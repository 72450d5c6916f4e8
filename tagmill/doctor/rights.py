"""Ask Cassandra for rights without reading or writing a row.

A statement whose key is null is judged by the server in this order: the user's rights, then the null, which is
invalid. So the error says whether the right is there, and nothing is done in either case.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cassandra import DriverException, InvalidRequest, Unauthorized
from cassandra.query import SimpleStatement

from tagmill.cassandra.client import Cassandra
from tagmill.cassandra.permissions import missing_right
from tagmill.cassandra.schema import Keyspace
from tagmill.doctor.model import Finding, fine, not_checked, said_of, wrong
from tagmill.domain import identifiers

VERBS = {"SELECT": "SELECT *", "MODIFY": "DELETE"}
# Tables that a finding names; a keyspace's ledger has some fifty.
NAMED = 3


@dataclass(frozen=True, slots=True)
class Wanted:
    """A right on a table that exists."""

    right: str
    keyspace: str
    table: str


def _probe(wanted: Wanted, key: Iterable[str]) -> str:
    table = identifiers.cql_table(wanted.keyspace, wanted.table)
    where = " AND ".join(f"{identifiers.cql(column)} = null" for column in key)
    return f"{VERBS[wanted.right]} FROM {table} WHERE {where}"


def ask(
    cassandra: Cassandra, keyspaces: Mapping[str, Keyspace], check: str, rights: Collection[Wanted]
) -> Finding:
    """Return the finding for rights on tables that exist in these keyspaces."""
    seconds = cassandra.settings.connect_timeout_seconds
    asked: list[tuple[Wanted, Any]] = []
    for wanted in rights:
        key = keyspaces[wanted.keyspace].tables[wanted.table].partition_key
        statement = SimpleStatement(_probe(wanted, key))
        asked.append((wanted, cassandra.session.execute_async(statement, timeout=seconds)))
    missing: dict[str, list[Wanted]] = defaultdict(list)
    user = ""
    for wanted, answer in asked:
        try:
            answer.result()
        except Unauthorized as error:
            named = missing_right(str(error))
            user = named.user if named else user
            missing[wanted.right].append(wanted)
        except InvalidRequest:
            continue
        except DriverException as error:
            return not_checked(check, f"{cassandra.where} did not answer: {said_of(error)}")
    if not missing:
        return fine(check, _listed(rights))
    said = "; ".join(f"no {right} on {_named(tables)}" for right, tables in missing.items())
    cure = "; ".join(
        grant for right, tables in missing.items() for grant in _grants(right, tables, rights, user)
    )
    return wrong(check, f"user {user} has {said}", cure)


def may_create_keyspaces(cassandra: Cassandra) -> str:
    """Return the statement that grants the right to create keyspaces; "" if the user has it.

    The keyspace `system` exists, and nobody may create or change it.
    """
    text = (
        "CREATE KEYSPACE IF NOT EXISTS system WITH replication = "
        "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    )
    return _grant_for(cassandra, text, "ALL KEYSPACES")


def may_create_tables(cassandra: Cassandra, keyspace: str, existing: str) -> str:
    """Return the statement that grants the right to create tables in a keyspace; "" if the user has it.

    `existing`: a table that exists, so that nothing is created.
    """
    text = f"CREATE TABLE IF NOT EXISTS {identifiers.cql_table(keyspace, existing)} (k text PRIMARY KEY)"
    return _grant_for(cassandra, text, f"KEYSPACE {identifiers.cql(keyspace)}")


def _grant_for(cassandra: Cassandra, text: str, resource: str) -> str:
    """Send a statement that changes nothing; return what grants CREATE on a resource, "" if it is granted."""
    try:
        cassandra.session.execute(SimpleStatement(text), timeout=cassandra.settings.connect_timeout_seconds)
    except Unauthorized as error:
        named = missing_right(str(error))
        return f'GRANT CREATE ON {resource} TO "{named.user if named else "…"}"'
    except DriverException:
        return ""
    return ""


def _grants(right: str, missing: list[Wanted], rights: Collection[Wanted], user: str) -> list[str]:
    """Return statements that grant the missing: for a keyspace if all its tables lack the right."""
    by_keyspace: Mapping[str, list[Wanted]] = defaultdict(list)
    for wanted in missing:
        by_keyspace[wanted.keyspace].append(wanted)
    done = []
    for keyspace, tables in by_keyspace.items():
        all_of = [one for one in rights if (one.keyspace, one.right) == (keyspace, right)]
        if len(tables) == len(all_of) > 1:
            done.append(f'GRANT {right} ON KEYSPACE {identifiers.cql(keyspace)} TO "{user}"')
        else:
            done += [
                f'GRANT {right} ON {identifiers.cql_table(keyspace, one.table)} TO "{user}"' for one in tables
            ]
    return done


def _named(tables: list[Wanted]) -> str:
    names = ", ".join(f"{one.keyspace}.{one.table}" for one in tables[:NAMED])
    return f"{len(tables)} tables ({names}, …)" if len(tables) > NAMED else names


def _listed(rights: Collection[Wanted]) -> str:
    counts: dict[str, int] = defaultdict(int)
    for wanted in rights:
        counts[wanted.right] += 1
    return ", ".join(f"{right} on {count} tables" for right, count in counts.items())
