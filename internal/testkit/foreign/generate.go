// Package foreign draws rulesets of other programs: for nft, iptables-nft and iptables-legacy, and routes, routing rules and
// policies beside them. They have the constructs that firewalls, network plugins and caches use, in any order.
//
// A ruleset is for the first packets of UDP or of TCP, over IPv4 or IPv6. Its rules refuse and drop nothing else, so that
// answers and ICMP errors come back.
package foreign

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// Ruleset is what programs load into one node.
type Ruleset struct {
	// Seed is the number that Generate took.
	Seed  uint64
	Parts []Part
	// Tables are the tables of nf_tables that the parts make, such as "inet fw".
	Tables map[string]bool
	// Legacy says that a part is of iptables-legacy.
	Legacy bool
	// IPv6 and TCP say for which packets the ruleset is, in place of IPv4 and UDP.
	IPv6, TCP bool
	// Constructs are the names of what the ruleset has.
	Constructs []string

	random  *rand.Rand
	routing []route
}

// Part is a ruleset of one program.
type Part struct {
	Program string
	Args    []string
	Text    string
}

// String prints what the programs load.
func (r *Ruleset) String() string {
	var b strings.Builder
	for _, p := range r.Parts {
		fmt.Fprintf(&b, "%s %s <<.\n%s.\n", p.Program, strings.Join(p.Args, " "), p.Text)
	}
	for _, route := range r.routing {
		fmt.Fprintln(&b, route.name)
	}
	return b.String()
}

// Untracks reports whether a rule keeps packets from conntrack.
func (r *Ruleset) Untracks() bool {
	return slices.ContainsFunc(r.Constructs, func(name string) bool { return strings.Contains(strings.ToLower(name), "notrack") })
}

// Generate draws a ruleset, for one number always the same.
func Generate(seed uint64) *Ruleset {
	r := &Ruleset{Seed: seed, Tables: map[string]bool{}, random: rand.New(rand.NewPCG(seed, 33))}
	r.IPv6, r.TCP = r.below(3) == 0, r.below(3) == 0
	switch r.below(4) {
	case 0, 1:
		r.nft()
	case 2:
		r.iptables("nft")
	case 3:
		r.iptables("legacy")
	}
	if r.below(4) == 0 {
		r.nft()
	}
	if r.below(4) == 0 {
		r.devices()
	}
	if r.IPv6 {
		r.translate("IPv6", toIPv6)
	} else {
		r.drawRouting()
	}
	if r.TCP {
		r.translate("TCP", toTCP)
	}
	slices.Sort(r.Constructs)
	r.Constructs = slices.Compact(r.Constructs)
	return r
}

func (r *Ruleset) below(n int) int { return r.random.IntN(n) }

func one[T any](r *Ruleset, from ...T) T { return from[r.below(len(from))] }

// construct is a piece of a rule. The name is for the count of what was tried; empty for the commonest.
type construct struct{ name, text string }

func (r *Ruleset) draw(from []construct) string {
	c := one(r, from...)
	if c.name != "" {
		r.Constructs = append(r.Constructs, c.name)
	}
	return c.text
}

// The addresses of senders, of Services, of the node and of endpoints.
const sets = `	set seen { type ipv4_addr; size 1000; flags dynamic; }
	set early { type ipv4_addr . inet_service; size 1000; flags dynamic,timeout; timeout 1m; }
	set clients { type ipv4_addr; elements = { 10.244.1.250, 198.51.100.8 }; }
	set networks { type ipv4_addr; flags interval; elements = { 10.244.0.0/16, 198.51.100.0-198.51.100.7 }; }
	set ports { type ipv4_addr . inet_service; flags interval; elements = { 10.0.0.0/8 . 50-60, 192.0.2.10 . 53 }; }
	set limited { type ipv4_addr; flags dynamic; size 100; elements = { 10.244.1.250 limit rate over 1/hour burst 1 packets, 198.51.100.7 limit rate 1/hour burst 1 packets }; }
	map marks { type ipv4_addr : mark; elements = { 10.244.1.250 : 0x1, 198.51.100.7 : 0x2 }; }
	map to { type ipv4_addr : ipv4_addr . inet_service; elements = { 10.96.0.10 : 10.244.1.6 . 5353 }; }
	map next { type ipv4_addr : ipv4_addr; elements = { 10.96.0.10 : 192.168.0.77, 10.244.1.5 : 192.168.0.77 }; }
	map ways { type inet_service : verdict; elements = { 53 : jump more, 5353 : accept }; }
	counter hits { }
	quota much { over 1 mbytes }
	limit rarely { rate 1/hour burst 1 packets }
`

