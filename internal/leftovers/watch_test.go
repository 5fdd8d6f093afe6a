package leftovers

import (
	"errors"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
)

func TestWatch(t *testing.T) {
	chains := []Leftover{{Kind: NFT, Count: 7, Example: "ip nat KUBE-SERVICES"}}
	fewer := []Leftover{{Kind: NFT, Count: 3, Example: "ip nat KUBE-SERVICES"}}
	device := []Leftover{{Kind: IPVS, Count: 1, Example: "kube-ipvs0"}}
	for _, tt := range []struct {
		name  string
		looks []func(*watch)
		// lines are what the log says, abridged.
		lines []string
		want  map[Kind]int
	}{
		{"nothing there, nothing said", []func(*watch){looked(nil, nil), looked(nil, nil)}, nil, map[Kind]int{}},
		{"said once", []func(*watch){looked(chains, nil), looked(fewer, nil)}, []string{"left rules behind iptables-nft"}, map[Kind]int{NFT: 3}},
		{"another kind is said too", []func(*watch){looked(chains, nil), looked(append(device, chains...), nil)},
			[]string{"left rules behind iptables-nft", "left rules behind ipvs"}, map[Kind]int{NFT: 7, IPVS: 1}},
		{"said when it is gone, and when it is back", []func(*watch){looked(chains, nil), looked(nil, nil), looked(nil, nil), looked(chains, nil)},
			[]string{"left rules behind iptables-nft", "are gone iptables-nft", "left rules behind iptables-nft"}, map[Kind]int{NFT: 7}},
		{"a failure is said once and makes nothing gone", []func(*watch){looked(chains, nil), looked(nil, errors.New("no")), looked(nil, errors.New("no")), looked(chains, nil)},
			[]string{"left rules behind iptables-nft", "Cannot look no"}, map[Kind]int{NFT: 7}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var lines []string
			var last map[Kind]int
			w := &watch{onLook: func(count map[Kind]int) { last = count }}
			w.logger = funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
			for _, look := range tt.looks {
				look(w)
			}
			if diff := cmp.Diff(tt.want, last); diff != "" {
				t.Errorf("counts (-want +got):\n%s", diff)
			}
			if len(lines) != len(tt.lines) {
				t.Fatalf("the log has %q, want %q", lines, tt.lines)
			}
			for i, want := range tt.lines {
				for _, word := range strings.Fields(want) {
					if !strings.Contains(lines[i], word) {
						t.Errorf("line %d is %s, want %s", i, lines[i], want)
					}
				}
			}
		})
	}
}

func looked(found []Leftover, err error) func(*watch) { return func(w *watch) { w.look(found, err) } }
