package verb

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/internal/ruledump"
)

// placed prints an address with its pod and its place, as far as they are known: "10.244.1.5:8080=shop/web-1@node-1/zone-a".
// Commands take it as an address.
func placed(address string, p ruledump.Place) string {
	if p.Pod != "" {
		address += "=" + p.Pod
	}
	if where := strings.Trim(p.Node+"/"+p.Zone, "/"); where != "" {
		address += "@" + where
	}
	return address
}

// unplaced cuts off what placed adds to an address.
func unplaced(text string) string {
	if at := strings.IndexAny(text, "=@"); at >= 0 {
		text = text[:at]
	}
	return text
}

// podsOf returns the places of the addresses whose pod is known; nil for none.
func podsOf(s *ruledump.Snapshot, addresses ...netip.Addr) (places map[netip.Addr]ruledump.Place) {
	for _, addr := range addresses {
		if p := s.Places[addr]; p.Pod != "" {
			if places == nil {
				places = map[netip.Addr]ruledump.Place{}
			}
			places[addr] = p
		}
	}
	return places
}

// findPlaces finds the pods of the client and of the destinations.
func (e *Explanation) findPlaces() {
	addresses := []netip.Addr{e.packet.Source.Addr()}
	for i := range e.Outcomes {
		for _, to := range e.Outcomes[i].Destinations {
			addresses = append(addresses, to.Addr())
		}
	}
	e.Places = podsOf(e.rules, addresses...)
}

func (e *Explanation) printPlaces(p *Page) {
	for i, addr := range slices.SortedFunc(maps.Keys(e.Places), netip.Addr.Compare) {
		if i == 0 {
			p.WriteByte('\n')
		}
		if i == explainShown {
			p.more(len(e.Places)-i, "… and %d more\n")
			break
		}
		p.printf("%s\n", placed(addr.String(), e.Places[addr]))
	}
}
