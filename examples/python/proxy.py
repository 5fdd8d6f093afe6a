#!/usr/bin/env python3
"""A Service proxy in Python: reads batches, one JSON object a line, and feeds rules to the nft program.

It masquerades all that it translates, and takes traffic policies as they are for pods too.

    kube-proxy node-local-watch --node-local-source unix:///run/nftproxy/node-local.sock \\
        --hostname-override "$(hostname)" -o jsonl | ./proxy.py
"""
import json
import subprocess
import sys

FAMILIES = (("ip", "ipv4_addr", "FAMILY_IPV4"), ("ip6", "ipv6_addr", "FAMILY_IPV6"))
PROTOCOLS = {"PROTOCOL_TCP": "tcp", "PROTOCOL_UDP": "udp", "PROTOCOL_SCTP": "sctp"}
ID = ("namespace", "service", "port", "protocol", "family")


def identity(message):
    """JSON leaves out what is empty."""
    return tuple(message.get(field, "") for field in ID)


class State:
    """What all batches together have said."""

    def __init__(self):
        self.ports, self.node_ips = {}, []

    def apply(self, batch):
        if batch.get("full"):
            self.ports.clear()
        for port in batch.get("set", []):
            key = identity(port["id"])
            if port.get("continued"):  # more endpoints of the port before
                for field in ("cluster", "local", "serving", "not_serving"):
                    self.ports[key].setdefault(field, []).extend(port.get(field, []))
            else:
                self.ports[key] = port
        for key in map(identity, batch.get("delete", [])):
            self.ports.pop(key, None)
        if "node" in batch:
            self.node_ips = batch["node"].get("ips", [])


def dialed(port, node_ips):
    """Yields the addresses that clients dial, the port on them, and whether they are external."""
    yield port["cluster_ip"], port["port"], False
    for address in port.get("load_balancer_ips", []) + port.get("external_ips", []):
        yield address, port["port"], True
    for address in node_ips:
        if "node_port" in port and (":" in address) == (port["id"]["family"] == "FAMILY_IPV6"):
            yield address, port["node_port"], True


def endpoint_rules(family, port, external):
    """Returns the rules for one list of endpoints."""
    policy = port.get("external_policy" if external else "internal_policy")
    endpoints = port.get("local" if policy == "TRAFFIC_POLICY_LOCAL" else "cluster", [])
    if not endpoints:
        return "drop" if port.get("cluster") else "meta mark set meta mark | 0x8000"
    choice = f"jhash {family} saddr" if "affinity_timeout_seconds" in port else "numgen random"
    slots = ", ".join(f"{i} : {e['address']} . {e['port']}" for i, e in enumerate(endpoints))
    protocol = PROTOCOLS[port["id"]["protocol"]]
    return f"meta l4proto {protocol} meta mark set meta mark | 0x4000 dnat {family} to {choice} mod {len(endpoints)} map {{ {slots} }}"


def table(family, address_type, ports, node_ips):
    chains, elements = [], {}
    for external, suffix in (False, ""), (True, "-external"):  # nobody takes a ClusterIP by naming it as external IP
        for number, port in enumerate(ports):
            chain = f"port-{number}{suffix}"
            chains.append(f"chain {chain} {{ {endpoint_rules(family, port, external)}\n }}")
            for address, on, is_external in dialed(port, node_ips):
                if external == is_external:
                    elements.setdefault(f"{address} . {PROTOCOLS[port['id']['protocol']]} . {on}", f"goto {chain}")
    listed = ", ".join(f"{key} : {verdict}" for key, verdict in elements.items())
    services = f"{family} daddr . meta l4proto . th dport vmap @services"
    return "\n".join([
        f"table {family} example-python",
        f"delete table {family} example-python",
        f"table {family} example-python {{",
        *chains,
        f"map services {{ type {address_type} . inet_proto . inet_service : verdict",
        f"elements = {{ {listed} }}\n }}" if listed else "}",
        f"chain nat-prerouting {{ type nat hook prerouting priority dstnat\n {services}\n }}",
        f"chain nat-output {{ type nat hook output priority -100\n {services}\n }}",
        "chain nat-postrouting { type nat hook postrouting priority srcnat\n meta mark & 0x4000 != 0 masquerade\n }",
        *(f"chain filter-{hook} {{ type filter hook {hook} priority filter\n meta mark & 0x8000 != 0 reject\n }}" for hook in ("input", "forward", "output")),
        "}",
    ])


def main():
    state = State()
    for line in sys.stdin:
        batch = json.loads(line)
        state.apply(batch)
        if "sync" not in batch:
            continue  # only part of a state
        script = []
        for family, address_type, name in FAMILIES:
            ports = [state.ports[key] for key in sorted(state.ports) if key[-1] == name]
            script.append(table(family, address_type, ports, state.node_ips))
        # One script is one transaction.
        subprocess.run(["nft", "-f", "-"], input="\n".join(script), text=True, check=True)
        print("synced", len(state.ports), "Service ports", flush=True)


if __name__ == "__main__":
    main()
