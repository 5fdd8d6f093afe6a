package nft

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// Event is one part of a commit to the nf_tables of a network namespace, or the end of the commit.
type Event struct {
	// Kind is EventGeneration for the end of a commit. For a part it is "table", "chain", "set", "map", "rule",
	// "element", an Object's Kind, or "unknown".
	Kind string
	// Deleted says that the part was deleted; else it was added, or changed.
	Deleted bool
	// Family and Table are the family and the name of the table.
	Family Family
	// In is the name of the chain, set or object; for a rule or an element, of the chain or set that has it.
	Table, In string
	// What is the rule or the element, as nft lists it; empty for other kinds.
	What string
	// Generation is the ruleset's number after the commit. This and the following fields are set at the end of a commit only.
	Generation uint32
	// TID is the id, in the initial PID namespace, of the thread that committed.
	TID uint32
	// PID is the id of the thread's process, from /proc/TID; 0 if the thread has ended since, or if /proc belongs to another
	// PID namespace than the initial one, as in a container without hostPID.
	PID uint32
	// Process is the name of the process, at most 15 bytes. If PID is 0, it is the name of the thread, usually the same.
	Process string
	// Lost says that events were lost, because more came than the socket holds. Then the fields above are empty.
	Lost bool
}

// EventGeneration is the Kind of the end of a commit.
const EventGeneration = "generation"

