#!/bin/sh
# Makes a node, nN, between a client, cN, and a pod or another node, pN: network namespaces with neighbours and routes
# that never change. Packets end in front of the receiver's stack.
#   node.sh N LAYOUT VARIANT RULES    RULES is what ruledump compile writes
set -e
c=c$1 n=n$1 p=p$1 layout=$2 variant=$3 rules=$4
in_node() { ip netns exec $n "$@"; }
for ns in $c $n $p; do ip netns add $ns; done
in_node sh -c 'cd /proc/sys/net; echo 1 >ipv4/ip_forward; echo 1 >ipv6/conf/all/forwarding'
if [ -e /proc/sys/net/bridge ]; then
	[ $layout = bridge-netfilter ] && call=1 || call=0
	in_node sh -c "for f in /proc/sys/net/bridge/bridge-nf-call-ip*; do echo $call >\$f; done"
fi
ip -n $n link add client address 02:00:00:00:00:01 type veth peer name eth0 netns $c address 02:00:00:00:00:02
ip -n $n link add pod type veth peer name eth0 netns $p address 02:00:00:00:00:04
to=pod port=pod receiver=eth0
case $layout in
veth) ip -n $n link set pod address 02:00:00:00:00:03 ;;
bridge*)
	to=cni0
	ip -n $n link add cni0 address 02:00:00:00:00:03 type bridge
	ip -n $n link set pod master cni0 ;;
vxlan)
	to=vxlan0 port=vxlan0 receiver=vxlan0
	ip -n $n addr add 172.18.0.1/24 dev pod
	ip -n $p addr add 172.18.0.2/24 dev eth0
	ip -n $n link add vxlan0 address 02:00:00:00:00:03 type vxlan id 1 dstport 8472 dev pod remote 172.18.0.2
	ip -n $c link set eth0 mtu 1450
	ip -n $p link add vxlan0 address 02:00:00:00:00:04 type vxlan id 1 dstport 8472 dev eth0 remote 172.18.0.1
	;;
esac
for device in "$n client" "$n pod" "$n $to" "$c eth0" "$p eth0" "$p $receiver"; do
	set -- $device
	ip -n $1 link set $2 up
done
if [ $layout = vxlan ]; then
	ip -n $n neigh replace 172.18.0.2 lladdr 02:00:00:00:00:04 dev pod nud permanent
	ip -n $p link set eth0 address 02:00:00:00:00:04
	ip -n $p neigh replace 172.18.0.1 lladdr $(in_node cat /sys/class/net/pod/address) dev eth0 nud permanent
fi
for family in "10.244.0. 32" "fd00:10:244:: 128 nodad"; do
	set -- $family
	node=${1}1 client=${1}9 pod=${1}5 nodad=$3
	ip -n $n addr add $node/$2 dev client $nodad
	ip -n $c addr add $client/$2 dev eth0 $nodad
	ip -n $p addr add $pod/$2 dev $receiver $nodad
	while read ns address device mac; do
		ip -n $ns route add $address/$2 dev $device
		ip -n $ns neigh replace $address lladdr 02:00:00:00:00:0$mac dev $device nud permanent
	done <<-END
		$n $client client 2
		$n $pod $to 4
		$c $node eth0 1
		$p $node $receiver 3
	END
	ip -n $c route add default via $node dev eth0
	ip -n $p route add default via $node dev $receiver
done
in_node nft -f $rules
load() { # into NAMESPACE the table that is read
	ip netns exec $1 nft -f -
}
drop() { # what comes in by DEVICE
	echo "table netdev drop-$1 {
		chain ingress { type filter hook ingress device $1 priority 0; policy drop; counter; }
	}"
}
if [ -z "$FLOWTABLE_STREAM" ]; then
	for ns in $c $p; do
		drop eth0 | load $ns
	done
fi
case $variant in
sent)
	ip -n $n link set client down
	ip -n $n link set pod down
	;;
received)
	drop client | load $n
	drop pod | load $n
	;;
fast | ports)
	[ $variant = ports ] && to=$port
	load $n <<-END
	table inet fast {
		flowtable fast { hook ingress priority 0; devices = { client, $to }; }
		chain forward { type filter hook forward priority 0; ct state established ct status dnat flow add @fast; }
	}
	END
	;;
rules) load $n <<-END ;;
	table inet useless {
		chain forward { type filter hook forward priority 0; $(for i in $(seq 20); do echo "meta mark $i drop;"; done) }
	}
	END
esac
