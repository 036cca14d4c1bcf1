"""The service as OpenAPI 3.1: questions from the table of options, answers from the schemas of the commands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from rooflinekit.ops.tools import TOOLS
from rooflinekit.version import __version__

Schema: TypeAlias = dict[str, Any]

_REFUSALS = {
    "400": "the body is no JSON object, or the request names another host",
    "401": "the token is missing, or another",
    "408": "the question, or its answer, takes too long or too much memory",
    "413": "the question is too long",
    "415": "the question is no JSON",
    "422": "the question cannot be answered",
    "429": "too many questions are waiting",
}


def openapi() -> Schema:
    """The description of all paths.

    >>> openapi()["paths"]["/healthz"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    {'$ref': '#/components/schemas/Health'}
    """
    from rooflinekit.report.schemas import ERROR, HEALTH, schema_of  # noqa: PLC0415 - asked for once

    shared: Schema = {}
    refused = _reference(shared, "Error", schema_of(ERROR))
    health = _reference(shared, "Health", schema_of(HEALTH))
    refusals = {status: _body(refused, said) for status, said in _REFUSALS.items()}
    paths: Schema = {}
    for name, tool in TOOLS.items():
        asked = {"required": True, **_body(_reference(shared, f"{name}.question", tool.schema))}
        found = _body(_reference(shared, f"{name}.answer", _answered(name)), "the answer, and what it rests on")
        post = {
            "operationId": name,
            "summary": tool.help,
            "requestBody": asked,
            "responses": {"200": found, **refusals},
        }
        paths[f"/v1/{name}"] = {"post": post}
    about = {"operationId": "healthz", "summary": "Say that the service runs.", "security": []}
    paths["/healthz"] = {"get": about | {"responses": {"200": _body(health, "the version")}}}
    token = {"type": "http", "scheme": "bearer"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "rooflinekit", "version": __version__},
        "paths": paths,
        "components": {"schemas": shared, "securitySchemes": {"token": token}},
        "security": [{}, {"token": []}],
    }


def _answered(tool: str) -> Schema:
    if tool == "compare":
        from rooflinekit.evidence.schemas import comparison_served  # noqa: PLC0415 - another wing

        return comparison_served()
    from rooflinekit.report.schemas import served  # noqa: PLC0415 - as above

    return served(tool)


def described() -> bytes:
    """Describe the service as JSON."""
    return json.dumps(openapi()).encode()


def _body(schema: Schema, description: str = "") -> Schema:
    said = {"description": description} if description else {}
    return said | {"content": {"application/json": {"schema": schema}}}


def _reference(shared: Schema, name: str, schema: Mapping[str, Any]) -> Schema:
    """A reference to a schema that is put among the shared ones, with its parts, whose names begin with its own."""
    whole = {key: part for key, part in schema.items() if key not in ("$defs", "$schema")}
    for part, body in schema.get("$defs", {}).items():
        shared[f"{name}.{part}"] = _moved(body, name)
    shared[name] = _moved(whole, name)
    return {"$ref": f"#/components/schemas/{name}"}


def _moved(schema: object, name: str) -> object:
    if isinstance(schema, str):
        return schema.replace("#/$defs/", f"#/components/schemas/{name}.")
    if isinstance(schema, dict):
        return {key: _moved(value, name) for key, value in schema.items()}
    return [_moved(each, name) for each in schema] if isinstance(schema, list) else schema
