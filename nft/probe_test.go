package nft

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"github.com/nftproxy/nftproxy/internal/testkit/process"
	"golang.org/x/sys/unix"
)

func TestProbe(t *testing.T) {
	t.Run("finds everything in this kernel and leaves nothing", testThisKernelHasEverythingAndAProbeLeavesNothing)
	t.Run("names a missing feature with its kernel option", testAMissingFeatureIsNamedWithItsKernelOption)
	t.Run("names each feature that the kernel refuses, alone", testEachFeatureIsNamedAlone)
	t.Run("names a feature that the kernel leaves out without a word", testAFeatureThatTheKernelLeavesOut)
	t.Run("has the versions that docs/kernels.md lists", testDocumentedVersions)
	t.Run("asks for the features alone that the caller names", testAProbeOfOneFeatureAsksForNoOther)
	t.Run("of one family needs no other", testAProbeOfOneFamilyNeedsNoOther)
	t.Run("does not take a lack of privileges for a missing feature", testALackOfPrivilegesIsNotTakenForAMissingFeature)
	t.Run("works beside a leftover table", testProbeWithALeftoverTable)
	t.Run("does not take a kernel that is short of memory or busy for one without a feature", testProbeOfABusyKernel)
}

func testThisKernelHasEverythingAndAProbeLeavesNothing(t *testing.T) {
	for _, feature := range slices.Compact(everyFeature()) {
		t.Run(fmt.Sprintf("feature %d", feature), func(t *testing.T) {
			if feature == FeaturePersist {
				netns.NeedLinux(t, 6, 9)
			}
			netns.EnterForTest(t)
			c := dial(t)
			if err := c.Probe(t.Context(), nil, feature); err != nil {
				t.Fatal(err)
			}
			if left := runNft(t, "", "list", "ruleset"); left != "" {
				t.Errorf("the probe left:\n%s", left)
			}
		})
	}
}

func everyFeature() (all []Feature) {
	for _, s := range features {
		all = append(all, s.partOf)
	}
	return all
}

// keepsAll acts as a kernel that keeps everything.
func keepsAll(t *Table) (*Table, error) { return t, nil }

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
		{"table ip6", "ip6: tables needs CONFIG_NF_TABLES_IPV6: address family not supported by protocol", unix.EAFNOSUPPORT},
	} {
		var missing MissingError
		err := probe(Families[:], []Feature{FeatureBasic}, refuse(tt.word, tt.errno), keepsAll)
		if !errors.As(err, &missing) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("a kernel without %s: %v, want a MissingError with %q", tt.word, err, tt.want)
		}
	}
}

// A kernel that refuses the table of one row lacks that feature. The text has the option, and the version where the table
// of features has one.
func testEachFeatureIsNamedAlone(t *testing.T) {
	for i := range features {
		s := &features[i]
		t.Run(s.name, func(t *testing.T) {
			refused := &Table{Family: FamilyIP6}
			s.use(refused)
			refuses := func(tx Transaction) error {
				have := *tx.Steps[0].Table
				if have.Name = ""; Diff(nil, &have).String() == Diff(nil, refused).String() {
					return &CommitError{Err: unix.EOPNOTSUPP, Step: "x"}
				}
				return nil
			}
			var missing MissingError
			err := probe([]Family{FamilyIP6}, everyFeature(), refuses, keepsAll)
			if !errors.As(err, &missing) || len(missing) != 1 || missing[0].Feature != "ip6: "+s.name ||
				strings.Contains(missing[0].Option, "*") || !strings.Contains(missing[0].Option, s.since) {
				t.Errorf("probe = %v", err)
			}
		})
	}
}

func testAFeatureThatTheKernelLeavesOut(t *testing.T) {
	forgets := func(t *Table) (*Table, error) { return &Table{Family: t.Family, Name: t.Name}, nil }
	err := probe([]Family{FamilyIP}, []Feature{FeatureCounters, FeatureComments}, func(Transaction) error { return nil }, forgets)
	missing, _ := errors.AsType[MissingError](err)
	if len(missing) != 2 || missing[0].Option != "CONFIG_NF_TABLES of kernel 5.7 or later" || missing[1].Option != "CONFIG_NF_TABLES of kernel 5.10 or later" {
		t.Errorf("probe = %v", err)
	}
}

func testDocumentedVersions(t *testing.T) {
	page, err := os.ReadFile("../docs/kernels.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range features {
		if row := "\n| " + s.name + " | " + s.since + " |"; s.since != "" && !strings.Contains(string(page), row) {
			t.Errorf("docs/kernels.md has no row %q", row)
		}
	}
}

func testAProbeOfOneFeatureAsksForNoOther(t *testing.T) {
	if err := probe([]Family{FamilyIP}, []Feature{FeatureHash}, refuse("masquerade", unix.ENOENT), keepsAll); err != nil {
		t.Errorf("a kernel without masquerade, asked for jhash: %v", err)
	}
}

func testAProbeOfOneFamilyNeedsNoOther(t *testing.T) {
	if err := probe([]Family{FamilyIP}, everyFeature(), refuse("table ip6", unix.EOPNOTSUPP), keepsAll); err != nil {
		t.Errorf("a kernel without ip6, asked for ip: %v", err)
	}
}

func testProbeOfABusyKernel(t *testing.T) {
	for _, errno := range []unix.Errno{unix.ENOMEM, unix.EBUSY} {
		for name, probe := range map[string]func(*Conn) error{
			"refused":  func(c *Conn) error { return c.Probe(t.Context(), nil) },
			"left out": func(c *Conn) error { return c.Probe(t.Context(), nil, FeatureCounters) },
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
	err := probe(Families[:], everyFeature(), func(Transaction) error { return &CommitError{Err: unix.EPERM} }, keepsAll)
	var missing MissingError
	if errors.As(err, &missing) || !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
		t.Errorf("probe = %v, want an error that names CAP_NET_ADMIN", err)
	}
}
