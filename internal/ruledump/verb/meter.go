package verb

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/conntrack"
	"github.com/nftproxy/nftproxy/nft"
)

// meter measures the traffic of Service ports in rounds.
type meter struct {
	options topOptions
	conn    *nft.Conn
	filter  Filter
	// selected are the Service ports that the filter selects; nil for all.
	selected map[string]bool
	sets     []*meteredSet
	// history has the rounds of the last minute, the oldest first, of Service ports that had any traffic then.
	history map[string][]traffic

	// events says that no set counts connections. Then they are those that began since the last round.
	events      bool
	mu          sync.Mutex // guards index, connections and lost while events come
	index       *flowIndex
	connections map[string]int
	lost        bool
	counted     time.Time
}

// meteredSet is a set of the rules whose elements count.
type meteredSet struct {
	table    *nft.Table
	name     string
	elements map[nft.Data]meteredElement
	// known says that elements holds all that there were once: the count of a new element is then all traffic of a round.
	known bool
	read  time.Time
}

type meteredElement struct {
	count nft.Count
	read  time.Time
}

// traffic holds the rates of a Service port, per second.
type traffic struct {
	Connections float64 `json:"connections"` // new connections a second
	// Packets: packets of both directions a second; conntrack's events have none
	Packets float64 `json:"packets,omitempty"`
	Bytes   float64 `json:"bytes,omitempty"` // bytes of both directions a second; conntrack's events have none
	// refused are packets of clients that were refused or dropped, by reason. Only the rules count them.
	refused [compiler.CountedKinds]float64
}

// by returns the number for a value of --sort; 0 for the name.
func (t traffic) by(key string) float64 {
	switch key {
	case "connections":
		return t.Connections
	case "packets":
		return t.Packets
	case "bytes":
		return t.Bytes
	case "refused":
		sum := 0.0
		for _, n := range t.refused {
			sum += n
		}
		return sum
	}
	return 0
}

// newMeter takes an index of all Services. It is an error if the filter selects none.
func newMeter(index *flowIndex, filter Filter, o topOptions) (*meter, error) {
	m := &meter{options: o, conn: index.from.conn, filter: filter, index: index, history: map[string][]traffic{}, connections: map[string]int{}, events: true}
	for _, t := range index.rules.Tables {
		for _, s := range t.Sets {
			if s.Counter {
				m.sets = append(m.sets, &meteredSet{table: t, name: s.Name, elements: map[nft.Data]meteredElement{}})
				m.events = m.events && compiler.CountedBy(s.Name, nft.Element{}) != compiler.CountedConnections
			}
		}
	}
	if err := m.choose(); err != nil {
		return nil, err
	}
	if m.selected != nil && len(m.selected) == 0 {
		return nil, filter.notFound()
	}
	return m, nil
}

// choose looks up in the rules which Service ports the filter selects.
func (m *meter) choose() error {
	if m.filter.isAll() {
		return nil
	}
	m.selected = map[string]bool{}
	frontends, err := frontendsOf(m.index.rules, m.filter)
	for _, f := range frontends {
		service, _, _ := strings.Cut(f.ServicePort, ":") // clients of a port that it does not have
		m.selected[f.ServicePort], m.selected[service] = true, true
	}
	return err
}

// readingShare limits reading to one part in so many of the time.
const readingShare = 5

// run shows each round, until there were enough, ctx ends or show returns an error.
func (m *meter) run(ctx context.Context, show func(*Rates) error) error {
	failed := make(chan error, 1)
	if m.events {
		if readSysctl("net.netfilter.nf_conntrack_events") == 0 {
			return errNoEvents
		}
		ready := make(chan struct{})
		go func() { failed <- m.follow(ctx, func() { close(ready) }) }()
		select {
		case <-ready:
		case err := <-failed:
			return err
		}
	}
	m.counted = time.Now()
	for round := 0; ; round++ {
		begun := time.Now()
		r, err := m.round(ctx)
		if err == nil && round > 0 { // the first one has nothing to compare with
			err = show(r)
		}
		if err != nil {
			return err
		}
		if round > 0 && round == m.options.rounds {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-failed:
			return err
		case <-time.After(max(m.options.interval-time.Since(begun), (readingShare-1)*time.Since(begun))):
		}
	}
}

// follow counts connections as they begin.
func (m *meter) follow(ctx context.Context, ready func()) error {
	conn, err := conntrack.Dial(0)
	if err != nil {
		return err
	}
	return conn.Follow(ctx, ready, func(e conntrack.Event) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.lost = m.lost || e.Lost; e.Lost || e.Ended {
			return nil
		}
		if f := m.index.frontend(&e.Flow); f != nil {
			m.connections[f.ServicePort]++
		}
		return nil
	})
}

