package ruledump

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
)

func TestPolicies(t *testing.T) {
	netns.EnterForTest(t)
	for _, command := range []string{
		"dir out dst 10.244.0.0/16 action block priority 2",
		"dir out dst 10.244.1.0/24 priority 1",
		"dir fwd src fd00:244::/32 dst fd00:244:1::/64 action block",
		"dir in src ::/0 dst fd00:244::/32 action block",
		"dir in src ::/0 dst fd00:244::/48 priority 3 mark 1",
	} {
		if out, err := exec.Command("ip", append([]string{"xfrm", "policy", "add"}, strings.Fields(command)...)...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", command, err, out)
		}
	}
	s := &Snapshot{}
	s.addPolicies()
	prefix := netip.MustParsePrefix
	want := []evaluator.Policy{
		{Direction: "out", Source: prefix("0.0.0.0/0"), Destination: prefix("10.244.1.0/24")},
		{Direction: "out", Source: prefix("0.0.0.0/0"), Destination: prefix("10.244.0.0/16"), Block: true},
		{Direction: "in", Source: prefix("::/0"), Destination: prefix("fd00:244::/32"), Block: true},
		{Direction: "fwd", Source: prefix("fd00:244::/32"), Destination: prefix("fd00:244:1::/64"), Block: true},
		{Direction: "in", Source: prefix("::/0"), Destination: prefix("fd00:244::/48"), Unknown: true},
	}
	same := cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
	if diff := cmp.Diff(want, s.Host.Policies, same); diff != "" || len(s.NotLookedAt) > 0 {
		t.Errorf("not looked at: %v, -want +got:\n%s", s.NotLookedAt, diff)
	}
}
