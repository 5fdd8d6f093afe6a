package verb

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/nftproxy/nftproxy/nft"
)

// comparer compares the ways of real packets with what explain expects by rules that were read.
type comparer struct {
	conn      *nft.Conn
	rules     *ruledump.Snapshot
	frontends []*compiler.Frontend
	evaluator *evaluator.Evaluator
	// others are tables of other programs that packets came through, with their chains.
	others []*nft.Table
}

// use takes the rules to explain with.
func (c *comparer) use(rules *ruledump.Snapshot) (err error) {
	// The clients of session affinity, which are in no snapshot, come as candidate.added.
	none := func(*nft.Table, string, nft.Data) (element nft.Element, found bool, err error) {
		return element, false, nil
	}
	host := rules.Host
	host.Addresses, host.Lookup = rules.Addresses, none
	c.rules, c.evaluator = rules, evaluator.New(rules.Tables, host)
	c.frontends, err = rules.Frontends()
	return err
}

// The reasons that only real packets have.
const (
	ReasonEstablished Reason = "established" // a later packet of a connection, which conntrack translates as the first
	ReasonUnanswered  Reason = "unanswered"  // the same, but nothing has answered the connection
	ReasonKernel      Reason = "kernel"      // no rule decided: the packet did not come to the next hook
)

// compare finds out which of the fates that explain expects is the packet's. The printed path is made of both. A fate has
// the elements that rules found, which the kernel does not report; the trace has what tables of other programs did, which
// explain may not know.
func (c *comparer) compare(p *underway) (*tracedPacket, error) {
	packet := p.packet()
	out := &tracedPacket{document: documentOf("Trace"), Time: p.begun.UTC(), Packet: packet.String()}
	w := c.way(p)
	if w.unfinished() {
		w.result = evaluator.Dropped
	}
	e := &Explanation{nodeDocument: aboutNode("Trace", c.rules), packet: packet, rules: c.rules}
	e.findFrontends(c.frontends)
	fate := evaluator.Fate{Result: w.result, Destination: p.latest.Destination, Path: w.path} // as the trace alone has it
	expected, found, err := c.expected(e, w, p)
	agrees := found != nil
	if agrees {
		fate = found.fate
		fate.Path = w.merge(fate.Path)
		if w.stopped {
			fate.Result = evaluator.Dropped
		}
	}
	e.add(&evaluator.Outcome{Fate: fate, Destinations: []netip.AddrPort{fate.Destination}})
	o := &e.Outcomes[0]
	out.Outcome, out.ServicePort = o, e.ServicePort
	switch {
	case agrees && fate.Failure != "":
		o.Why = "no rule dropped it: " + o.Why
	case agrees && found.connection != nil && found.connection.Unanswered && fate.Result == evaluator.Delivered:
		o.Reason, o.Source, o.SourceReason = ReasonUnanswered, "", ""
		o.Why = "retransmission: nothing has answered; look behind " + fate.Destination.Addr().String()
	case agrees && found.connection != nil:
		o.Reason, o.Source, o.SourceReason = ReasonEstablished, "", ""
		o.Why = "conntrack: the connection is established, so NAT chains do not see the packet"
	case agrees:
	case w.unfinished():
		o.Reason, o.Result, o.Source, o.head = ReasonKernel, "dropped", "", "dropped before the next hook"
		o.Why = "no rule dropped it, and no route explains it: the kernel did (conntrack), unless a program holds it in a queue"
	case w.result == evaluator.Delivered:
		o.Reason, o.Source, o.Why = ReasonOther, "", "explain expects another way"
	default:
		o.Reason = ReasonOther
	}
	switch {
	case agrees:
		out.Agrees = &agrees
	case p.lost:
		out.Expected = []string{"steps were lost"}
	case err != nil:
		out.Expected = []string{err.Error()}
	default:
		out.Agrees = &agrees
		for _, o := range expected.Outcomes() {
			out.Expected = append(out.Expected, o.Head(explainShown))
		}
	}
	w.blame(o)
	return out, nil
}

// candidate is what the kernel may have known about a packet's client when the packet came. A trace does not show it.
type candidate struct {
	// connection is conntrack's entry; nil for the first packet of a connection.
	connection *evaluator.Connection
	// added are the clients that maps of session affinity have now, as far as they matter for the packet.
	added []evaluator.Added
}

// expectedFate is a fate that explain expects if a candidate is right.
type expectedFate struct {
	candidate
	fate evaluator.Fate
}

// expected looks for the packet's fate among those that explain expects: of a new client; of a connection that conntrack
// has; and of a client that session affinity keeps at an endpoint. The maps are read last, since a packet that explain
// expects of a new client may have added the client itself. all are the fates of a new client; found is nil if no
// candidate has the packet's fate.
func (c *comparer) expected(e *Explanation, w *way, p *underway) (all evaluator.Fates, found *expectedFate, err error) {
	to := p.latest.Destination
	try := func(k candidate) (evaluator.Fates, *expectedFate, error) {
		packet := e.packet
		packet.Connection = k.connection
		fates, err := c.evaluator.Fates(packet, k.added...)
		if i := slices.IndexFunc(fates, func(fate evaluator.Fate) bool { return w.is(&fate, p) }); i >= 0 {
			return fates, &expectedFate{k, fates[i]}, nil
		}
		return fates, nil, err
	}
	if all, found, err = try(candidate{}); found != nil || err != nil {
		return all, found, err
	}
	for _, known := range []evaluator.Connection{{}, {Masqueraded: true}, {Unanswered: true}, {Unanswered: true, Masqueraded: true}} {
		known.Destination = to
		k := candidate{connection: &known}
		if _, found, err = try(k); found != nil || err != nil {
			return all, found, err
		}
	}
	k := candidate{}
	if k.added, err = c.clients(e); err == nil && len(k.added) > 0 {
		_, found, err = try(k)
	}
	return all, found, err
}

// clients returns the packet's client in the maps of session affinity of its frontends. A map without the client may be
// full; then all its clients matter, because it takes no other.
func (c *comparer) clients(e *Explanation) (added []evaluator.Added, err error) {
	source := nft.AddrData(e.packet.Source.Addr())
	for _, f := range e.frontends() {
		t := c.rules.Table(f.Family)
		for _, name := range f.AffinityMaps {
			set := t.Set(name)
			if set == nil {
				continue
			}
			clients, err := c.rules.ReadClients(t, set)
			if err != nil {
				return nil, err
			}
			isClient := func(element nft.Element) bool { return element.Key == source }
			if i := slices.IndexFunc(clients, isClient); i >= 0 {
				clients = clients[i : i+1]
			} else if len(clients) < int(cmp.Or(set.Size, nft.DefaultSize)) {
				clients = nil
			}
			for _, element := range clients {
				added = append(added, evaluator.Added{Family: t.Family, Table: t.Name, Map: name, Element: element})
			}
		}
	}
	return added, nil
}

// unfinished reports whether the last step is at a hook from which a packet goes on to another.
func (w *way) unfinished() bool {
	var last nft.Hook
	for _, s := range w.path {
		if s.Table.Family.Routes() {
			last = s.Hook
		}
	}
	if last == "" {
		return true
	}
	return w.result != evaluator.Refused && !w.stopped && w.path[len(w.path)-1].Decision != nft.Drop && (last == nft.HookPrerouting || last == nft.HookOutput)
}
