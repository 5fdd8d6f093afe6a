#!/bin/sh
# Runs a command beside these files in qemu, with Debian's kernel, from the module's root:
#   boot.sh PACKAGE './flowtable -rounds 20'
#   boot.sh PACKAGE 'sh throughput.sh rules.nft 1 1'
# PACKAGE is a downloaded linux-image package. The machine has one emulated processor whose clock counts instructions: 1 ns
# is one. ACCEL=kvm measures time. Needs busybox-static, cpio, iperf3, iproute2, kmod, nftables, qemu-system-x86, xz-utils.
set -e
work=$(mktemp -d) modules="veth vxlan bridge br_netfilter af_packet nf_tables nft_chain_nat nft_ct nft_nat nft_masq nft_numgen
nft_hash nft_fib_ipv4 nft_fib_ipv6 nft_reject_ipv4 nft_reject_ipv6 nft_flow_offload nf_flow_table_inet"
dpkg-deb -x "$1" $work/package
release=$(ls $work/package/lib/modules) root=$work/root
depmod -b $work/package $release
mkdir -p $root/bin $root/modules $root/proc $root/sys $root/dev $root/tmp $root/run $root/etc
for m in $modules; do modprobe -d $work/package -S $release --show-depends $m; done |
	awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | { n=100; while read file; do
		xz -dc $file >$root/modules/$n.ko
		n=$((n + 1))
	done; }
for file in $(which ip iperf3 nft sh) $(ldd $(which ip iperf3 nft sh) | grep -o '/[^ ]* (0x' | cut -d' ' -f1) /etc/protocols; do
	mkdir -p $root$(dirname $file)
	cp -L $file $root$file
done
cp $(command -v busybox) $root/bin
CGO_ENABLED=0 go build -o $root/flowtable ./hack/flowtable
cp hack/flowtable/*.sh $root
go run ./cmd/ruledump compile --manifests hack/flowtable/manifests.yaml --config hack/flowtable/config.yaml --node node-1 >$root/rules.nft
cat >$root/init <<END
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mount -t tmpfs tmp /run
for m in /modules/*.ko; do insmod \$m; done
ip link set lo up
cd /
$(which sh) -c "$2"
poweroff -f
END
chmod +x $root/init
(cd $root && find . | cpio -o -H newc --quiet) >$work/initramfs
nice qemu-system-x86_64 -accel ${ACCEL:-tcg,thread=single -icount shift=0,sleep=off} -cpu max,-erms,-fsrm -smp 1 -m 1G -nographic -no-reboot -nic none -monitor none \
	-serial stdio -vga none -kernel $work/package/boot/vmlinuz-$release -initrd $work/initramfs \
	-append "console=ttyS0 quiet panic=-1 mitigations=off nokaslr" </dev/null
rm -r $work
