"""Rollout life cycle: controller, pool hosts, process supervision."""
