package ruledump

import (
	"testing"

	"github.com/nftproxy/nftproxy/nft"
)

// A rule that was read prints in a way that reads as the same rule.
func FuzzParseRule(f *testing.F) {
	for _, text := range []string{
		"ip daddr . meta l4proto . th dport vmap @service-ips", "dnat ip to ip daddr . numgen random mod 3 map @endpoints",
		"update @m { ip saddr timeout 3h : ip daddr . ct reply proto-src }", `iifname "veth*" return`, "ct state new jump x",
		"meta mark & 0x00004000 == 0x00004000 masquerade fully-random", "fib daddr type local goto y", "ip saddr != 10.0.0.0/8 drop",
		"dnat ip to ip saddr . jhash ip saddr mod 3 seed 0x5eed map @m", "unknown-limit reject", "ip saddr @s counter accept",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		statements, err := parseRule(nft.FamilyIP, text)
		if err != nil {
			return
		}
		printed := nft.Rule{Statements: statements}.String()
		again, err := parseRule(nft.FamilyIP, printed)
		if err != nil {
			t.Fatalf("%q prints as %q, which does not read: %v", text, printed, err)
		}
		if reprinted := (nft.Rule{Statements: again}).String(); reprinted != printed {
			t.Errorf("%q prints as %q, and that as %q", text, printed, reprinted)
		}
	})
}
