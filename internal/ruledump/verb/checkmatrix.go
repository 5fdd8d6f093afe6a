package verb

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/nftproxy/nftproxy/nft"
)

// checker fills in a Check. It walks one packet for each cell of the matrix with what Explain walks packets with, and
// collects the causes of all that do not arrive.
type checker struct {
	*Check
	rules     *ruledump.Snapshot
	frontends []*compiler.Frontend
	clients   []clientKind
	network   *network
	eval      *evaluator.Evaluator
	// explains finds the rule of another program that ended a packet's way, as explain does.
	explains *Explanation
	causes   map[causeKey]*cause
	// cells has the cause of each cell, in the order of frontends and clients; nil for none.
	cells []*cause
	// live says that the rules are those of the running kernel, which can be asked for more.
	live bool
	// flows are the connections of endpoints; nil if they are not known.
	flows map[netip.AddrPort]flowCount
}

// checkPatience bounds the time in which the matrix is filled. 10,000 Services with two endpoints take some seconds.
const checkPatience = 30 * time.Second

// maxCheckers bounds the processors that a check takes from a node.
const maxCheckers = 4

// newChecker checks frontends, which are some of all.
func newChecker(s *ruledump.Snapshot, all, frontends []*compiler.Frontend) *checker {
	tables, host := s.Walked()
	host.Ask = nil // a question for each packet would take minutes; the routes that were read tell the same
	e := &checker{
		Check: &Check{
			nodeDocument: aboutNode("Check", s), Taken: s.Taken, Verdict: verdictWorks, Findings: []CheckFinding{}, Clients: []CheckClient{},
			Services: []CheckService{}, Endpoints: []CheckEndpoint{}, NotLookedAt: s.NotLookedAt, rules: s, Proxy: CheckProxy{State: "unknown"},
		},
		rules: s, frontends: frontends, eval: evaluator.New(tables, host), causes: map[causeKey]*cause{}, explains: &Explanation{rules: s},
	}
	e.network = newNetwork(s, all, e.eval)
	e.clients = e.network.clients()
	for i := range e.clients {
		e.Clients = append(e.Clients, e.clients[i].CheckClient)
	}
	return e
}

// checkRow is a frontend with what was found about its cells.
type checkRow struct {
	cells    []int
	troubles [][]trouble
	packets  []evaluator.Packet
}

// walk fills the matrix. progress is called with the numbers of frontends that are done and of all, from several goroutines.
func (e *checker) walk(ctx context.Context, progress func(done, all int)) {
	ctx, stop := context.WithTimeout(ctx, checkPatience)
	defer stop()
	rows := make([]checkRow, len(e.frontends))
	var next, done atomic.Int64
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(rows), maxCheckers) {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(rows) && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				rows[i] = e.row(e.frontends[i])
				progress(int(done.Add(1)), len(rows))
			}
		})
	}
	workers.Wait()
	if left := len(rows) - int(done.Load()); left > 0 {
		e.noTime(fmt.Sprintf("%d of %d addresses of Services: there was no time for them; give a Service or a namespace", left, len(rows)))
	}
	for i, f := range e.frontends {
		e.addRow(f, &rows[i])
	}
}

func (e *checker) notLooked(what string) { e.NotLookedAt = append(slices.Clip(e.NotLookedAt), what) }

// noTime says what there was no time for. It may be broken.
func (e *checker) noTime(what string) {
	e.notLooked(what)
	e.Verdict = verdictUnknown
}

// row walks the packets of all kinds of clients to a frontend.
func (e *checker) row(f *compiler.Frontend) (r checkRow) {
	for i := range e.clients {
		p, applies := e.packet(&e.clients[i], f)
		r.packets = append(r.packets, p)
		if !applies {
			r.cells, r.troubles = append(r.cells, cellNone), append(r.troubles, nil)
			continue
		}
		fates, err := e.eval.Fates(p)
		if errors.Is(err, evaluator.UnknownSourcePort) {
			p.Source = netip.AddrPortFrom(p.Source.Addr(), 40000)
			r.packets[i] = p
			fates, err = e.eval.Fates(p)
		}
		cell, troubles := cellWorks, []trouble(nil)
		if err != nil {
			cell, troubles = cellUndecided, []trouble{{causeKey: causeKey{text: "not known: " + err.Error()}, undecided: true, unknown: true}}
		}
		for j := range fates {
			if t := e.troubleOf(f, &e.clients[i], p, &fates[j]); t != nil {
				troubles = append(troubles, *t)
			}
		}
		r.cells, r.troubles = append(r.cells, cell), append(r.troubles, troubles)
	}
	return r
}

