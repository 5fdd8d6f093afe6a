package proxy

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
)

// theirTables adds tables of the proxy's name that another program could have made.
func theirTables(t *testing.T, c *nft.Conn) {
	t.Helper()
	for _, family := range nft.Families {
		commit(t, c, nft.Replace(&nft.Table{Family: family, Name: compiler.TableName, Chains: []*nft.Chain{
			{Name: "theirs", Type: nft.TypeNAT, Hook: nft.HookPrerouting, Priority: nft.PriorityDstNAT},
		}}))
	}
}

func hasTable(t *testing.T, c *nft.Conn, name string) bool {
	t.Helper()
	there, err := c.HasTable(t.Context(), nft.FamilyIP, name)
	if err != nil {
		t.Fatal(err)
	}
	return there
}

func TestBackendTakesOver(t *testing.T) {
	t.Run("and says so", testTakeOverSaysSo)
	t.Run("and holds no lock while it waits for packets", func(t *testing.T) {
		// The first wait comes after the commits of the temporary tables, the second one after those of its own.
		first := testTakeOverWaits(t, 0)
		testTakeOverWaits(t, first)
	})
}

// testTakeOverWaits stops a Sync in its first wait after more commits than so many, and returns the number of its commits.
func testTakeOverWaits(t *testing.T, after int) (commits int) {
	c := namespaceConn(t)
	theirTables(t, c)
	b, err := NewBackend(c, compiler.Default(), Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	b.hookTime = 0
	b.hooks.OnCommit = func(nft.CommitStats) {
		if commits++; commits > after {
			b.hookTime = time.Hour
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	synced := make(chan error, 1)
	go func() { synced <- b.Sync(ctx, manyPorts(10, 1)) }()
	eventually(t, "the Sync waits without the lock, and the temporary tables serve", func() bool {
		if !b.mu.TryLock() {
			return false
		}
		waits := commits > after
		b.mu.Unlock()
		return waits && hasTable(t, c, compiler.TemporaryName)
	})
	if repaired, err := b.Check(t.Context()); repaired || err != nil {
		t.Errorf("a check during the wait: %v, %v", repaired, err)
	}
	if !hasTable(t, c, compiler.TemporaryName) {
		t.Error("a check during the wait has removed the temporary tables")
	}
	if serve, err := HasServices(t.Context(), c, 1); err != nil || serve != (after > 0) {
		t.Errorf("during the wait its own tables serve: %v, %v", serve, err)
	}
	waited := commits
	stop()
	if err := <-synced; !errors.Is(err, context.Canceled) {
		t.Errorf("a Sync that is stopped while it waits returns %v", err)
	}
	if hasTable(t, c, compiler.TemporaryName) {
		t.Error("the temporary tables stay")
	}
	b.hookTime, b.hooks.OnCommit = hookTime, nil
	if err := b.Sync(t.Context(), &model.Changes{}); err != nil {
		t.Fatal(err)
	}
	compareWithKernel(t, c, b)
	return waited
}

func testTakeOverSaysSo(t *testing.T) {
	const anew = "Making the tables anew, because they are not there or another program's"
	for _, tc := range []struct {
		name    string
		prepare func(*testing.T, *nft.Conn)
		want    string
	}{
		{"on a clean node", func(*testing.T, *nft.Conn) {}, "Making the tables"},
		{"over another program's tables", theirTables, anew},
		{"with one of two tables", func(t *testing.T, c *nft.Conn) {
			theirTables(t, c)
			commit(t, c, nft.Remove(nft.FamilyIP6, compiler.TableName))
		}, anew},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := namespaceConn(t)
			tc.prepare(t, c)
			b, err := NewBackend(c, compiler.Default(), Hooks{})
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			var log bytes.Buffer
			logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log), textlogger.Verbosity(2)))
			if err := b.Sync(klog.NewContext(t.Context(), logger), manyPorts(1, 1)); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(log.String(), `"`+tc.want+`"`) {
				t.Errorf("it logs %s\nwant %q", log.String(), tc.want)
			}
		})
	}
}
