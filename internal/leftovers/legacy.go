package leftovers

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/nft"
)

// legacyFamily describes the kernel's interface to the tables of iptables-legacy of one family. The numbers are those
// of linux/netfilter_ipv4/ip_tables.h and linux/netfilter_ipv6/ip6_tables.h.
type legacyFamily struct {
	family nft.Family
	// names is a file with the names of the tables in use in this network namespace. The kernel would make
	// another table if it were asked for it.
	names         string
	domain, level int
	offsets       entryLayout
}

var legacyFamilies = []legacyFamily{
	{family: nft.FamilyIP, names: "/proc/thread-self/net/ip_tables_names", domain: unix.AF_INET, level: unix.IPPROTO_IP, offsets: entryLayout{88, 90, 112}},
	{family: nft.FamilyIP6, names: "/proc/thread-self/net/ip6_tables_names", domain: unix.AF_INET6, level: unix.IPPROTO_IPV6, offsets: entryLayout{140, 142, 168}},
}

// Options of getsockopt, the same for both families.
const (
	optInfo    = 64
	optEntries = 65
)

// legacyChains returns the names of the chains that kube-proxy's other modes made with iptables-legacy.
func legacyChains(context.Context) (names []string, err error) {
	for _, f := range legacyFamilies {
		tables, err := f.tables()
		if err != nil {
			return names, err
		}
		for _, table := range tables {
			chains, err := f.chains(table)
			if err != nil {
				return names, fmt.Errorf("read table %s of %s: %w", table, f.family, err)
			}
			for _, c := range chains {
				if isProxyChain(c) {
					names = append(names, chainName(f.family, table, c))
				}
			}
		}
	}
	return names, nil
}

// tables returns those in use in which kube-proxy has chains.
func (f legacyFamily) tables() ([]string, error) {
	text, err := os.ReadFile(f.names)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // the kernel has no iptables-legacy, or no IPv6
	}
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(strings.Fields(string(text)), func(name string) bool { return !slices.Contains(iptablesTables, name) }), nil
}

// chains returns the names of a table's chains, except for the base chains.
func (f legacyFamily) chains(table string) ([]string, error) {
	socket, err := unix.Socket(f.domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open a socket: %w", err)
	}
	defer unix.Close(socket)
	entries, err := retry(func() ([]byte, error) { return f.read(socket, table) })
	if err != nil {
		return nil, err
	}
	return f.offsets.chainNames(entries)
}

// read returns the table's entries: its rules, one after the other. It returns EAGAIN if the table changes between the
// two calls.
func (f legacyFamily) read(socket int, table string) ([]byte, error) {
	// struct ipt_getinfo: name, hooks, entry point and last rule of five hooks, entries, size.
	const nameSize, sizeAt, infoSize = 32, 80, 84
	info := make([]byte, infoSize)
	copy(info, table)
	if err := getsockopt(socket, f.level, optInfo, info); err != nil {
		return nil, err
	}
	size := info[sizeAt:]
	// struct ipt_get_entries: name, size, entries, which are aligned to eight bytes.
	const entriesAt = nameSize + 8
	entries := make([]byte, entriesAt+int(binary.NativeEndian.Uint32(size)))
	copy(entries, table)
	copy(entries[nameSize:], size)
	if err := getsockopt(socket, f.level, optEntries, entries); err != nil {
		return nil, err
	}
	return entries[entriesAt:], nil
}

func getsockopt(socket, level, option int, value []byte) error {
	length := uint32(len(value))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(socket), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&value[0])), uintptr(unsafe.Pointer(&length)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// Tables of iptables-legacy are a list of entries, each a rule: a head, matches, and a target. A chain begins
// with an entry whose target is called ERROR and has the chain's name. So does the table's last entry: its name is ERROR too.
const (
	chainTarget = "ERROR"
	// In struct xt_entry_target the name is behind the length, and the data behind name and revision.
	targetNameAt, targetNameSize, targetDataAt = 2, 29, 32
)

// entryLayout has the offsets of the two lengths in an entry (struct ipt_entry, struct ip6t_entry), and its size.
type entryLayout struct{ targetOffset, nextOffset, size int }

// chainNames returns the names of the chains that users made in a table.
func (l entryLayout) chainNames(entries []byte) (names []string, err error) {
	for at := 0; at < len(entries); {
		entry := entries[at:]
		if len(entry) < l.size {
			return nil, fmt.Errorf("entry at %d of %d is cut off", at, len(entries))
		}
		target, next := int(binary.NativeEndian.Uint16(entry[l.targetOffset:])), int(binary.NativeEndian.Uint16(entry[l.nextOffset:]))
		if target < l.size || next < target+targetDataAt || next > len(entry) {
			return nil, fmt.Errorf("entry at %d of %d has its target at %d and the next entry at %d", at, len(entries), target, next)
		}
		if name := text(entry[target+targetNameAt:][:targetNameSize]); name == chainTarget {
			if chain := text(entry[target+targetDataAt : next]); chain != chainTarget {
				names = append(names, chain)
			}
		}
		at += next
	}
	return names, nil
}

// text returns the bytes before the first NUL.
func text(b []byte) string {
	before, _, _ := bytes.Cut(b, []byte{0})
	return string(before)
}
