"""What the rollout API has: every operation once, for the router and for the OpenAPI document. Pure.

Invariants (tests/gateway/test_rollout_api_openapi.py): the document names every route of the API that the router has, and no
other; it is valid OpenAPI 3.1; every struct in it has a schema.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from whippletree.gateway.rollout_api.wire import (
    CallRewardData,
    CancelRollouts,
    CreateRollouts,
    EventDraft,
    EventList,
    EventReceipt,
    Lease,
    ModelEndpoints,
    ProblemBody,
    QueueState,
    RolloutInfo,
    RolloutList,
    RolloutUpdate,
)
from whippletree.types import Struct

TITLE = "Whippletree rollout API"
STATES = ["queuing", "running", "succeeded", "failed"]
PAGE_LIMIT = 1000


class Parameter(Struct):
    """A part of the path, or of the query. `schema` is JSON Schema.

    Example: Parameter(name="limit", place="query", schema={"type": "integer"}, about="rollouts of a page")
    """

    name: str
    place: str
    schema: dict[str, Any]
    about: str


class Operation(Struct):
    """One verb on one path. `body` and `reply` are structs.

    Example: Operation(name="get_queue", method="GET", path="/api/queue", about="Rollouts by state.", reply=QueueState)
    """

    name: str
    method: str
    path: str
    about: str
    reply: type[Struct]
    body: type[Struct] | None = None
    query: tuple[Parameter, ...] = ()
    refusals: tuple[int, ...] = ()


def _query(name: str, schema: dict[str, Any], about: str) -> Parameter:
    return Parameter(name=name, place="query", schema=schema, about=about)


WAIT = _query("wait", {"type": "number", "minimum": 0, "maximum": 60}, "seconds to wait for something to tell")
LIMIT = _query("limit", {"type": "integer", "minimum": 1, "maximum": PAGE_LIMIT}, "entries of a page, 100 unless given")
LISTING = (
    _query("state", {"type": "array", "items": {"type": "string", "enum": STATES}}, "only these states"),
    _query("source", {"type": "string"}, "only this source"),
    _query("group_id", {"type": "string"}, "only this group"),
    _query("purpose", {"type": "string", "enum": ["train", "eval"]}, "only this purpose"),
    _query("order", {"type": "string", "enum": ["created", "updated"]}, "by creation (unless given) or by last change"),
    _query("after", {"type": "string"}, "the `next` of an earlier page of the same order"),
    LIMIT,
    WAIT,
)
EVENTS = (
    _query("kind", {"type": "string"}, "only this kind"),
    _query("after", {"type": "integer", "minimum": 0, "maximum": 10**15}, "the `next` of an earlier page"),
    LIMIT,
    WAIT,
)
ROLLOUT = "/api/rollouts/{rollout_id}"

OPERATIONS = (
    Operation(
        name="create_rollouts",
        method="POST",
        path="/api/rollouts",
        about="Create rollouts, all or none. The same again creates none.",
        body=CreateRollouts,
        reply=RolloutList,
        refusals=(400, 409, 413),
    ),
    Operation(
        name="list_rollouts",
        method="GET",
        path="/api/rollouts",
        about="List rollouts by page. With `order=updated`, ended states and `wait` it tells every end as it comes.",
        query=LISTING,
        reply=RolloutList,
        refusals=(400,),
    ),
    Operation(
        name="cancel_rollouts",
        method="POST",
        path="/api/rollouts/cancel",
        about="Call rollouts off. Those that have ended stay as they are.",
        body=CancelRollouts,
        reply=RolloutList,
        refusals=(400, 404, 413),
    ),
    Operation(
        name="get_rollout",
        method="GET",
        path=ROLLOUT,
        about="One rollout; with `wait` once it has ended.",
        query=(WAIT,),
        reply=RolloutInfo,
        refusals=(400, 404),
    ),
    Operation(
        name="update_rollout",
        method="PATCH",
        path=ROLLOUT,
        about="Say what became of a rollout. What an older attempt says is refused and changes nothing.",
        body=RolloutUpdate,
        reply=RolloutInfo,
        refusals=(400, 404, 409, 413),
    ),
    Operation(
        name="append_event",
        method="POST",
        path=ROLLOUT + "/attempt/{attempt}/events",
        about="Write an event of the current attempt. The same id again changes nothing.",
        body=EventDraft,
        reply=EventReceipt,
        refusals=(400, 404, 409, 413),
    ),
    Operation(
        name="renew_lease",
        method="POST",
        path=ROLLOUT + "/attempt/{attempt}/heartbeat",
        about="A sign of life: the attempt's lease begins anew. Refused where the attempt is not under way any more.",
        reply=Lease,
        refusals=(404, 409),
    ),
    Operation(
        name="list_events",
        method="GET",
        path=ROLLOUT + "/events",
        about="A rollout's events by page, in the order in which they were written; with `kind=model_request` its calls.",
        query=EVENTS,
        reply=EventList,
        refusals=(400, 404, 410),
    ),
    Operation(
        name="register_models",
        method="POST",
        path="/api/models",
        about="Add inference servers. The same again adds none; the same name with another URL replaces the earlier one.",
        body=ModelEndpoints,
        reply=ModelEndpoints,
        refusals=(400, 413),
    ),
    Operation(
        name="remove_models",
        method="DELETE",
        path="/api/models",
        about="Remove every inference server that was added. Those of the configuration stay.",
        reply=ModelEndpoints,
    ),
    Operation(
        name="list_models",
        method="GET",
        path="/api/models",
        about="The inference servers that were added.",
        reply=ModelEndpoints,
    ),
    Operation(name="get_queue", method="GET", path="/api/queue", about="Rollouts by source and state.", reply=QueueState),
    Operation(
        name="pause_queue",
        method="POST",
        path="/api/queue/pause",
        about="Begin no rollout; what runs goes on.",
        reply=QueueState,
    ),
    Operation(name="resume_queue", method="POST", path="/api/queue/resume", about="Begin rollouts again.", reply=QueueState),
)

PATH_PARAMETERS = {
    "rollout_id": Parameter(name="rollout_id", place="path", schema={"type": "string", "minLength": 1}, about="the rollout"),
    "attempt": Parameter(
        name="attempt", place="path", schema={"type": "integer", "minimum": 1, "maximum": 999_999_999}, about="the attempt"
    ),
}


def document(version: str) -> dict[str, Any]:
    """The OpenAPI document."""
    structs = [kind for operation in OPERATIONS for kind in (operation.body, operation.reply) if kind is not None]
    _, schemas = msgspec.json.schema_components(
        [*structs, CallRewardData, ProblemBody], ref_template="#/components/schemas/{name}"
    )
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": TITLE, "version": version},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"control": {"type": "http", "scheme": "bearer", "description": "the run's control key"}},
        },
        "security": [{"control": []}],
    }


def _described(operation: Operation) -> dict[str, Any]:
    inside = [PATH_PARAMETERS[name] for name in re.findall(r"{(\w+)}", operation.path)]
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.about,
        "parameters": [
            {
                "name": parameter.name,
                "in": parameter.place,
                "required": parameter.place == "path",
                "description": parameter.about,
                "schema": parameter.schema,
            }
            for parameter in (*inside, *operation.query)
        ],
        "responses": {
            "200": {"description": "done", "content": _json(operation.reply)},
            **{
                str(status): {"description": reason, "content": _json(ProblemBody)}
                for status, reason in REFUSALS.items()
                if status in (*operation.refusals, 401, 403)
            },
        },
    }
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": _json(operation.body)}
    return described


def _json(kind: type[Struct]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{kind.__name__}"}}}


REFUSALS = {
    400: "the request cannot be read",
    401: "no control key",
    403: "another key, or a foreign host",
    404: "no such rollout",
    409: "the state does not allow it, or an older attempt says so",
    410: "the tokens were given up after training",
    413: "the body is too long",
}
