#!/bin/sh
# Records the rules that Debian's firewalld, ufw and Docker write, for the golden cases testdata/foreign/firewalld.txtar,
# ufw.txtar and docker*.txtar. It installs nothing: a firewall that `make test` installed would start on the contributor's machine. The
# packages are unpacked over /usr and /etc in a mount namespace of their own, and the programs run there, without
# network. Needs root, apt-get, dbus-daemon, nft and iptables-nft; for Docker's container cgroups.
#
#	hack/firewalls/record.sh OUTPUT-DIRECTORY
set -eu

packages="firewalld python3-firewall python3-nftables python3-dbus python3-gi gir1.2-glib-2.0 libgirepository-1.0-1
gir1.2-nm-1.0 libnm0 python3-jsonschema python3-pyrsistent python3-attr python3-cap-ng ufw
docker.io containerd runc busybox-static"

if [ "${2-}" = "" ]; then
	out=$(realpath "$1")
	unpacked=$(mktemp -d)
	trap 'rm -rf "$unpacked"' EXIT
	chmod 755 "$unpacked"
	(cd "$unpacked" && apt-get download -qq $packages)
	for package in "$unpacked"/*.deb; do
		dpkg -x "$package" "$unpacked/root"
	done
	for dir in lib bin; do
		[ ! -d "$unpacked/root/$dir" ] || cp -r "$unpacked/root/$dir" "$unpacked/root/usr/"
	done
	for firewall in firewalld ufw docker; do
		unshare --net --mount --propagation private --pid --fork --mount-proc "$0" "$out" "$firewall" "$unpacked/root"
	done
	exit
fi

out=$1 firewall=$2 root=$3
mount -t tmpfs tmpfs /mnt
for over in usr etc; do
	mkdir -p "/mnt/$over" "/mnt/$over.work"
	mount -t overlay overlay -o "lowerdir=$root/$over:/$over,upperdir=/mnt/$over,workdir=/mnt/$over.work" "/$over"
done
mount -t tmpfs tmpfs /run
mkdir /run/dbus
ip link set lo up
ip link add eth0 type veth peer name peer
ip link set eth0 up

case $firewall in
firewalld)
	cat >/mnt/bus.conf <<-X
		<busconfig><type>system</type><listen>unix:path=/run/dbus/system_bus_socket</listen><auth>EXTERNAL</auth>
		<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy></busconfig>
	X
	dbus-daemon --config-file=/mnt/bus.conf --fork
	firewalld --nofork --nopid &
	for i in $(seq 100); do
		! firewall-cmd --state >/dev/null 2>&1 || break
		sleep 0.1
	done
	firewall-cmd -q --zone=public --add-interface=eth0
	firewall-cmd -q --zone=public --add-port=30080/tcp
	nft list ruleset >"$out/firewalld.nft"
	;;
ufw)
	cp /usr/share/ufw/ufw.conf /usr/share/ufw/*.rules /etc/ufw/
	sed -i 's/^IPT_SYSCTL/#&/' /etc/default/ufw # not all sysctls are of the namespace
	ufw default deny routed
	ufw route allow proto tcp from 198.51.100.7 to any port 8080
	ufw allow 22/tcp
	ufw --force enable
	for family in ip ip6; do
		${family}tables-nft-save | grep -v '^#' >"$out/ufw.$family.rules"
	done
	;;
docker)
	mount -t tmpfs tmpfs /var/lib
	dockerd --storage-driver vfs --exec-opt native.cgroupdriver=cgroupfs --cgroup-parent /recorded >/dev/null 2>&1 &
	for i in $(seq 100); do
		! docker version >/dev/null 2>&1 || break
		sleep 0.1
	done
	mkdir -p /mnt/image/bin
	cp /usr/bin/busybox /mnt/image/bin/
	tar -C /mnt/image -c . | docker import - box >/dev/null
	container=$(docker run -d -p 8000:80 box /bin/busybox sleep 1000)
	iptables-nft-save | grep -v '^#' >"$out/docker.ip.rules"
	docker rm -f "$container" >/dev/null
	rmdir /sys/fs/cgroup/*/recorded /sys/fs/cgroup/recorded 2>/dev/null || true
	;;
esac
