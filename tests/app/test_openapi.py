"""The documentation of bodies is the code's own, and a valid document."""

from __future__ import annotations

import json
from typing import Any

from fastapi import FastAPI

from app.instance_body import FinishedBody
from app.instance_settings import InstanceSettings
from app.openapi import RouteAnswer, json_body, problems, route_body
from app.route_body import read_route_request
from app.route_fields import RouteFields


def operation() -> dict[str, Any]:
    """What the OpenAPI document says of an endpoint documented this way."""
    app = FastAPI()

    @app.post("/route", response_model=RouteAnswer, responses=problems(400, 422), openapi_extra=route_body())
    async def route() -> None: ...

    document = json.loads(json.dumps(app.openapi()))
    found: dict[str, Any] = document["paths"]["/route"]["post"]
    return found


def test_every_field_is_documented_in_the_body_and_as_a_query_parameter() -> None:
    found = operation()
    schema = found["requestBody"]["content"]["application/json"]["schema"]
    assert set(schema["properties"]) == set(RouteFields.__struct_fields__)
    assert all(field["description"] for field in schema["properties"].values())
    assert schema["required"] == ["model"]
    assert "$ref" not in json.dumps(schema)
    parameters = {parameter["name"]: parameter for parameter in found["parameters"]}
    assert {"model", "candidates", "dry_run"} <= set(parameters)
    assert not {"token_ids", "prompt", "messages"} & set(parameters)
    assert "as JSON" in parameters["selector"]["description"]


def test_both_forms_and_the_problems_are_documented() -> None:
    found = operation()
    assert set(found["requestBody"]["content"]) == {"application/json", "application/octet-stream"}
    assert "application/problem+json" in found["responses"]["422"]["content"]


def test_the_examples_are_requests() -> None:
    examples = operation()["requestBody"]["content"]["application/json"]["examples"]
    for example in examples.values():
        assert read_route_request(json.dumps(example["value"]).encode(), None, b"", 1000).model


def test_other_bodies_can_be_documented_from_either_kind_of_model() -> None:
    for model, field in ((InstanceSettings, "dp_size"), (FinishedBody, "cached_tokens")):
        schema = json_body(model, {})["requestBody"]["content"]["application/json"]["schema"]
        assert field in schema["properties"]
        json.dumps(schema)
