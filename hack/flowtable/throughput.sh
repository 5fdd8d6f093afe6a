#!/bin/sh
# Throughput of one TCP connection to the Service, in Mbit/s, with and without a flowtable in turns:
# throughput.sh RULES [TURNS] [SECONDS]. Packets are as large as pods send them (64 KB), and then no larger than the MTU.
set -e
cd $(dirname $0)
rules=$1 n=100
export FLOWTABLE_STREAM=1
for layout in veth bridge vxlan; do
	for variant in plain fast; do
		sh node.sh $n $layout $variant $rules
		ip netns exec p$n iperf3 -s -p 8080 -D
		n=$((n + 1))
	done
done
for segments in 65535 1; do
	n=100
	for layout in veth bridge vxlan; do
		for at in $n $((n + 1)); do
			ip -n c$at link set eth0 gso_max_segs $segments
		done
		for service in 10.96.0.10 fd00:10:96::a; do
			for turn in $(seq ${2:-10}); do
				for at in $n $((n + 1)); do
					ip netns exec c$at iperf3 -c $service -p 80 -t ${3:-2} -f m | awk '/receiver/ { print $7 }' >>/run/stream-$at
				done
			done
			for at in $n $((n + 1)); do
				sort -n /run/stream-$at | awk '{ v[NR] = $1 } END { printf "%s, %s | ", v[NR], v[int((NR + 1) / 2)] }' >/run/figure-$at
				rm /run/stream-$at
			done
			echo "| $layout | $service | $segments | $(cat /run/figure-$n /run/figure-$((n + 1)))"
		done
		n=$((n + 2))
	done
done
