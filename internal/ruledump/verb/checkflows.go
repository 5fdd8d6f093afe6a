package verb

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/nftproxy/nftproxy/conntrack"
	"golang.org/x/sys/unix"
)

// Limits of what connection tracking says.
const (
	// fullPercent of the limit is a table that is about to drop new connections.
	fullPercent = 95
	// fewUnanswered connections without an answer are no news: a packet is lost, a client has just begun.
	fewUnanswered = 3
)

// addConntrack adds what connection tracking says: the state of the table, and connections that nothing answers.
func (e *checker) addConntrack(ctx context.Context, from *source) {
	if err := e.readTable(ctx); err != nil {
		e.notLooked("conntrack's counters: " + err.Error())
	}
	e.checkTable()
	ctx, stop := context.WithTimeoutCause(ctx, partPatience, fmt.Errorf("not read within %v", partPatience))
	defer stop()
	index := &flowIndex{from: from}
	err := index.build(e.rules)
	if err == nil {
		var flows flowCounts
		flows, err = index.countFlows(ctx)
		e.addFlows(index, flows)
	}
	switch {
	case err == nil:
	case ctx.Err() != nil:
		e.noTime("connections: " + context.Cause(ctx).Error())
	default:
		e.notLooked("connections: " + err.Error())
	}
}

// readTable reads the counters of the kernel, or of a report.
func (e *checker) readTable(ctx context.Context) error {
	if !e.live {
		return e.readReportedTable()
	}
	conn, err := conntrack.Dial(0)
	if err != nil {
		return err
	}
	stats, err := conn.TableStats(ctx)
	if err == nil {
		e.Conntrack = &CheckConntrack{stats.Entries, stats.Limit, stats.InsertFailed, stats.Drop, stats.EarlyDrop}
	}
	return err
}

// readReportedTable reads the sysctls and the file of the kernel's counters that a report has.
func (e *checker) readReportedTable() error {
	report, err := fromFile[Report](e.rules, "report.json")
	if err == nil && report == nil {
		err = errors.New("the dump has none; a file that \"ruledump report\" wrote has")
	}
	if err != nil {
		return err
	}
	number := func(name string) uint64 {
		n, _ := strconv.ParseUint(report.Sysctls["net/netfilter/"+name], 10, 64)
		return n
	}
	t := &CheckConntrack{Entries: number("nf_conntrack_count"), Limit: number("nf_conntrack_max")}
	fields := map[string]*uint64{"insert_failed": &t.InsertFailed, "drop": &t.Drop, "early_drop": &t.EarlyDrop}
	var names []string
	for line := range strings.Lines(string(e.rules.Files["conntrack-counters.txt"])) { // a line for each processor
		values := strings.Fields(line)
		for i, name := range names {
			if field := fields[name]; field != nil && i < len(values) {
				n, _ := strconv.ParseUint(values[i], 16, 64)
				*field += n
			}
		}
		if names == nil {
			names = values
		}
	}
	e.Conntrack = t
	return nil
}

// checkTable looks whether the table is full.
func (e *checker) checkTable() {
	t := e.Conntrack
	switch {
	case t == nil:
	case t.Limit > 0 && t.Entries >= t.Limit/100*fullPercent:
		e.fact(levelBroken, fmt.Sprintf("the connection table is full: %d of %d entries", t.Entries, t.Limit),
			"the kernel drops new connections of all programs; conntrack.maxPerCore and conntrack.min of the proxy's configuration set the limit", "ruledump connections --by client")
	case t.Drop > 0:
		e.fact(levelRemark, fmt.Sprintf("connection tracking has dropped packets: %d", t.Drop), "the table was full at some time since the boot", "conntrack -S")
	}
}

// addFlows counts the connections of each endpoint, and adds a finding for those that nothing answers.
func (e *checker) addFlows(index *flowIndex, flows flowCounts) {
	e.flows = map[netip.AddrPort]flowCount{}
	silent := map[netip.AddrPort]flowCount{}
	for key, n := range flows.byEndpoint() {
		e.flows[key.at] = e.flows[key.at].plus(n)
		if uint8(key.protocol) == unix.IPPROTO_TCP && n.Unanswered >= fewUnanswered && n.Unanswered >= n.Active {
			silent[key.at] = n
		}
	}
	if len(silent) > 0 {
		unanswered, all := 0, 0
		for _, n := range silent {
			unanswered, all = unanswered+n.Unanswered, all+n.all()
		}
		c := e.fact(levelBroken, fmt.Sprintf("endpoints do not answer: %d of their %d connections", unanswered, all),
			"packets reach them by the rules of this node; what is behind drops them, such as a rule in the pod or on its node", "ruledump connections --unanswered --by endpoint")
		e.hit(c, func(at netip.AddrPort) bool { return silent[at].Unanswered > 0 })
	}
	e.addHeld(index, flows)
}

// addHeld adds a finding for datagrams that connection tracking sends to endpoints that serve no more.
func (e *checker) addHeld(index *flowIndex, flows flowCounts) {
	var c *cause
	held := 0
	for _, f := range e.frontends {
		if uint8(f.Protocol) != unix.IPPROTO_UDP {
			continue
		}
		for server, n := range flows[keyOf(f)] {
			if alive := n.Active + n.Unanswered; alive > 0 && !index.serves(f)[server] {
				if held += alive; c == nil {
					c = e.fact(levelBroken, "", "changed rules do not move datagrams that conntrack knows; the proxy deletes such flows, if it runs", "ruledump connections --unserved")
				}
				c.services[f.ServicePort], c.endpoints[server] = true, true
			}
		}
	}
	if c != nil {
		c.Cause = fmt.Sprintf("UDP clients are held by endpoints that no longer serve: %d flows", held)
	}
}