// String returns the event in a few words, for logs.
func (e Event) String() string {
	switch {
	case e.Lost:
		return "events were lost"
	case e.Kind == EventGeneration:
		return fmt.Sprintf("generation %d by %s", e.Generation, e.Who())
	}
	sign := "+"
	if e.Deleted {
		sign = "-"
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s %s %s %s %s", sign, e.Kind, e.Family, e.Table, e.In, e.What))
}

// Who returns the process that committed, as in "nft (pid 4711)", or the thread, as in "nft (thread 4711)".
func (e Event) Who() string {
	if e.PID == 0 {
		return fmt.Sprintf("%s (thread %d)", e.Process, e.TID)
	}
	return fmt.Sprintf("%s (pid %d)", e.Process, e.PID)
}

// Monitor receives the kernel's description of each commit to the nf_tables of one network namespace, by any program.
//
// While a Monitor is open in any network namespace, the kernel describes every element of every commit in all network
// namespaces, because it checks for members of the multicast group machine-wide. Each description takes 8 KB of the
// kernel's memory until the commit ends. So commits of all programs on the machine take longer (docs/measurements.md). A
// program that only has to notice commits polls Conn.Generation.
//
// Families other than ip and ip6 have no event but the end of the commit.
type Monitor struct {
	*subscription[Event]
	// table is the name of the tables whose parts have events.
	table string
	// sets are the sets of these tables, without elements. Elements and rules are printed with them.
	sets map[identity]*Set
}

// monitorBuffer is the size of the buffer for unread descriptions, in bytes. An element takes some 150.
const monitorBuffer = 32 << 20

// Monitor opens a Monitor in the connection's network namespace. It returns the end of each commit, and before it each part of
// the commit. Parts of tables with another name have the Kind "unknown". If a commit is larger than the socket's buffer, parts
// are lost. The Monitor outlasts the connection. The process needs CAP_NET_ADMIN.
func (c *Conn) Monitor(ctx context.Context, table string) (*Monitor, error) {
	s, err := subscribe(c.namespace, unix.NFNLGRP_NFTABLES, monitorBuffer, Event{Kind: EventGeneration, Lost: true})
	if err != nil {
		return nil, err
	}
	m := &Monitor{subscription: s, table: table, sets: map[identity]*Set{}}
	s.take = m.take
	if err := m.readSets(ctx, c); err != nil {
		return nil, errors.Join(fmt.Errorf("nft: monitor: %w", err), m.Close())
	}
	return m, nil
}

func (m *Monitor) readSets(ctx context.Context, c *Conn) error {
	for _, family := range Families {
		r := reader{conn: c, ctx: ctx, family: family, table: m.table, throughCommits: true}
		t, err := r.header()
		if err == nil && t != nil {
			d := decoder{table: t}
			err = r.list(unix.NFT_MSG_GETSET, d.take)
		}
		if err != nil {
			return fmt.Errorf("read sets: %w", err)
		}
		if t != nil {
			for _, s := range t.Sets {
				m.sets[identity{family, s.Name}] = s
			}
		}
	}
	return nil
}

// newGeneration is the type of the message about a new generation.
const newGeneration = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWGEN

func (m *Monitor) take(r reply) error {
	if r.Header.Type == newGeneration {
		e := Event{Kind: EventGeneration}
		err := e.decodeGeneration(r.Data)
		e.findProcess()
		m.add(e)
		return err
	}
	if r.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || len(r.Data) < nfgenmsgLen {
		return nil
	}
	family, err := familyOf(uint32(r.Data[0]))
	if err != nil {
		return nil
	}
	typ := r.kind()
	e := Event{Deleted: deletions[typ], Family: family, Kind: "unknown"}
	e.Table = netlinkattr.Text(netlinkattr.Find(r.Data[nfgenmsgLen:], attrTable))
	switch {
	case e.Table != m.table:
		m.add(e)
	case typ == unix.NFT_MSG_NEWSETELEM || typ == unix.NFT_MSG_DELSETELEM:
		m.takeElements(r.Data, e)
	default:
		m.decode(&e, typ, r.Data)
		m.add(e)
	}
	return nil
}

func (e *Event) decodeGeneration(data []byte) error {
	return decodeAttributes(data, variables{
		unix.NFTA_GEN_ID: &e.Generation, unix.NFTA_GEN_PROC_PID: &e.TID, unix.NFTA_GEN_PROC_NAME: &e.Process,
	}.Take)
}

// initialPIDNamespace is the target of /proc/self/ns/pid in the initial PID namespace, whose inode is
// PROC_PID_INIT_INO of linux/proc_ns.h.
const initialPIDNamespace = "pid:[4026531836]"

// findProcess fills in the process of the thread. The thread's id may belong to another thread by now, so the name has
// to be the same.
func (e *Event) findProcess() {
	if namespace, err := os.Readlink("/proc/self/ns/pid"); err != nil || namespace != initialPIDNamespace {
		return
	}
	if commOf(e.TID) != e.Process {
		return
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", e.TID))
	if err != nil {
		return
	}
	_, after, _ := strings.Cut(string(status), "\nTgid:\t")
	text, _, _ := strings.Cut(after, "\n")
	pid, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return
	}
	if name := commOf(uint32(pid)); name != "" {
		e.PID, e.Process = uint32(pid), name
	}
}

// commOf returns the name of a thread; empty if it has ended.
func commOf(tid uint32) string {
	comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", tid))
	return strings.TrimSuffix(string(comm), "\n")
}

var deletions = map[uint16]bool{
	unix.NFT_MSG_DELTABLE: true, unix.NFT_MSG_DELCHAIN: true, unix.NFT_MSG_DELRULE: true, unix.NFT_MSG_DELSET: true,
	unix.NFT_MSG_DELSETELEM: true, unix.NFT_MSG_DELOBJ: true, netlinkattr.MsgDelFlowtable: true,
}

// decode fills in Kind, In and What. If the message cannot be decoded, Kind stays "unknown".
func (m *Monitor) decode(e *Event, typ uint16, data []byte) {
	switch typ {
	case unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_DELTABLE:
		e.Kind = "table"
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
		if c, err := decodeChain(data); err == nil {
			e.Kind, e.In = "chain", c.Name
		}
	case unix.NFT_MSG_NEWSET, unix.NFT_MSG_DELSET:
		if s, err := decodeSet(data); err == nil {
			e.Kind, e.In = s.Kind(), s.Name
			if m.sets[identity{e.Family, s.Name}] = s; e.Deleted {
				delete(m.sets, identity{e.Family, s.Name})
			}
		}
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		if r, err := decodeRule(data); err == nil {
			sets := func(name string) *Set { return m.sets[identity{e.Family, name}] }
			e.Kind, e.In = "rule", r.chain
			e.What = r.rule(e.Family, sets).String()
		}
	case unix.NFT_MSG_NEWOBJ, unix.NFT_MSG_DELOBJ, netlinkattr.MsgNewFlowtable, netlinkattr.MsgDelFlowtable:
		if o, err := decodeObject(data, typ == netlinkattr.MsgNewFlowtable || typ == netlinkattr.MsgDelFlowtable); err == nil {
			e.Kind, e.In = o.Kind, o.Name
		}
	}
}

func (m *Monitor) takeElements(data []byte, e Event) {
	e.In = elementsOf(data)
	set := m.sets[identity{e.Family, e.In}]
	err := eachElement(data, func(r *rawElement) error {
		e.Kind = "element"
		if set != nil {
			e.What = set.FormatElement(r.element())
		}
		m.add(e)
		return nil
	})
	if err != nil {
		e.Kind, e.What = "unknown", ""
		m.add(e)
	}
}
