package takeover

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxy"
)

// containers are the sets and maps whose elements kube-proxy lists before its first sync, to change only what
// differs. All else it flushes or adds.
var containers = []string{
	"cluster-ips", "service-ips", "firewall-ips", "no-endpoint-services", "no-endpoint-nodeports",
	"service-nodeports", "hairpin-connections",
}

// firstSync returns the transaction that kube-proxy begins with when a table of its name exists. script
// is the transaction without such a table. kube-proxy leaves out elements that exist already, replaces those with
// another value, and removes those that it does not want, as well as sets with the names of its affinity sets.
func firstSync(script string, have *nft.Table) string {
	existing := map[string]map[string]string{}
	for _, name := range containers {
		existing[name] = elementsOf(have.Set(name))
	}
	var b strings.Builder
	for _, line := range strings.Split(strings.TrimSpace(script), "\n") {
		name, key, value, ok := parseAdded(line)
		if there, known := existing[name]; ok && known {
			old, exists := there[key]
			delete(there, key)
			if exists && old == value {
				continue
			}
			if exists {
				fmt.Fprintf(&b, "delete element %s kube-proxy %s { %s }\n", have.Family, name, key)
			}
		}
		fmt.Fprintln(&b, line)
	}
	for name, left := range existing {
		for key := range left {
			fmt.Fprintf(&b, "delete element %s kube-proxy %s { %s }\n", have.Family, name, key)
		}
	}
	for _, s := range have.Sets {
		if strings.HasPrefix(s.Name, "affinity-") && !s.IsMap() {
			fmt.Fprintf(&b, "delete set %s kube-proxy %s\n", have.Family, s.Name)
		}
	}
	return b.String()
}

// elementsOf returns the elements of a set as kube-proxy reads them: keys, and values, which are verdicts.
func elementsOf(s *nft.Set) map[string]string {
	elements := map[string]string{}
	if s == nil {
		return elements
	}
	for _, e := range s.Elements() {
		value := ""
		if s.Verdicts {
			value = e.Verdict.String()
		}
		elements[s.Key.Format(e.Key)] = value
	}
	return elements
}

// parseAdded takes a line that adds an element apart, such as
// `add element ip kube-proxy service-ips { 10.96.0.10 . tcp . 80 comment "shop/web" : goto x }`.
func parseAdded(line string) (set, key, value string, ok bool) {
	fields := strings.SplitN(line, " ", 6)
	if len(fields) != 6 || fields[0] != "add" || fields[1] != "element" {
		return "", "", "", false
	}
	element := strings.TrimSuffix(strings.TrimPrefix(fields[5], "{ "), " }")
	key, value, _ = strings.Cut(element, " : ")
	key, _, _ = strings.Cut(key, " comment ")
	return fields[4], key, value, true
}

// A Node may have no addresses just when its kube-proxy is swapped. Where node ports answer is then
// taken from the rules that kube-proxy left.
func testNodeAddressesAreReadFromKubeProxysTables(t *testing.T) {
	l := lab.ForTest(t)
	ruleset, err := os.ReadFile("testdata/ruleset.nft")
	if err != nil {
		t.Fatal(err)
	}
	lab.Nft(t, l.Node, string(ruleset), "-f", "-")
	conn := lab.Conn(t, l.Node)
	if has, err := proxy.HasServices(t.Context(), conn, 2); err != nil || !has {
		t.Errorf("kube-proxy's tables have Services: %v, %v", has, err)
	}
	if has, err := proxy.HasEndpoints(t.Context(), conn, 2); err != nil || !has {
		t.Errorf("kube-proxy's tables have endpoints: %v, %v", has, err)
	}
	var tables []*nft.Table
	for _, family := range nft.Families {
		table, err := conn.ReadTable(t.Context(), family, compiler.TableName)
		if err != nil {
			t.Fatal(err)
		}
		tables = append(tables, table)
	}
	got := compiler.NodeFromTables(tables...)
	want := []netip.Addr{netip.MustParseAddr("192.168.0.1"), netip.MustParseAddr("fd00:1::1")}
	if !slices.Equal(got.IPs, want) || len(got.PodCIDRs) > 0 {
		t.Errorf("addresses %v and pod CIDRs %v, want %v and none", got.IPs, got.PodCIDRs, want)
	}
}