// round returns the traffic since the last round.
func (m *meter) round(ctx context.Context) (*Rates, error) {
	r := &Rates{nodeDocument: aboutNode("Rates", m.index.rules), Time: time.Now().UTC(), From: "counters", Services: []*serviceRate{}, options: m.options}
	ports := map[string]traffic{}
	if m.events {
		r.From = "events"
		m.takeConnections(r, ports)
	}
	for _, s := range m.sets {
		// The tables may be made anew at this moment.
		if err := m.read(ctx, s, ports); err != nil {
			r.Problem = err.Error()
		}
	}
	maps.DeleteFunc(ports, func(name string, _ traffic) bool { return m.selected != nil && !m.selected[name] })
	m.remember(ports)
	for name, rounds := range m.history {
		s := &serviceRate{name: name, traffic: ports[name], rounds: slices.Clone(rounds)}
		s.Namespace, s.Service, s.Port = splitServicePort(name)
		for reason, n := range s.refused {
			if n > 0 {
				s.Refused = append(s.Refused, refusedRate{compiler.Counted(reason).String(), n})
			}
		}
		r.Services = append(r.Services, s)
	}
	r.sort(m.options.sort)
	if m.events || m.selected != nil {
		if err := m.refresh(ctx); err != nil {
			r.Problem = err.Error()
		}
	}
	return r, ctx.Err()
}

// takeConnections adds the connections that began since the last round, by conntrack's events.
func (m *meter) takeConnections(r *Rates, ports map[string]traffic) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	for name, n := range m.connections {
		ports[name] = traffic{Connections: float64(n) / now.Sub(m.counted).Seconds()}
	}
	if m.lost {
		r.Problem = "events were lost, so there were more connections"
	}
	m.connections, m.lost, m.counted = map[string]int{}, false, now
}

// read adds what the elements of a set have counted since they were last read.
func (m *meter) read(ctx context.Context, s *meteredSet, ports map[string]traffic) error {
	now := time.Now()
	whole, err := m.conn.Counts(ctx, s.table.Family, s.table.Name, s.name, func(e nft.Element, count nft.Count) {
		before, seen := s.elements[e.Key]
		s.elements[e.Key] = meteredElement{count, now}
		if !seen {
			before.read = s.read
		}
		if !seen && !s.known {
			return
		}
		if count.Packets < before.count.Packets || count.Bytes < before.count.Bytes {
			before.count = nft.Count{} // the element was made anew
		}
		seconds := now.Sub(before.read).Seconds()
		packets, bytes := float64(count.Packets-before.count.Packets)/seconds, float64(count.Bytes-before.count.Bytes)/seconds
		t := ports[e.Comment]
		switch counted := compiler.CountedBy(s.name, e); counted {
		case compiler.CountedConnections:
			t.Connections += packets
		case compiler.CountedTraffic:
			t.Packets, t.Bytes = t.Packets+packets, t.Bytes+bytes
		default:
			if counted.Refused() {
				t.refused[counted] += packets
			}
		}
		ports[e.Comment] = t
	})
	if err != nil {
		return fmt.Errorf("the counters cannot be read: %w", err)
	}
	s.known, s.read = s.known || whole, now
	for key, e := range s.elements {
		if whole && e.read != now {
			delete(s.elements, key)
		}
	}
	return nil
}

// remember adds a round to the history, and drops Service ports without traffic.
func (m *meter) remember(ports map[string]traffic) {
	for name, t := range ports {
		if t != (traffic{}) && m.history[name] == nil {
			m.history[name] = []traffic{}
		}
	}
	for name, rounds := range m.history {
		rounds = append(rounds, ports[name])
		rounds = rounds[max(0, len(rounds)-max(1, int(time.Minute/m.options.interval))):]
		m.history[name] = rounds
		if !slices.ContainsFunc(rounds, func(t traffic) bool { return t != traffic{} }) {
			delete(m.history, name)
		}
	}
}

// refresh reads the rules again if they have changed. Events go on meanwhile.
func (m *meter) refresh(ctx context.Context) error {
	rules, err := rereadKernel(ctx, m.conn, m.index.rules)
	if err != nil || rules == m.index.rules {
		return err
	}
	fresh := &flowIndex{from: m.index.from}
	if err := fresh.build(rules); err != nil {
		return err
	}
	m.mu.Lock()
	m.index = fresh
	m.mu.Unlock()
	return m.choose()
}
