"""Gemini's own schemas become JSON Schema."""

import pytest

from whippletree.gateway.dialects.gemini_schema import json_schema


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"type": "OBJECT", "properties": {"path": {"type": "STRING", "description": "where"}}, "required": ["path"]},
         {"type": "object", "properties": {"path": {"type": "string", "description": "where"}}, "required": ["path"]}),
        ({"type": "STRING", "nullable": True}, {"type": ["string", "null"]}),
        ({"type": "STRING", "nullable": True, "enum": ["a"], "format": "enum"},
         {"type": ["string", "null"], "enum": ["a", None], "format": "enum"}),
        ({"type": "STRING", "nullable": False}, {"type": "string"}),
        ({"anyOf": [{"type": "INTEGER"}], "nullable": True}, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        ({"any_of": [{"type": "NUMBER"}, {"type": "BOOLEAN"}]}, {"anyOf": [{"type": "number"}, {"type": "boolean"}]}),
        ({"type": "ARRAY", "items": {"type": "INTEGER"}, "minItems": "1", "max_items": "3"},
         {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3}),
        ({"type": "OBJECT", "propertyOrdering": ["a"], "property_ordering": ["a"], "example": {"a": 1}}, {"type": "object"}),
        ({"type": "TYPE_UNSPECIFIED"}, {}),
        ({"type": "ARRAY", "items": {"type": "OBJECT", "additionalProperties": False}},
         {"type": "array", "items": {"type": "object", "additionalProperties": False}}),
        ({}, {}),
    ],
)  # fmt: skip
def test_what_gemini_writes_becomes_json_schema(given, wanted):
    assert json_schema(given) == wanted


def test_properties_with_the_names_of_keywords_stay_properties():
    named = {"type": {"type": "STRING"}, "nullable": {"type": "BOOLEAN"}, "example": {"type": "STRING"}, "min_items": {}}
    assert json_schema({"type": "OBJECT", "properties": named}) == {
        "type": "object",
        "properties": {
            "type": {"type": "string"},
            "nullable": {"type": "boolean"},
            "example": {"type": "string"},
            "min_items": {},
        },
    }


def test_json_schema_stays_what_it_is():
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": ["object", "null"],
        "properties": {"a": {"type": "string", "minLength": 1, "default": "OBJECT", "enum": ["STRING"]}, "b": True},
        "additionalProperties": False,
        "$defs": {"x": {"const": "NUMBER"}},
    }
    assert json_schema(schema) == schema