var matches = []construct{
	{"", "ip saddr 10.244.1.250"}, {"", "ip saddr 198.51.100.7"}, {"", "ip saddr != 10.244.0.0/16"}, {"", "ip daddr 10.96.0.10"}, {"", "ip daddr 192.0.2.0/24"},
	{"", "ip daddr 10.244.1.5"}, {"", "udp dport 53"}, {"", "udp dport 5353"}, {"", "ip saddr 10.244.1.0/24"}, {"", "ip daddr != 10.244.0.0/16"}, {"", "udp dport { 53, 30053 }"}, {"", "udp dport 5000-6000"}, {"", "udp dport > 1024"},
	{"", "ip saddr . udp dport { 10.244.1.250 . 53, 198.51.100.7 . 53 }"}, {"", "ip saddr @clients"}, {"", "ip saddr != @clients"},
	{"interval set", "ip saddr @networks"}, {"ranges of several fields", "ip daddr . udp dport @ports"}, {"set that packets fill", "ip saddr @seen"},
	{"set that packets fill", "ip saddr . udp dport @early"}, {"limit of an element", "ip saddr @limited"}, {"ct state", "ct state new"}, {"ct state", "ct state established,related"},
	{"ct state untracked", "ct state untracked"}, {"ct status", "ct status dnat"}, {"ct status", "ct status != snat"}, {"ct mark", "ct mark 0x2"}, {"ct original", "ct original ip daddr 10.96.0.10"},
	{"ct original", "meta l4proto udp ct original proto-dst 53"}, {"ct reply", "ct reply ip saddr 10.244.1.5"}, {"mark", "meta mark 0x1"}, {"mark", "meta mark & 0x3 == 0x2"}, {"mark", "meta mark != 0x0"}, {"mark range", "meta mark 0x1-0x3"},
	{"fib", "fib daddr type local"}, {"fib", "fib saddr type != local"}, {"fib", "fib daddr type unicast"}, {"interfaces", `iifname "veth-*"`}, {"interfaces", `oifname != "veth-*"`},
	{"interfaces", `iifname { "lo", "outside" }`}, {"rate limit", "limit rate 1/hour burst 1 packets"}, {"rate limit", "limit rate over 1/hour burst 2 packets"},
	{"named limit", `limit name "rarely"`}, {"named quota", `quota name "much"`}, {"quota", "quota until 1 kbytes"}, {"numgen", "numgen random mod 2 0"}, {"numgen", "numgen inc mod 2 0"},
	{"jhash", "jhash ip saddr mod 2 seed 0x1 0"}, {"ip protocol", "ip protocol udp"}, {"payload", "@th,16,16 53"}, {"ttl", "ip ttl > 1"}, {"dscp", "ip dscp cs0"},
	{"pkttype", "meta pkttype host"}, {"length", "meta length < 1000"}, {"ct count", "ct count over 100"}, {"ct zone", "ct zone 0"}, {"skuid", "meta skuid 0"},
}

var effects = []construct{
	{"", "meta mark set 0x1"}, {"", "meta mark set meta mark | 0x2"}, {"mark of a map", "meta mark set ip saddr map @marks"}, {"ct mark", "ct mark set 0x2"}, {"ct mark", "meta mark set ct mark"},
	{"ct mark", "ct mark set meta mark"}, {"add to a set", "add @seen { ip saddr }"}, {"update of a set", "update @early { ip saddr . udp dport }"}, {"delete from a set", "delete @seen { ip saddr }"},
	{"limit of a set", "add @limited { ip saddr limit rate 1/hour burst 1 packets }"}, {"named counter", `counter name "hits"`}, {"counter", "counter"}, {"log", `log prefix "x" level debug`}, {"dscp", "ip dscp set cs1"},
	{"priority", "meta priority set 0x1"}, {"dup", "dup to 192.168.0.77"}, {"dup", "dup to ip daddr map @next"},
}

