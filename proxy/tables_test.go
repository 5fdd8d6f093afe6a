package proxy

import (
	"context"
	"testing"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

func TestHasServices(t *testing.T) {
	conn := namespaceConn(t)
	expect := func(step string, want bool) {
		t.Helper()
		for name, has := range map[string]func(context.Context, *nft.Conn) (bool, error){"Services": HasServices, "endpoints": HasEndpoints} {
			if got, err := has(t.Context(), conn); err != nil || got != want {
				t.Errorf("%s: %s: %v, %v, want %v", step, name, got, err, want)
			}
		}
	}
	expect("without tables", false)
	c := cluster{services: 3, endpoints: 2}
	b, err := NewBackend(conn, c.config(), Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	for _, step := range []struct {
		name    string
		changes *model.Changes
		want    bool
	}{
		{"empty tables", &model.Changes{Full: true}, false},
		{"Services", c.changes(), true},
		{"all Services deleted", &model.Changes{Full: true}, false},
	} {
		if err := b.Sync(t.Context(), step.changes); err != nil {
			t.Fatal(err)
		}
		expect(step.name, step.want)
	}
}
