#!/bin/sh
# Writes the table of docs/proxytest-matrix.md: sh hack/matrix.sh PAGE. It needs BIN, GO, and Kubernetes' kube-proxy
# (KUBE_PROXY, VERSION).
set -eu
page=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# try NAME COMMAND FLAG...: a new difference is part of the table, any other failure is not.
try() {
	name=$1 command=$2
	shift 2
	"$BIN/proxytest" --proxy "$command" "$@" -o json 2>"$dir/log" >"$dir/$name.json" || [ $? = 1 ] || { cat "$dir/log"; exit 1; }
}

backend='-node-local-source {node-local} -hostname-override {node} -cluster-cidr 10.244.0.0/16 -cluster-cidr fd00:10:244::/48'
for example in chains userspace; do
	CGO_ENABLED=0 $GO build -o "$BIN/$example" "./examples/$example"
done
try nftproxy "$BIN/kube-proxy --config {config}"
for mode in nftables iptables; do
	echo "mode: $mode" >"$dir/config"
	try "$mode" "$KUBE_PROXY --config {config}" --config "$dir/config" --expect "kube-proxy-$mode"
done
try chains "$BIN/chains $backend" --expect chains
try userspace "$BIN/userspace $backend" --expect userspace
try python "sh -c '\"\$0\" node-local-watch --node-local-source \"\$1\" --hostname-override \"\$2\" -o jsonl | python3 examples/python/proxy.py' $BIN/kube-proxy {node-local} {node}" --expect python

{
	cat <<END
# Golden cases over several proxies

\`make matrix\` writes this page. *same*: every packet ended as the case expects. *known*: some ended
otherwise, for a reason that \`testdata/expect.PROXY.yaml\` names. *new*: for no such reason. A dash:
the case was not run. [proxytest.md](proxytest.md) explains how.

END
	"$BIN/proxytest" matrix nftproxy="$dir/nftproxy.json" "kube-proxy $VERSION nftables=$dir/nftables.json" \
		"kube-proxy $VERSION iptables=$dir/iptables.json" \`examples/chains\`="$dir/chains.json" \
		\`examples/userspace\`="$dir/userspace.json" \`examples/python\`="$dir/python.json"
} >"$page.new"
mv "$page.new" "$page"
