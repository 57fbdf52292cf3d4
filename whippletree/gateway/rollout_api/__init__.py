"""The rollout API: rollouts, their events and the engines, over HTTP, for trainers and controllers elsewhere.

    operations (what there is, and its OpenAPI document) ◄── routes (HTTP) ──► service (rules) ──► store, gateway
    client (typed, with retries) ──HTTP──► routes

Paths and verbs are those of Agent Lightning v1.0, Table 1. Every operation may be repeated: what was done is not done again.
"""
