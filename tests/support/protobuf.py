"""A Protobuf message with fields of every kind, among them the well-known types."""

from functools import cache
from typing import Any

from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    field_mask_pb2,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)

KNOWN = (any_pb2, duration_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)
WELL_KNOWN = {
    "any": "Any", "duration": "Duration", "mask": "FieldMask", "struct": "Struct", "value": "Value", "list": "ListValue", "at": "Timestamp",
    "wrapped_long": "Int64Value", "wrapped_text": "StringValue", "wrapped_flag": "BoolValue", "wrapped_bytes": "BytesValue",
    "wrapped_double": "DoubleValue",
}  # fmt: skip
PLAIN = {
    "double": "DOUBLE",
    "single": "FLOAT",
    "long": "INT64",
    "huge": "UINT64",
    "flag": "BOOL",
    "raw": "BYTES",
    "text": "STRING",
}
MAPS = {"of_flags": "BOOL", "of_numbers": "INT32", "of_texts": "STRING"}


def descriptors() -> bytes:
    """Return the descriptor set of shop.Wide, with the key's fields and those of WELL_KNOWN, PLAIN and MAPS
    (to shop.Part).
    """
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="wide.proto", package="shop", syntax="proto3")
    file.dependency.extend(module.DESCRIPTOR.name for module in KNOWN)
    part, wide = file.message_type.add(name="Part"), file.message_type.add(name="Wide")
    part.field.add(name="unit_id", number=1, type=kinds.TYPE_INT64, label=kinds.LABEL_OPTIONAL)
    state = file.enum_type.add(name="State")
    for number, name in enumerate(("NONE", "SENT")):
        state.value.add(name=name, number=number)
    number = 0
    for name, kind in ({"project": "STRING", "event_type": "STRING", "product_id": "INT64"} | PLAIN).items():
        number += 1
        wide.field.add(
            name=name, number=number, type=getattr(kinds, f"TYPE_{kind}"), label=kinds.LABEL_OPTIONAL
        )
    for name, kind in WELL_KNOWN.items():
        number += 1
        of = f".google.protobuf.{kind}"
        wide.field.add(
            name=name, number=number, type=kinds.TYPE_MESSAGE, type_name=of, label=kinds.LABEL_OPTIONAL
        )
    wide.field.add(
        name="state", number=50, type=kinds.TYPE_ENUM, type_name=".shop.State", label=kinds.LABEL_OPTIONAL
    )
    wide.field.add(
        name="part", number=51, type=kinds.TYPE_MESSAGE, type_name=".shop.Part", label=kinds.LABEL_OPTIONAL
    )
    wide.field.add(
        name="parts", number=52, type=kinds.TYPE_MESSAGE, type_name=".shop.Part", label=kinds.LABEL_REPEATED
    )
    wide.field.add(name="longs", number=53, type=kinds.TYPE_INT64, label=kinds.LABEL_REPEATED)
    for number, (name, kind) in enumerate(MAPS.items(), 60):
        entry = wide.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, type=getattr(kinds, f"TYPE_{kind}"), label=kinds.LABEL_OPTIONAL)
        entry.field.add(
            name="value",
            number=2,
            type=kinds.TYPE_MESSAGE,
            type_name=".shop.Part",
            label=kinds.LABEL_OPTIONAL,
        )
        of = f".shop.Wide.{entry.name}"
        wide.field.add(
            name=name, number=number, type=kinds.TYPE_MESSAGE, type_name=of, label=kinds.LABEL_REPEATED
        )
    found = descriptor_pb2.FileDescriptorSet()
    for module in KNOWN:
        module.DESCRIPTOR.CopyToProto(found.file.add())
    found.file.append(file)
    return found.SerializeToString()


@cache
def _wide() -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors()).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Wide"))


def wide_message(number: int = 7) -> Any:
    """Return a shop.Wide that has only a product's key."""
    return _wide()(project="p", event_type="e", product_id=number)
