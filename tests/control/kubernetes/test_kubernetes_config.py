"""Settings of Kubernetes."""

from __future__ import annotations

import pytest

from whippletree.configuration import convert
from whippletree.control.config import ControlConfig
from whippletree.control.kubernetes.config import KubernetesConfig
from whippletree.errors import ConfigurationError
from whippletree.kubernetes.config import CLUSTER_DNS, EgressRule


def test_the_defaults_are_valid():
    config = convert(KubernetesConfig, {}, "x")
    assert config == KubernetesConfig() == ControlConfig().kubernetes
    assert config.network.dns == (CLUSTER_DNS,)


def test_launch_names_kubernetes():
    found = convert(ControlConfig, {"launch": "kubernetes", "kubernetes": {"template": "job.yaml"}}, "x")
    assert (found.launch, found.kubernetes.template) == ("kubernetes", "job.yaml")


@pytest.mark.parametrize(
    "rule",
    [{}, {"ports": [1]}, {"cidr": "10.0.0.0/8", "pods": {"a": "b"}}, {"cidr": "nonsense"}, {"cidr": "10.0.0.1/8"}],
)
def test_a_rule_has_one_destination(rule: dict):
    with pytest.raises(ConfigurationError):
        convert(EgressRule, rule, "x")


@pytest.mark.parametrize(
    ("key", "value"),
    [("jobs", 0), ("pending_seconds", 0), ("running_seconds", -1.0), ("finished_ttl_seconds", 0), ("on_stop", "keep")],
)
def test_a_limit_that_is_not_positive_is_refused(key: str, value: object):
    with pytest.raises(ConfigurationError, match=key):
        convert(KubernetesConfig, {key: value}, "x")


@pytest.mark.parametrize("port", [0, 65536])
def test_a_port_out_of_range_is_refused(port: int):
    with pytest.raises(ConfigurationError):
        convert(EgressRule, {"pods": {"a": "b"}, "ports": [port]}, "x")
