"""Schemas of Gemini's own kind (a subset of OpenAPI, types in upper case) → JSON Schema.

Invariants (tests/gateway/test_gateway_gemini_schema.py):
- types are in lower case, `nullable` is a type of its own, counts that came as text are numbers;
- what is a user's own name (a property called "type") is never taken for a keyword;
- a schema that is JSON Schema already stays what it is.
"""

from __future__ import annotations

from typing import Any

RENAMED = {
    "any_of": "anyOf",
    "one_of": "oneOf",
    "all_of": "allOf",
    "min_items": "minItems",
    "max_items": "maxItems",
    "min_length": "minLength",
    "max_length": "maxLength",
    "min_properties": "minProperties",
    "max_properties": "maxProperties",
    "additional_properties": "additionalProperties",
    "prefix_items": "prefixItems",
}
DROPPED = frozenset({"nullable", "propertyOrdering", "property_ordering", "example"})
COUNTS = frozenset({"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"})
MAPS = frozenset({"properties", "patternProperties", "$defs", "defs", "definitions"})
LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
SCHEMAS = frozenset({"items", "additionalProperties", "not"})


def json_schema(schema: Any) -> Any:
    """The same schema as JSON Schema. What is no object (true, false) stays as it is."""
    if not isinstance(schema, dict):
        return schema
    out: dict[str, Any] = {}
    for name, value in schema.items():
        keyword = RENAMED.get(name, str(name))
        if keyword not in DROPPED:
            out[keyword] = _value(keyword, value)
    if out.get("type") in ("type_unspecified", None):
        out.pop("type", None)
    return _nullable(out) if schema.get("nullable") is True else out


def _value(keyword: str, value: Any) -> Any:
    if keyword == "type":
        return [_type(item) for item in value] if isinstance(value, list) else _type(value)
    if keyword in COUNTS:
        return int(value) if isinstance(value, str) and value.isascii() and value.isdecimal() else value
    if keyword in MAPS and isinstance(value, dict):
        return {name: json_schema(item) for name, item in value.items()}
    if keyword in LISTS and isinstance(value, list):
        return [json_schema(item) for item in value]
    return json_schema(value) if keyword in SCHEMAS else value


def _type(name: Any) -> Any:
    return name.lower() if isinstance(name, str) else name


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with null allowed."""
    if isinstance(schema.get("type"), str):
        allowed = {**schema, "type": [schema["type"], "null"]}
        if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
            allowed["enum"] = [*schema["enum"], None]
        return allowed
    if isinstance(schema.get("anyOf"), list):
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    return schema