var ends = []construct{
	{"", "accept"}, {"", "accept"}, {"", "meta l4proto udp drop"}, {"", "return"}, {"jump", "jump more"}, {"jump", "goto more"}, {"verdict map", "udp dport vmap @ways"},
	{"verdict map", "ip saddr vmap { 10.244.1.250 : accept, 198.51.100.7 : jump more }"}, {"", ""}, {"", ""},
}

var rejects = []construct{{"reject", "meta l4proto udp reject"}, {"reject", "meta l4proto udp reject with icmp type admin-prohibited"}}

// nft draws one or two tables.
func (r *Ruleset) nft() {
	name := one(r, "ip fw", "inet fw", "ip other")
	for r.Tables[name] {
		name += "2"
	}
	r.Tables[name] = true
	var b strings.Builder
	fmt.Fprintf(&b, "table %s {\n%s", name, sets)
	fmt.Fprintf(&b, "\tchain more {\n%s\t}\n", r.rules(r.below(3), slices.DeleteFunc(slices.Clone(ends), func(c construct) bool { return strings.Contains(c.text, "more") || strings.Contains(c.text, "@ways") })))
	for i := range 1 + r.below(3) {
		b.WriteString(r.baseChain(i))
	}
	b.WriteString("}\n")
	text := b.String()
	if strings.HasPrefix(name, "inet") {
		text = withoutDup.Replace(text)
	}
	r.Parts = append(r.Parts, Part{"nft", []string{"-f", "-"}, text})
}

// withoutDup is for tables of family inet, in which nft takes no copies.
var withoutDup = strings.NewReplacer("dup to 192.168.0.77", "counter", "dup to ip daddr map @next", "counter")

func (r *Ruleset) baseChain(i int) string {
	last := slices.Clone(ends)
	policy, first := "accept", ""
	hook := one(r, "prerouting", "input", "forward", "output", "postrouting")
	at := fmt.Sprintf("filter hook %s priority %d", hook, one(r, -310, -300, -150, -101, -5, 0, 5, 50, 101))
	switch {
	case hook != "input" && hook != "forward" && r.below(3) == 0:
		at = fmt.Sprintf("nat hook %s priority %d", hook, one(r, -110, -90, 90, 110))
		r.Constructs = append(r.Constructs, "nat chain")
		if hook == "postrouting" {
			last = append(last, construct{"masquerade", "meta l4proto udp masquerade"}, construct{"snat", "meta l4proto udp snat ip to 192.168.0.1"})
			break
		}
		last = append(last, construct{"dnat", "udp dport 53 dnat ip to 10.244.1.6:5353"}, construct{"dnat to a map", "udp dport 53 dnat ip to ip daddr map @to"}, construct{"dnat", "meta l4proto udp dnat ip to 10.244.1.5"})
		if hook == "output" {
			last = append(last, construct{"redirect", "udp dport 53 redirect to :5353"})
		}
	case strings.Contains(at, " -3") && (hook == "prerouting" || hook == "output"):
		last = append(last, construct{"notrack", "meta l4proto udp notrack"}, construct{"notrack", "ip daddr 10.96.0.10 udp dport 53 notrack"})
	case hook != "prerouting" && hook != "postrouting":
		last = append(last, rejects...)
		if hook != "output" {
			last = append(last, construct{"synproxy", "tcp dport { 53, 5353 } synproxy mss 1460 wscale 7 timestamp sack-perm"})
		}
	}
	if r.below(5) == 0 {
		policy, first = "drop", "\t\tmeta l4proto != udp accept\n"
		r.Constructs = append(r.Constructs, "policy drop")
	}
	return fmt.Sprintf("\tchain c%d { type %s; policy %s;\n%s%s\t}\n", i, at, policy, first, r.rules(1+r.below(4), last))
}

