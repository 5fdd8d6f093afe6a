package proxy

import (
	"context"
	"testing"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

func TestHasServices(t *testing.T) {
	conn := namespaceConn(t)
	expect := func(step string, services, endpoints bool) {
		t.Helper()
		for name, tc := range map[string]struct {
			has  func(context.Context, *nft.Conn) (bool, error)
			want bool
		}{"Services": {HasServices, services}, "endpoints": {HasEndpoints, endpoints}} {
			if got, err := tc.has(t.Context(), conn); err != nil || got != tc.want {
				t.Errorf("%s: %s: %v, %v, want %v", step, name, got, err, tc.want)
			}
		}
	}
	expect("without tables", false, false)
	c, idle := cluster{services: 3, endpoints: 2}, cluster{services: 3}
	b, err := NewBackend(conn, c.config(), Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	for _, step := range []struct {
		name                string
		changes             *model.Changes
		services, endpoints bool
	}{
		{"empty tables", &model.Changes{Full: true}, false, false},
		{"Services", c.changes(), true, true},
		{"Services without endpoints", idle.changes(), true, false},
		{"all Services deleted", &model.Changes{Full: true}, false, false},
	} {
		if err := b.Sync(t.Context(), step.changes); err != nil {
			t.Fatal(err)
		}
		expect(step.name, step.services, step.endpoints)
	}
}
