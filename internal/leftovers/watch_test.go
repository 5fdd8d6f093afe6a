package leftovers

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

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
		// lines are the lines of the log, abridged.
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
			[]string{"left rules behind iptables-nft", "Cannot find no"}, map[Kind]int{NFT: 7}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var lines []string
			var last map[Kind]int
			w := &watch{Options: Options{OnLook: func(count map[Kind]int, _ Draining, _ bool) { last = count }}}
			w.logger = funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
			for _, look := range tt.looks {
				look(w)
			}
			if diff := cmp.Diff(tt.want, last); diff != "" {
				t.Errorf("counts (-want +got):\n%s", diff)
			}
			expectLines(t, lines, tt.lines)
		})
	}
}

func looked(found []Leftover, err error) func(*watch) { return func(w *watch) { w.look(found, err) } }

func names(all ...string) (n Names) {
	for _, name := range all {
		n.add(name)
	}
	return n
}

// TestWatchRemoves plays passes, a minute apart.
func TestWatchRemoves(t *testing.T) {
	rules := []Leftover{{Kind: Legacy, Count: 7, Example: "ip nat KUBE-SERVICES"}}
	device := append([]Leftover{{Kind: IPVS, Count: 1, Example: "kube-ipvs0"}}, rules...)
	all := Removal{Removed: names("ip nat KUBE-SERVICES", "ip nat KUBE-MARK-MASQ")}
	const removed, conflict = "Removed rules", "Another kube-proxy runs on this node KUBE-SERVICES"
	for _, tt := range []struct {
		name   string
		report bool
		// found has the leftovers that each pass finds first; after a removal it finds remaining.
		found     [][]Leftover
		remaining []Leftover
		removal   Removal
		// back says that what a pass finds after the first removal is what had been removed.
		back     bool
		failure  error
		lines    []string
		removals int
		conflict bool
	}{
		{"what it finds", false, [][]Leftover{rules, nil}, nil, all, false, nil, []string{removed}, 1, false},
		{"nothing where it only reports", true, [][]Leftover{rules}, nil, all, false, nil, []string{"left rules behind"}, 0, false},
		{"the mode ipvs too", false, [][]Leftover{device}, nil, all, false, nil, []string{removed}, 1, false},
		{"again when an old pod was still ending", false, [][]Leftover{rules, rules, nil}, nil, all, true, nil, []string{removed, removed}, 2, false},
		{"not against another kube-proxy that runs", false, [][]Leftover{rules, rules, rules, rules, rules, rules}, nil, all, true, nil,
			[]string{removed, removed, removed, conflict, "left rules behind"}, 3, true},
		{"nor if one look finds none of its rules", false, [][]Leftover{rules, rules, rules, rules, nil, rules}, nil, all, true, nil,
			[]string{removed, removed, removed, conflict, "left rules behind", "are gone", "left rules behind"}, 3, true},
		{"again after an hour without any", false, slices.Concat([][]Leftover{rules, rules, rules, rules}, make([][]Leftover, 60), [][]Leftover{rules}), nil, all, true, nil,
			[]string{removed, removed, removed, conflict, "left rules behind", "are gone", removed}, 4, false},
		{"not what others use, which is said once", false, [][]Leftover{rules, rules, rules, rules, rules}, rules, Removal{Kept: all.Removed}, false, nil,
			[]string{"Kept another program", "left rules behind"}, 5, false},
		{"what it can after a failure, which is said once", false, [][]Leftover{rules, rules}, rules, Removal{}, false, errors.New("no lock"),
			[]string{"Cannot remove no lock", "left rules behind"}, 2, false},
		{"again however often a removal fails half way", false, [][]Leftover{rules, rules, rules, rules, rules}, rules, all, false, errors.New("no lock"),
			[]string{removed, "Cannot remove no lock", "left rules behind", removed, removed, removed, removed}, 5, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var lines []string
			var conflict bool
			w := &watch{Options: Options{Synced: make(chan struct{}), OnLook: func(_ map[Kind]int, _ Draining, c bool) { conflict = c }}}
			w.logger = funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
			if tt.report {
				w.Synced = nil
			}
			removals := 0
			w.back = func(found []Leftover) string {
				if len(found) == 0 || removals == 0 || !tt.back {
					return ""
				}
				return tt.removal.Removed.First[0]
			}
			w.remove = func(context.Context, []Leftover) (Removal, error) {
				removals++
				return tt.removal, tt.failure
			}
			for i, found := range tt.found {
				before := removals
				w.find = func(context.Context) ([]Leftover, error) {
					if removals > before {
						return tt.remaining, nil
					}
					return found, nil
				}
				w.pass(t.Context(), time.Unix(int64(60*i), 0))
			}
			if removals != tt.removals || conflict != tt.conflict {
				t.Errorf("%d removals, conflict %v; want %d and %v", removals, conflict, tt.removals, tt.conflict)
			}
			expectLines(t, lines, tt.lines)
		})
	}
}