func (r *Ruleset) rules(n int, last []construct) string {
	var b strings.Builder
	for range n {
		var words []string
		for range r.below(3) {
			words = append(words, r.draw(matches))
		}
		if r.below(2) == 0 {
			words = append(words, r.draw(effects))
		}
		if end := r.draw(last); end != "" {
			words = append(words, end)
		}
		if len(words) == 0 {
			words = []string{"counter"}
		}
		fmt.Fprintf(&b, "\t\t%s\n", strings.Join(words, " "))
	}
	return b.String()
}

// devices draws a table of bridges or of a device.
func (r *Ruleset) devices() {
	name := one(r, "bridge fw", "netdev fw", "inet dev")
	r.Tables[name] = true
	r.Constructs = append(r.Constructs, name[:strings.Index(name, " ")]+" of devices")
	var chains strings.Builder
	for i := range 1 + r.below(2) {
		at := fmt.Sprintf("type filter hook %s device \"outside\" priority %d", one(r, "ingress", "egress"), r.below(3)-1)
		switch name {
		case "bridge fw":
			at = fmt.Sprintf("type filter hook %s priority %d", one(r, "prerouting", "input", "forward", "output", "postrouting"), one(r, -300, -1, 1, 300))
		case "inet dev":
			at = strings.Replace(at, "egress", "ingress", 1)
		}
		fmt.Fprintf(&chains, "\tchain c%d { %s;\n", i, at)
		for range 1 + r.below(3) {
			fmt.Fprintf(&chains, "\t\t%s %s\n", one(r, deviceMatches...), one(r, "meta mark set 0x1", "accept", "meta l4proto udp drop", "meta mark set meta mark | 0x2 accept", "counter"))
		}
		chains.WriteString("\t}\n")
	}
	r.Parts = append(r.Parts, Part{"nft", []string{"-f", "-"}, "table " + name + " {\n" + chains.String() + "}\n"})
}

var deviceMatches = []string{
	"ip saddr 10.244.1.250", "ip saddr 198.51.100.7", "ip daddr 10.96.0.10", "ip daddr 192.0.2.0/24", "ip daddr 10.244.1.5", "udp dport 53",
	"meta mark 0x1", "ether type ip", "udp dport 53 ip daddr 10.96.0.10", "ip saddr != 10.244.0.0/16",
}

// toIPv6 and toTCP turn rules for datagrams of IPv4 into rules for other packets.
var (
	toIPv6 = strings.NewReplacer(
		"10.244.1.6:5353", "[fd00:10:244:1::6]:5353", "198.51.100.0-198.51.100.7", "2001:db8:51::-2001:db8:51::7",
		"10.244.1.0-10.244.1.255", "fd00:10:244:1::-fd00:10:244:1::ffff", "10.244.0.0/16", "fd00:10:244::/48", "10.244.1.250", "fd00:10:244:1::250",
		"10.244.1.5", "fd00:10:244:1::5", "10.244.1.6", "fd00:10:244:1::6", "198.51.100.0/24", "2001:db8:51::/64", "198.51.100.7", "2001:db8:51::7",
		"198.51.100.8", "2001:db8:51::8", "10.96.0.10", "fd00:10:96::10", "192.0.2.0/24", "2001:db8:2::/64", "192.0.2.10", "2001:db8:2::10",
		"10.244.1.0/24", "fd00:10:244:1::/64", "192.168.0.77", "fd00:1::77", "192.168.0.1", "fd00:1::1", "10.0.0.0/8", "fd00:10::/32", "/32", "/128",
		"ip protocol udp", "ip6 nexthdr udp", "ip ttl", "ip6 hoplimit", "ether type ip", "ether type ip6", "table ip ", "table ip6 ", "ip saddr", "ip6 saddr",
		"ip daddr", "ip6 daddr", "ip dscp", "ip6 dscp", "snat ip to", "snat ip6 to", "dnat ip to", "dnat ip6 to", "ipv4_addr", "ipv6_addr",
		"icmp type admin", "icmpv6 type admin", "icmp-admin-prohibited", "icmp6-adm-prohibited", "-m ttl --ttl-gt", "-m hl --hl-gt", "! -f", "")
	toTCP = strings.NewReplacer(
		"meta l4proto != udp accept", "meta l4proto != tcp accept\n\t\ttcp flags & (syn|ack) != syn accept",
		"meta l4proto udp drop", "tcp flags & (syn|ack) == syn drop", "meta l4proto udp reject", "tcp flags & (syn|ack) == syn reject",
		"-j DROP", "-m tcp --syn -j DROP", "-j REJECT", "-m tcp --syn -j REJECT", "udp", "tcp")
)

