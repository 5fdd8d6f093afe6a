package nft

import (
	"errors"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"golang.org/x/sys/unix"
)

func TestProbe(t *testing.T) {
	t.Run("finds everything in this kernel and leaves nothing", testThisKernelHasEverythingAndAProbeLeavesNothing)
	t.Run("names a missing feature with its kernel option", testAMissingFeatureIsNamedWithItsKernelOption)
	t.Run("of one family needs no other", testAProbeOfOneFamilyNeedsNoOther)
	t.Run("does not take a lack of privileges for a missing feature", testALackOfPrivilegesIsNotTakenForAMissingFeature)
	t.Run("works beside a leftover table", testProbeWithALeftoverTable)
}

func testThisKernelHasEverythingAndAProbeLeavesNothing(t *testing.T) {
	netns.EnterForTest(t)
	c := dial(t)
	if err := c.Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := runNft(t, "", "list", "ruleset"); left != "" {
		t.Errorf("the probe left:\n%s", left)
	}
}

// refuse acts as a kernel without one kind of expression.
func refuse(word string, errno unix.Errno) func(Transaction) error {
	return func(tx Transaction) error {
		if strings.Contains(tx.String(), word) {
			return &CommitError{Err: errno, Step: word}
		}
		return nil
	}
}

func testAMissingFeatureIsNamedWithItsKernelOption(t *testing.T) {
	for _, tt := range []struct {
		word, want string
		errno      unix.Errno
	}{
		{"fib daddr", "ip: fib daddr type needs CONFIG_NFT_FIB_IPV4: no such file or directory", unix.ENOENT},
		{"masquerade", "ip6: masquerade needs CONFIG_NFT_MASQ: operation not supported", unix.EOPNOTSUPP},
		{"numgen", "ip: numgen needs CONFIG_NFT_NUMGEN: no such file or directory", unix.ENOENT},
		{"table ip6", "ip6 tables needs CONFIG_NF_TABLES_IPV6: address family not supported by protocol", unix.EAFNOSUPPORT},
	} {
		var missing MissingError
		err := probe(Families[:], refuse(tt.word, tt.errno))
		if !errors.As(err, &missing) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("a kernel without %s: %v, want a MissingError with %q", tt.word, err, tt.want)
		}
	}
}

func testAProbeOfOneFamilyNeedsNoOther(t *testing.T) {
	if err := probe([]Family{FamilyIP}, refuse("table ip6", unix.EOPNOTSUPP)); err != nil {
		t.Errorf("a kernel without ip6, asked for ip: %v", err)
	}
}

func testALackOfPrivilegesIsNotTakenForAMissingFeature(t *testing.T) {
	err := probe(Families[:], func(Transaction) error { return &CommitError{Err: unix.EPERM} })
	var missing MissingError
	if errors.As(err, &missing) || !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
		t.Errorf("probe = %v, want an error that names CAP_NET_ADMIN", err)
	}
}
