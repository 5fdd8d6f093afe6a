package nft

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"github.com/nftproxy/nftproxy/internal/testkit/process"
	"golang.org/x/sys/unix"
)

func TestProbe(t *testing.T) {
	t.Run("finds everything in this kernel and leaves nothing", testThisKernelHasEverythingAndAProbeLeavesNothing)
	t.Run("names a missing feature with its kernel option", testAMissingFeatureIsNamedWithItsKernelOption)
	t.Run("of one family needs no other", testAProbeOfOneFamilyNeedsNoOther)
	t.Run("does not take a lack of privileges for a missing feature", testALackOfPrivilegesIsNotTakenForAMissingFeature)
	t.Run("works beside a leftover table", testProbeWithALeftoverTable)
	t.Run("does not take a kernel that is short of memory or busy for one without a feature", testProbeOfABusyKernel)
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

func testProbeOfABusyKernel(t *testing.T) {
	for _, errno := range []unix.Errno{unix.ENOMEM, unix.EBUSY} {
		for name, probe := range map[string]func(*Conn) error{
			"Probe":         func(c *Conn) error { return c.Probe(t.Context()) },
			"ProbeCounters": func(c *Conn) error { return c.ProbeCounters(t.Context()) },
			"ProbeDup":      func(c *Conn) error { return c.ProbeDup(t.Context(), FamilyIP) },
			"ProbePersist":  func(c *Conn) error { return c.ProbePersist(t.Context()) },
		} {
			t.Run(fmt.Sprintf("%s: %v", name, errno), func(t *testing.T) {
				netns.NeedLinux(t, 6, 9) // table flag persist
				c, err := Dial(Config{NetNS: netns.ForTest(t).FD()})
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				refused := process.RefusedStep(errno)
				var answer error
				run := func() { answer = probe(c) }
				if struck, err := refused.Run(1, run); err != nil || !struck || answer != nil {
					t.Errorf("refused once (%v, %v): %v, want a second try that succeeds", struck, err, answer)
				}
				var missing MissingError
				if struck, err := refused.Lasting().Run(1, run); err != nil || !struck || !errors.Is(answer, errno) || errors.As(answer, &missing) {
					t.Errorf("refused each time (%v, %v): %v, want the kernel's answer", struck, err, answer)
				}
			})
		}
	}
}

func testALackOfPrivilegesIsNotTakenForAMissingFeature(t *testing.T) {
	err := probe(Families[:], func(Transaction) error { return &CommitError{Err: unix.EPERM} })
	var missing MissingError
	if errors.As(err, &missing) || !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
		t.Errorf("probe = %v, want an error that names CAP_NET_ADMIN", err)
	}
}