// translate rewrites all rules. The name is for the count of what was tried.
func (r *Ruleset) translate(name string, by *strings.Replacer) {
	r.Constructs = append(r.Constructs, name)
	tables := map[string]bool{}
	for table := range r.Tables {
		tables[strings.TrimPrefix(by.Replace("table "+table), "table ")] = true
	}
	r.Tables = tables
	for i := range r.Parts {
		p := &r.Parts[i]
		p.Text = by.Replace(p.Text)
		if r.IPv6 && strings.HasPrefix(p.Program, "iptables") {
			p.Program = "ip6" + strings.TrimPrefix(p.Program, "ip")
		}
	}
}

var xtMatches = []construct{
	{"", "-s 10.244.1.250/32"}, {"", "-s 198.51.100.0/24"}, {"", "! -s 10.244.0.0/16"}, {"", "-d 10.96.0.10/32"}, {"", "! -d 192.0.2.0/24"}, {"", "-p udp"}, {"udp", "-p udp -m udp --dport 53"},
	{"udp", "-p udp -m udp ! --dport 5000:6000"}, {"multiport", "-p udp -m multiport --dports 53,5000:6000"}, {"multiport", "-p udp -m multiport ! --ports 53,30053"},
	{"conntrack", "-m conntrack --ctstate NEW"}, {"conntrack", "-m conntrack ! --ctstate NEW,RELATED"}, {"conntrack", "-m conntrack --ctstate ESTABLISHED,DNAT"}, {"conntrack", "-m conntrack --ctstate UNTRACKED"},
	{"conntrack", "-m conntrack ! --ctstate DNAT"}, {"conntrack of addresses", "-m conntrack --ctorigdst 10.96.0.10"}, {"state", "-m state --state NEW"}, {"xt mark", "-m mark --mark 0x1"}, {"xt mark", "-m mark ! --mark 0x2/0x3"},
	{"connmark", "-m connmark --mark 0x2"}, {"addrtype", "-m addrtype --dst-type LOCAL"}, {"addrtype", "-m addrtype ! --src-type LOCAL"}, {"addrtype", "-m addrtype --dst-type LOCAL,UNICAST"},
	{"comment", `-m comment --comment "a rule"`}, {"xt limit", "-m limit --limit 1/hour --limit-burst 1"}, {"statistic", "-m statistic --mode random --probability 0.5"}, {"xt ttl", "-m ttl --ttl-gt 1"},
	{"iprange", "-m iprange --src-range 10.244.1.0-10.244.1.255"}, {"fragment", "! -f"},
}

// iptables draws rules for tables of iptables.
func (r *Ruleset) iptables(variant string) {
	r.Constructs = append(r.Constructs, "iptables-"+variant)
	var b strings.Builder
	for _, table := range []string{"raw", "mangle", "nat", "filter"} {
		if r.below(2) == 0 {
			continue
		}
		chains := map[string][]string{
			"raw": {"PREROUTING", "OUTPUT"}, "mangle": {"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"},
			"nat": {"PREROUTING", "OUTPUT", "POSTROUTING"}, "filter": {"INPUT", "FORWARD", "OUTPUT"},
		}[table]
		fmt.Fprintf(&b, "*%s\n", table)
		for _, c := range chains {
			fmt.Fprintf(&b, ":%s ACCEPT [0:0]\n", c)
		}
		fmt.Fprint(&b, ":more - [0:0]\n")
		for range 1 + r.below(4) {
			chain := one(r, append(slices.Clone(chains), "more")...)
			if chain == "OUTPUT" || !strings.Contains(b.String(), "-j more") {
				chain = one(r, chains...)
			}
			fmt.Fprintf(&b, "-A %s %s\n", chain, joined(r.xtMatch(), r.xtMatch(), r.target(table, chain)))
		}
		b.WriteString("COMMIT\n")
		if variant == "nft" {
			r.Tables["ip "+table] = true
		}
	}
	r.Legacy = r.Legacy || variant == "legacy"
	r.Parts = append(r.Parts, Part{"iptables-" + variant + "-restore", nil, b.String()})
}

