"""The run's network policies, as written and as the cluster keeps them."""

from __future__ import annotations

import pytest
from kube_fake import FakeApi, refusal
from kube_world import OWNER, Site

from whippletree.control.kubernetes import network
from whippletree.control.kubernetes.config import PodNetworkConfig
from whippletree.control.kubernetes.decide import Owner
from whippletree.control.kubernetes.labels import PHASE, owner_labels
from whippletree.errors import ConfigurationError
from whippletree.kubernetes.config import EgressRule

GATEWAY = EgressRule(pods={"app": "gateway"}, ports=(8100,))
SETUP = EgressRule(cidr="10.9.0.0/16", ports=(443,))


def test_pods_reach_the_gateway_and_name_servers_only():
    (policy,) = network.policies(PodNetworkConfig(gateway=(GATEWAY,)), OWNER, "http://gateway:8100")
    spec = policy["spec"]
    assert spec["podSelector"] == {"matchLabels": owner_labels(OWNER)}
    assert (spec["policyTypes"], spec.get("ingress")) == (["Ingress", "Egress"], None)
    first, dns = spec["egress"]
    assert first == {"to": [{"podSelector": {"matchLabels": {"app": "gateway"}}}], "ports": [{"protocol": "TCP", "port": 8100}]}
    assert dns["ports"] == [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]


def test_the_gateway_is_found_by_its_address():
    for url, cidr, port in (("http://10.0.0.7:8100", "10.0.0.7/32", 8100), ("http://[fd00::1]", "fd00::1/128", 80)):
        (policy,) = network.policies(PodNetworkConfig(), OWNER, url)
        assert policy["spec"]["egress"][0]["to"] == [{"ipBlock": {"cidr": cidr}}]
        assert policy["spec"]["egress"][0]["ports"][0]["port"] == port
    with pytest.raises(ConfigurationError, match="gateway"):
        network.policies(PodNetworkConfig(), OWNER, "http://gateway.svc:8100")


def test_the_set_up_list_is_for_that_phase_alone():
    agent, setup = network.policies(PodNetworkConfig(gateway=(GATEWAY,), setup=(SETUP,)), OWNER, "")
    assert setup["spec"]["podSelector"]["matchLabels"] == {**owner_labels(OWNER), PHASE: "setup"}
    assert setup["spec"]["egress"][0]["to"] == [{"ipBlock": {"cidr": "10.9.0.0/16"}}]
    assert "10.9" not in str(agent)


def test_off_is_off():
    assert network.policies(PodNetworkConfig(enabled=False), OWNER, "") == []


async def test_policies_are_created_changed_and_removed(site: Site):
    other = Owner(run="other", controller="c")
    async with site.cluster() as cluster:
        await network.apply(cluster, network.policies(PodNetworkConfig(gateway=(GATEWAY,), setup=(SETUP,)), other, ""))
        for port in (8100, 8200):
            rule = EgressRule(pods={"app": "gateway"}, ports=(port,))
            await network.apply(cluster, network.policies(PodNetworkConfig(gateway=(rule,)), OWNER, ""))
            name = network.policy_name(OWNER, "agent")
            kept = await site.ask("GET", site.path("networkpolicies", name))
            assert kept["spec"]["egress"][0]["ports"][0]["port"] == port
        await network.remove(cluster, OWNER)
        assert sorted(await site.names("networkpolicies")) == [
            network.policy_name(other, "agent"),
            network.policy_name(other, "setup"),
        ]


async def test_a_policy_of_somebody_else_is_not_taken(site: Site):
    (policy,) = network.policies(PodNetworkConfig(gateway=(GATEWAY,)), OWNER, "")
    body = {"metadata": {"name": policy["metadata"]["name"]}, "spec": policy["spec"]}
    await site.ask("POST", site.path("networkpolicies"), body)
    async with site.cluster() as cluster:
        with pytest.raises(ConfigurationError, match="somebody else"):
            await network.apply(cluster, [policy])


async def test_another_writer_at_the_same_time_is_a_conflict_that_is_overcome(fake: Site):
    api = fake.api
    assert isinstance(api, FakeApi)
    manifests = network.policies(PodNetworkConfig(gateway=(GATEWAY,)), OWNER, "")
    async with fake.cluster() as cluster:
        await network.apply(cluster, manifests)
        api.fail("PUT", "networkpolicies", refusal(409, "Conflict"), times=2)
        await network.apply(cluster, manifests)
        puts = [path for method, path in api.requests if method == "PUT"]
        assert len(puts) == 3
