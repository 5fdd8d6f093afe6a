package leftovers

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/nft"
)

// LegacyTable describes a table of iptables-legacy.
type LegacyTable struct {
	Family nft.Family
	Name   string
	// Hooks are those at which the kernel calls the table.
	Hooks []nft.Hook
	// Entries are the rules, and two for each chain that users made. Without any, only the policies act.
	Entries int
}

// String names the table, such as "iptables-legacy table filter (hooks input, forward, output): 3 entries".
func (t LegacyTable) String() string {
	var hooks []string
	for _, h := range t.Hooks {
		hooks = append(hooks, string(h))
	}
	return fmt.Sprintf("%stables-legacy table %s (hooks %s): %d entries and the policies", t.Family, t.Name, strings.Join(hooks, ", "), t.Entries)
}

// LegacyTables describes the tables of iptables-legacy in this network namespace. It needs CAP_NET_ADMIN, and reads no
// rules.
func LegacyTables() (tables []LegacyTable, err error) {
	for _, f := range legacyFamilies {
		names, err := os.ReadFile(f.names)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the kernel has no iptables-legacy, or no IPv6
		}
		if err != nil {
			return nil, err
		}
		for _, name := range slices.Sorted(slices.Values(strings.Fields(string(names)))) {
			at := legacyTable{family: f, name: name}
			copy(at.info[:], name)
			err := f.socket(func(socket int) error { return getsockopt(socket, f.level, getInfo, at.info[:]) })
			if errors.Is(err, unix.ENOENT) {
				continue // it has gone
			}
			if err != nil {
				return nil, fmt.Errorf("read table %s of %s: %w", name, f.family, err)
			}
			t := LegacyTable{Family: f.family, Name: name}
			for number, h := range legacyHooks {
				if first, _ := at.hook(number); first >= 0 {
					t.Hooks = append(t.Hooks, h)
				}
			}
			// Each hook has an entry for its policy, and the table has one at its end.
			t.Entries = int(binary.NativeEndian.Uint32(at.info[infoCountAt:])) - len(t.Hooks) - 1
			tables = append(tables, t)
		}
	}
	return tables, nil
}
