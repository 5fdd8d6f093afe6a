package leftovers

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// legacyFamily is how the kernel shows the tables of iptables-legacy of one family. The numbers are those
// of linux/netfilter_ipv4/ip_tables.h and linux/netfilter_ipv6/ip6_tables.h.
type legacyFamily struct {
	family family
	// names is a file with the names of the tables that are in use in this network namespace. To ask for another
	// one would have the kernel make it.
	names         string
	domain, level int
	offsets       entryLayout
}

var legacyFamilies = []legacyFamily{
	{family: unix.NFPROTO_IPV4, names: "/proc/thread-self/net/ip_tables_names", domain: unix.AF_INET, level: unix.IPPROTO_IP, offsets: entryLayout{88, 90, 112}},
	{family: unix.NFPROTO_IPV6, names: "/proc/thread-self/net/ip6_tables_names", domain: unix.AF_INET6, level: unix.IPPROTO_IPV6, offsets: entryLayout{140, 142, 168}},
}

// Options of getsockopt, the same for both families.
const (
	optInfo    = 64
	optEntries = 65
)

// legacyChains returns the names of the chains that kube-proxy's other modes made with iptables-legacy.
func legacyChains() (names []string, err error) {
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
					names = append(names, chain{family: f.family, table: table, name: c}.String())
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

// chains returns the names of a table's chains, other than the ones that every table has.
func (f legacyFamily) chains(table string) ([]string, error) {
	socket, err := unix.Socket(f.domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open a socket: %w", err)
	}
	defer unix.Close(socket)
	return retry(func() ([]string, error) {
		blob, err := f.read(socket, table)
		if err != nil {
			return nil, err
		}
		return f.offsets.chainNames(blob)
	})
}

// read returns the table's entries: its rules, one after the other.
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
	entries := make([]byte, entriesAt+int(nativeUint32(size)))
	copy(entries, table)
	copy(entries[nameSize:], size)
	if err := getsockopt(socket, f.level, optEntries, entries); errors.Is(err, unix.EAGAIN) {
		return nil, errChanged
	} else if err != nil {
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