// joined joins parts of a rule of iptables, each option once.
func joined(parts ...string) string {
	var out []string
	for _, part := range parts {
		have := " " + strings.Join(out, " ") + " "
		if strings.Contains(have, " -p ") {
			part = strings.TrimPrefix(part, "-p udp")
		}
		words := strings.Fields(strings.TrimPrefix(part, "! "))
		target := strings.Index(part, "-j ")
		switch {
		case len(words) == 0:
		case slices.Contains([]string{"-s", "-d", "-f"}, words[0]) && strings.Contains(have, " "+words[0]+" "):
			part = part[max(target, 0):]
			if target < 0 {
				part = ""
			}
		case len(words) > 1 && words[0] == "-m" && strings.Contains(have, " -m "+words[1]+" "):
			part = ""
		}
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, part)
		}
	}
	return strings.Join(out, " ")
}

func (r *Ruleset) xtMatch() string {
	if r.below(3) == 0 {
		return ""
	}
	return r.draw(xtMatches)
}

func (r *Ruleset) target(table, chain string) string {
	targets := []construct{{"", "-j ACCEPT"}, {"", "-p udp -j DROP"}, {"", "-j RETURN"}, {"MARK", "-j MARK --set-xmark 0x1/0x1"}, {"LOG", "-j LOG"}}
	if chain != "more" {
		targets = append(targets, construct{"jump", "-j more"})
	}
	if table == "filter" {
		targets = append(targets, construct{"NFQUEUE", "-p udp -j NFQUEUE --queue-num 7"}, construct{"NFQUEUE", "-p udp -j NFQUEUE --queue-num 7 --queue-bypass"})
	}
	switch {
	case table == "raw":
		targets = append(targets, construct{"NOTRACK", "-j NOTRACK"}, construct{"CT --notrack", "-d 10.96.0.10/32 -j CT --notrack"}, construct{"CT --notrack", "-p udp -j CT --notrack"})
	case table == "mangle":
		targets = append(targets, construct{"CONNMARK", "-j CONNMARK --set-xmark 0x2/0xffffffff"}, construct{"CONNMARK", "-j CONNMARK --restore-mark"}, construct{"MARK", "-j MARK --set-xmark 0x0/0xffffffff"}, construct{"TOS", "-j TOS --set-tos 0x10"}, construct{"TEE", "-p udp -j TEE --gateway 192.168.0.77"})
		if chain == "more" {
			break
		}
	case table == "filter":
		targets = append(targets, construct{"REJECT", "-p udp -j REJECT"}, construct{"REJECT", "-p udp -j REJECT --reject-with icmp-admin-prohibited"})
	case table == "nat" && chain == "POSTROUTING":
		return r.draw([]construct{{"MASQUERADE", "-j MASQUERADE"}, {"SNAT", "-p udp -j SNAT --to-source 192.168.0.1"}, {"", "-j ACCEPT"}})
	case table == "nat" && chain != "more":
		targets = []construct{{"DNAT", "-p udp -j DNAT --to-destination 10.244.1.6:5353"}, {"DNAT", "-p udp -j DNAT --to-destination 10.244.1.5"}, {"", "-j ACCEPT"}, {"", "-j RETURN"}, {"REDIRECT", "-p udp -j REDIRECT --to-ports 5353"}}
	case table == "nat":
		targets = []construct{{"", "-j ACCEPT"}, {"", "-j RETURN"}}
	}
	return r.draw(targets)
}
