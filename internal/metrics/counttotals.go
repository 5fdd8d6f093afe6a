package metrics

import (
	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/nft"
)

// ServiceCount counts the connections of a Service port through its frontends of both IP families, since the process
// began to count. It does not decrease while the Service port exists, also if the tables are replaced.
type ServiceCount struct {
	// ServicePort is such as "shop/web:http", or the Service, of clients that dial another port of its ClusterIP. It is empty
	// for the sum of all beyond the first 1000, and of clients of addresses that no Service holds.
	ServicePort string
	// Connections were sent to an endpoint. Bytes is the length of their packets in both directions.
	Connections, Bytes uint64
	// Refused are packets of clients that were refused or dropped, by their reason; those of the first kinds are 0.
	Refused [compiler.CountedKinds]uint64
}

// unseenReadings is the number of incomplete readings without an element after which it counts as gone.
const unseenReadings = 10

// countTotals adds up counters by Service port.
type countTotals struct {
	maxPorts int
	// sets holds the last count of each element.
	sets map[countSet]*setCounts
	// ports holds at most maxPorts counts, by Service port. others is the sum of all others.
	ports  map[string]*ServiceCount
	others ServiceCount
}

type setCounts struct {
	elements countReading
	// readings counts the readings. known says that one was whole. An element that is first read before that may have
	// counted for long, for example while another process ran. So only the increase from then on counts.
	readings int
	known    bool
}

type elementCount struct {
	port    string
	counted compiler.Counted
	last    nft.Count
	// reading is the last reading that had the element.
	reading int
}

func newCountTotals(maxPorts int) countTotals {
	return countTotals{maxPorts: maxPorts, sets: map[countSet]*setCounts{}, ports: map[string]*ServiceCount{}}
}

// countReading is one reading of a set. It is kept apart until it is complete, because it takes long.
type countReading map[nft.Data]elementCount

func (r countReading) add(set string, e nft.Element, n nft.Count) {
	r[e.Key] = elementCount{port: e.Comment, counted: compiler.CountedBy(set, e), last: n}
}

// addReading adds the increase since the previous reading of the set. whole says that the reading has all elements.
func (t *countTotals) addReading(set countSet, r countReading, whole bool) {
	s := t.sets[set]
	if s == nil {
		s = &setCounts{elements: countReading{}}
		t.sets[set] = s
	}
	s.readings++
	for key, now := range r {
		now.reading = s.readings
		before, seen := s.elements[key]
		switch {
		case seen:
			t.add(now, since(before.last, now.last))
		case s.known:
			t.add(now, now.last)
		}
		s.elements[key] = now
	}
	s.known = s.known || whole
	for key, e := range s.elements {
		if unseen := s.readings - e.reading; unseen > 0 && whole || unseen >= unseenReadings {
			delete(s.elements, key)
		}
	}
	t.dropUnnamed()
}

// since returns the increase between two readings. A counter that decreased has begun anew.
func since(before, now nft.Count) nft.Count {
	if now.Packets < before.Packets || now.Bytes < before.Bytes {
		return now
	}
	return nft.Count{Packets: now.Packets - before.Packets, Bytes: now.Bytes - before.Bytes}
}

func (t *countTotals) add(e elementCount, n nft.Count) {
	if n == (nft.Count{}) {
		return
	}
	total := t.ports[e.port]
	switch {
	case total != nil:
	case e.port == "":
		total = &t.others
	case len(t.ports) < t.maxPorts:
		total = &ServiceCount{ServicePort: e.port}
		t.ports[e.port] = total
	default:
		total = &t.others
	}
	switch e.counted {
	case compiler.CountedConnections:
		total.Connections += n.Packets
	case compiler.CountedTraffic:
		total.Bytes += n.Bytes
	default:
		if e.counted.Refused() {
			total.Refused[e.counted] += n.Packets
		}
	}
}

// dropUnnamed drops the counts of Service ports that no element names any more, which makes room for others.
func (t *countTotals) dropUnnamed() {
	if len(t.ports) == 0 {
		return
	}
	named := make(map[string]bool, len(t.ports))
	for _, s := range t.sets {
		for _, e := range s.elements {
			if t.ports[e.port] != nil {
				named[e.port] = true
			}
		}
	}
	for port := range t.ports {
		if !named[port] {
			delete(t.ports, port)
		}
	}
}

func (t *countTotals) each(each func(ServiceCount)) {
	for _, total := range t.ports {
		each(*total)
	}
	if t.others != (ServiceCount{}) {
		each(t.others)
	}
}
