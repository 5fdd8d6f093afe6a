#!/bin/sh
# The README's commands on a bare Debian, where only what the README asks for is installed: Go, make and git.
# Fails on anything that the README does not say. Needs root, debootstrap and git; takes as long as the commands.
#
#   hack/bare.sh [COMMAND...]   without COMMAND, each `make ...` line of the README
#   SUITE=trixie MIRROR=http://deb.debian.org/debian
#   REFUSE_32BIT=1   no 32-bit program starts, on the whole machine, as if its kernel had been booted with ia32_emulation=off
set -eu
suite=${SUITE:-bookworm}
mirror=${MIRROR:-http://deb.debian.org/debian}
cd "$(dirname "$0")/.."
go=$(go env GOROOT)
proxy=$(go env GOPROXY)

root=$(mktemp -d)
chmod 755 "$root" # tests run programs as other users
refusal=/proc/sys/fs/binfmt_misc/nftproxy-refuse
trap '[ ! -e "$refusal" ] || echo -1 >"$refusal"; rm -rf --one-file-system "$root"' EXIT
trap 'exit 1' INT TERM
debootstrap --variant=minbase --include=ca-certificates,make,git "$suite" "$root" "$mirror" >"$root.log" || { cat "$root.log"; exit 1; }
rm "$root.log"
cp -r "$go" "$root/usr/local/go"
git clone --quiet . "$root/nftproxy"
cat /etc/resolv.conf >"$root/etc/resolv.conf"
if [ -d /usr/local/share/ca-certificates ]; then # where the network's own authority is, if it has one
	cp -r /usr/local/share/ca-certificates/. "$root/usr/local/share/ca-certificates/"
	chroot "$root" update-ca-certificates >/dev/null 2>&1
fi

if [ -n "${REFUSE_32BIT:-}" ]; then # the kernel is told to run this file instead, and it is no program either
	[ -e /proc/sys/fs/binfmt_misc/register ] || mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
	printf '\177' >"$root/nftproxy.none"
	chmod +x "$root/nftproxy.none"
	printf '%s' ":${refusal##*/}:M::\\x7fELF\\x01::$root/nftproxy.none:F" >/proc/sys/fs/binfmt_misc/register
fi

if [ $# -eq 0 ]; then
	grep '^    make ' README.md | sed 's/^ *//; s/ *#.*//' | awk '!seen[$0]++' >"$root/nftproxy.commands"
else
	printf '%s\n' "$@" >"$root/nftproxy.commands"
fi
cat >"$root/nftproxy.run" <<'RUN'
#!/bin/sh
exec 2>&1
cd /nftproxy
while read -r command; do
	begin=$(date +%s)
	echo "== $command"
	$command </dev/null || { echo "== $command: failed after $(($(date +%s) - begin)) s"; exit 1; }
	echo "== $command: $(($(date +%s) - begin)) s"
done </nftproxy.commands
[ -z "$(git status --porcelain)" ] || { git status; echo "== the commands left files that git does not ignore"; exit 1; }
RUN
# Mounts end with the script. Not so processes: tests compare their numbers with those that the kernel tells of, which
# differ in a namespace. With chroot alone no test could make a user namespace.
unshare --mount sh -c '
	set -e
	mount --bind "$1" "$1" # tests change how mounts below / propagate, so / must be one
	cd "$1"
	mount -t proc proc "$1/proc"
	mount --rbind --make-rslave /sys "$1/sys"
	mount --rbind --make-rslave /dev "$1/dev"
	mount -t tmpfs tmpfs "$1/tmp"
	chmod 1777 "$1/tmp"
	mkdir "$1/before"
	pivot_root . before
	umount -l before
	rmdir before
	exec chroot . env -i HOME=/root PATH=/usr/local/go/bin:/usr/sbin:/usr/bin:/sbin:/bin GOPROXY="$2" sh /nftproxy.run
' sh "$root" "$proxy"