// packet returns the first packet of a client to a frontend. It reports false if no such client has a right to be served: a
// ClusterIP is for clients of the cluster, and their own node translates it, as it does the addresses of load balancers.
func (e *checker) packet(k *clientKind, f *compiler.Frontend) (p evaluator.Packet, applies bool) {
	switch f.Kind {
	case compiler.FrontendClusterIP:
		applies = k.Kind == clientPod || k.Kind == clientNode
	case compiler.FrontendNodePort:
		applies = true
	default:
		applies = k.Kind != clientElsewhere
	}
	to := f.Addr
	if f.Kind == compiler.FrontendNodePort {
		to = e.network.nodePortAddr(f.Family)
	}
	sources := k.sources[f.Family]
	if !applies || !to.IsValid() || len(sources) == 0 {
		return p, false
	}
	from := sources[0]
	if len(sources) > 1 && slices.ContainsFunc(f.Endpoints, func(a netip.AddrPort) bool { return a.Addr() == from.addr }) {
		from = sources[1] // a pod that dials itself is a case of its own
	}
	p = evaluator.Packet{
		Source: netip.AddrPortFrom(from.addr, 0), Destination: netip.AddrPortFrom(to, f.Port), Protocol: uint8(f.Protocol),
		Local: k.Kind == clientNode, Interface: from.iface,
	}
	if p.Local && f.Kind == compiler.FrontendNodePort {
		p.Source = netip.AddrPortFrom(to, 0)
	}
	return p, true
}

// nodePortAddr is an address of the node on which node ports answer; the zero Addr for none.
func (n *network) nodePortAddr(family nft.Family) netip.Addr {
	t := n.rules.Table(family)
	if t == nil {
		return netip.Addr{}
	}
	for _, in := range compiler.NodePortPrefixes(t) {
		for _, addr := range n.node {
			if in.Contains(addr) && !addr.IsLoopback() && !addr.IsLinkLocalUnicast() {
				return addr
			}
		}
	}
	return netip.Addr{}
}

// addRow adds a frontend to the matrix, and its troubles to the causes.
func (e *checker) addRow(f *compiler.Frontend, r *checkRow) {
	s := CheckService{f.ServicePort, addressOf(f) + "/" + f.Protocol.String(), string(f.Kind), r.cells}
	if addr := e.network.nodePortAddr(f.Family); f.Kind == compiler.FrontendNodePort && addr.IsValid() {
		s.Address = netip.AddrPortFrom(addr, f.Port).String() + "/" + f.Protocol.String()
	}
	if r.cells == nil {
		s.Cells = slices.Repeat([]int{cellUndecided}, len(e.clients))
	}
	e.Services = append(e.Services, s)
	for i := range e.clients {
		var worst *cause
		if r.cells != nil {
			hit := map[*cause]bool{}
			for j := range r.troubles[i] {
				c := e.addTrouble(f, i, &r.packets[i], &r.troubles[i][j])
				if !hit[c] {
					hit[c] = true
					c.cells++
				}
				if worst == nil || c.worse(worst) {
					worst = c
				}
			}
		}
		e.cells = append(e.cells, worst)
	}
}

// worse reports whether a cell shows one cause rather than another one.
func (c *cause) worse(than *cause) bool {
	return c.Level == levelBroken && than.Level != levelBroken
}

// maxCauses bounds the findings. Each network without a route is one, and rules may be refused in as many ways as there are
// packets.
const maxCauses = 500

// cause returns the cause with a key, and whether it is new: then it begins as the finding says. All causes beyond maxCauses
// are one.
func (e *checker) cause(key causeKey, begin CheckFinding) (c *cause, isNew bool) {
	if e.causes[key] == nil && len(e.causes) >= maxCauses {
		key = causeKey{text: fmt.Sprintf("causes beyond the first %d", maxCauses)}
	}
	if c = e.causes[key]; c != nil {
		return c, false
	}
	begin.Cause = key.text
	c = &cause{CheckFinding: begin, services: map[string]bool{}, clients: map[string]bool{}, endpoints: map[netip.AddrPort]bool{}, order: len(e.causes)}
	e.causes[key] = c
	return c, true
}

func (e *checker) addTrouble(f *compiler.Frontend, client int, p *evaluator.Packet, t *trouble) *cause {
	c, isNew := e.cause(t.causeKey, CheckFinding{Level: levelRemark, Why: t.why})
	c.undecided = (c.undecided || isNew) && t.undecided
	if t.unknown {
		e.Verdict = verdictUnknown
	}
	level := levelBroken
	if t.asked || t.undecided {
		level = levelRemark
	}
	if c.From == "" || level == levelBroken && c.Level == levelRemark {
		c.Level = level
		c.From, c.To = fromText(p), fmt.Sprintf("%s/%s", p.Destination, f.Protocol)
		c.More = fmt.Sprintf("ruledump explain --from %s --to %s", c.From, c.To)
	}
	c.services[f.ServicePort] = true
	if name := e.clients[client].Name; !c.clients[name] {
		c.clients[name] = true
		c.Clients = append(c.Clients, name)
	}
	if t.endpoint.IsValid() {
		c.endpoints[t.endpoint] = true
	}
	return c
}

// fromText is a packet's source as explain takes it.
func fromText(p *evaluator.Packet) string {
	source := p.Source.String()
	if p.Source.Port() == 0 {
		source = p.Source.Addr().String()
	}
	if p.Interface != "" {
		source = source + "%" + p.Interface
	}
	return source
}
