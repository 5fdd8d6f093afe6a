#!/bin/sh
# Names what `make test` needs of a machine, cannot install, and does not find here. Fails if there is anything.
#
#   hack/machine.sh FILES   how many files a process must be able to open
missing=0
need() { # WHAT COMMAND...
	what=$1
	shift
	reason=$("$@" 2>&1) || { missing=1 && echo "make test needs $what: $reason" >&2; }
}
inside() { unshare --net "$@"; } # the network namespace of this process stays as it is

need "$1 open files" sh -c "ulimit -n $1"
need "git's history, from which it builds the version before (git fetch --unshallow)" git rev-parse --verify HEAD~1
need "to make network namespaces" inside true
[ $missing = 0 ] || exit 1 # all others would fail too
need "to write to /proc/sys" inside sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'
need "IPv6" inside ls -d /proc/sys/net/ipv6
need "nftables in the kernel" inside nft add table inet nftproxy
for program in iptables ip6tables; do
	for variant in nft legacy; do
		need "what $program-$variant needs in the kernel" inside $program-$variant -t nat -A OUTPUT -m statistic --mode random --probability 0.5 -j RETURN
	done
done
exit $missing