// TestWatchBesideASlowKubeProxy plays three hours beside a kube-proxy that runs, and needs 90 s to write its rules.
func TestWatchBesideASlowKubeProxy(t *testing.T) {
	rules := []Leftover{{Kind: NFT, Count: 7, Example: "ip nat KUBE-SERVICES"}}
	begin := time.Unix(0, 0)
	now, written, removals, conflicts := begin, begin, 0, 0
	w := &watch{Options: Options{Synced: make(chan struct{}), OnLook: func(map[Kind]int, Draining, bool) {}}}
	w.logger = funcr.New(func(_, args string) { conflicts += strings.Count(args, "Another kube-proxy runs") }, funcr.Options{})
	w.find = func(context.Context) ([]Leftover, error) {
		if now.Before(written) {
			return nil, nil
		}
		return rules, nil
	}
	w.back = func(found []Leftover) string {
		if len(found) == 0 || removals == 0 {
			return ""
		}
		return found[0].Example
	}
	w.remove = func(context.Context, []Leftover) (Removal, error) {
		removals++
		written = now.Add(90 * time.Second)
		return Removal{Removed: names("ip nat KUBE-SERVICES")}, nil
	}
	for ; now.Sub(begin) < 3*time.Hour; now = now.Add(w.pause(now)) {
		w.pass(t.Context(), now)
	}
	if removals != conflictReturns || conflicts != 1 || !w.conflict {
		t.Errorf("%d removals, %d lines, conflict %v; want %d and one line", removals, conflicts, w.conflict, conflictReturns)
	}
}

// TestWatchDrains plays passes, ten seconds apart, over what the mode ipvs left.
func TestWatchDrains(t *testing.T) {
	device := []Leftover{{Kind: IPVS, Count: 1, Example: "kube-ipvs0"}}
	some := Draining{VirtualServers: 2, Connections: 5, Addresses: 1}
	idle := Removal{Removed: names("virtual server tcp 10.96.0.1:443"), Draining: some}
	const removed, keep, conflict = "Removed virtual", "Connections keep connections=5", "Another kube-proxy runs on this node"
	for _, tt := range []struct {
		name     string
		removals []Removal
		// back says that each pass but the first finds what had been removed.
		back     bool
		lines    []string
		draining Draining
		conflict bool
	}{
		{"says once what connections keep", []Removal{idle, {Draining: some}, {Draining: some}}, false, []string{removed, keep}, some, false},
		{"ends", []Removal{idle, {Removed: names(ipvsDevice)}}, false, []string{removed, keep, "Removed kube-ipvs0", "are gone ipvs"}, Draining{}, false},
		{"says what it ends", []Removal{{Removed: names(ipvsDevice), Ended: 3}}, false, []string{"Removed kube-ipvs0", "Ended connections=3"}, Draining{}, false},
		{"is no conflict by itself", []Removal{idle, idle, idle, idle, idle}, false, []string{removed, keep, removed, removed, removed, removed}, some, false},
		{"stops when another kube-proxy runs", []Removal{idle, idle, idle, idle, idle, idle}, true, []string{removed, keep, removed, removed, conflict}, Draining{}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var lines []string
			var draining Draining
			var conflict bool
			w := &watch{Options: Options{Synced: make(chan struct{}), OnLook: func(_ map[Kind]int, d Draining, c bool) { draining, conflict = d, c }}}
			w.logger = funcr.New(func(_, args string) { lines = append(lines, strings.ReplaceAll(args, `"`, "")) }, funcr.Options{})
			for i, removal := range tt.removals {
				found := device
				w.find = func(context.Context) ([]Leftover, error) { return found, nil }
				w.back = func([]Leftover) string {
					if i == 0 || !tt.back {
						return ""
					}
					return idle.Removed.First[0]
				}
				w.remove = func(context.Context, []Leftover) (Removal, error) {
					if slices.Contains(removal.Removed.First, ipvsDevice) {
						found = nil
					}
					return removal, nil
				}
				w.pass(t.Context(), time.Unix(int64(10*i), 0))
			}
			if diff := cmp.Diff(tt.draining, draining); diff != "" || conflict != tt.conflict {
				t.Errorf("conflict %v, want %v; draining (-want +got):\n%s", conflict, tt.conflict, diff)
			}
			expectLines(t, lines, tt.lines)
		})
	}
}

// expectLines compares the log with the words that its lines must have.
func expectLines(t *testing.T, lines, want []string) {
	t.Helper()
	if len(lines) != len(want) {
		t.Fatalf("the log has %q, want %q", lines, want)
	}
	for i := range want {
		for _, word := range strings.Fields(want[i]) {
			if !strings.Contains(lines[i], word) {
				t.Errorf("line %d is %s, want %s", i, lines[i], want[i])
			}
		}
	}
}
