"""Make forms and arguments of jobs from the declarations of operations (tagmill.operations).

Plain data, without Airflow. maintenance.py makes a DAG from it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tagmill.errors import ConfigurationError
from tagmill.operations.model import Operation, Parameters

Params = Mapping[str, Any]
# The formats date-time and date give the UI its date picker, but Airflow doesn't check them. These patterns
# are checked, and the first one asks for a time zone.
MOMENT = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?(Z|[+-]\d{2}:\d{2})$"
DAY = r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])$"
PATTERNS = {"date-time": MOMENT, "date": DAY}
# Persistence ids and tags that one operation takes by name, where it takes no file of them.
MOST_NAMES = 1000


@dataclass(frozen=True)
class Field:
    """Field of a form.

    Args:
        schema: JSON schema of its values.
        default: the value of a field that nobody has set.
    """

    name: str
    title: str
    description: str
    schema: Mapping[str, Any]
    default: Any = None

    def is_set(self, params: Params) -> bool:
        """Return True if the params give the field a value other than its default; an emptied one is not
        set.
        """
        value = params.get(self.name)
        return value not in (None, "", []) and value != self.default


def fields(operation: Operation[Any]) -> list[Field]:
    """Return the fields of an operation's form."""
    model = operation.parameters.model_json_schema()
    definitions, required = model.get("$defs", {}), model.get("required", ())
    return [
        Field(
            name,
            key["title"],
            key["description"] + (" Required." if name in required else ""),
            _schema(key, definitions, may_be_null=name in required),
            key.get("default"),
        )
        for name, key in model.get("properties", {}).items()
    ]


def _schema(key: Mapping[str, Any], definitions: Mapping[str, Any], *, may_be_null: bool) -> dict[str, Any]:
    """Return a parameter's JSON schema as Airflow's form takes it.

    A list and a value that may be absent allow null, which the form sends for an emptied field, and so does a
    required value, which has no default. What can be chosen is listed as examples, since a form can't leave
    an enum empty.
    """
    schema = _resolved(key, definitions)
    for value in schema.pop("anyOf", ()):
        if value == {"type": "null"}:
            may_be_null = True
        else:
            schema |= _resolved(value, definitions)
    choice = schema.get("enum")
    if schema.get("format") in PATTERNS:
        schema["pattern"] = PATTERNS[schema["format"]]
    if schema["type"] == "array":
        schema["items"] = _resolved(schema["items"], definitions)
        schema |= {"type": ["array", "null"]}
        schema |= {"examples": schema["items"]["enum"]} if "enum" in schema["items"] else {}
    elif may_be_null:
        schema["type"] = ["null", schema["type"]]
        if choice:
            schema |= {"pattern": f"^({'|'.join(schema.pop('enum'))})?$", "examples": choice}
        elif "pattern" in schema and "format" not in schema:
            schema["pattern"] = f"^({schema['pattern'].removeprefix('^').removesuffix('$')})?$"
    return schema


def _resolved(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    found = {**schema, **definitions.get(schema.get("$ref", "").rpartition("/")[2], {})}
    return {
        name: value
        for name, value in found.items()
        if name not in ("title", "description", "default", "$ref")
    }


def fields_of(operations: Iterable[Operation[Any]]) -> list[tuple[Field, list[str]]]:
    """Return each field of the operations once, with the names of the operations that take it.

    A field of several operations has the descriptions of all.
    """
    by_name: dict[str, list[tuple[Field, str]]] = {}
    for operation in operations:
        for field in fields(operation):
            by_name.setdefault(field.name, []).append((field, operation.name))
    return [(_joined(each), [name for _, name in each]) for each in by_name.values()]


def _joined(each: list[tuple[Field, str]]) -> Field:
    """Return one field for several operations' fields of a name, which differ in their description only."""
    texts: dict[str, list[str]] = {}
    for field, name in each:
        texts.setdefault(field.description, []).append(name)
    field = each[0][0]
    many = (
        "One a line. " if field.schema["type"] == ["array", "null"] and "examples" not in field.schema else ""
    )
    text = " ".join(f"{text} {many}({', '.join(names)})" for text, names in texts.items())
    return Field(field.name, field.title, text, field.schema, field.default)


def select(
    operations: Iterable[Operation[Any]], pipeline: str, params: Params
) -> tuple[Operation[Any], Parameters]:
    """Return the operation that the params name, and its parameters.

    Raises ConfigurationError if a field is set that only other operations take, or one is missing.
    """
    by_name = {operation.name: operation for operation in operations}
    selected = by_name[params["operation"]]
    own = set(selected.parameters.model_fields)
    foreign = sorted(
        field.name
        for field, _ in fields_of(by_name.values())
        if field.is_set(params) and field.name not in own
    )
    try:
        if foreign:
            raise ConfigurationError(
                f"it has no param {', '.join(foreign)}, which other operations have. Nothing was changed; "
                "trigger it again without"
            )
        parameters = parameters_of(selected, params)
        parameters.check(dry_run=params["dry_run"])
        _must_be_few(params, own)
    except ConfigurationError as error:
        raise ConfigurationError(f"{selected.name} of {pipeline}: {error}", pipeline=pipeline) from None
    return selected, parameters


def parameters_of(operation: Operation[Any], params: Params) -> Parameters:
    """Return an operation's parameters from the params of a form.

    Raises ConfigurationError for a value that the form's schema could not refuse.
    """
    own = operation.parameters.model_fields
    parameters: Parameters = operation.parameters.of({name: params[name] for name in own if name in params})
    return parameters


def _must_be_few(params: Params, own: set[str]) -> None:
    names = own & {"persistence_ids", "tags"} if "persistence_ids_file" not in own else set()
    if too_many := sorted(name for name in names if len(params.get(name) or ()) > MOST_NAMES):
        raise ConfigurationError(
            f"at most {MOST_NAMES} {' and '.join(too_many)} are named here; use the command line. Nothing was "
            "changed"
        )


def job_arguments(operation: Operation[Any], params: Params) -> list[str]:
    """Return the arguments of spark_jobs/operation.py that do the operation, or a dry run of it.

    Raises ConfigurationError for a value that the form's schema could not refuse.
    """
    parameters = parameters_of(operation, params).model_dump_json(exclude_defaults=True)
    dry_run = ["--dry-run"] if params["dry_run"] else []
    return ["--operation", operation.name, "--parameters", parameters, *dry_run]
