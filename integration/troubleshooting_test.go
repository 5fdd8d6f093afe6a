package integration

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/nftproxy/nftproxy/internal/testkit/await"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/nft"
)

var update = flag.Bool("update", false, "rewrite what the page about troubleshooting and the folder testdata/foreign show")

// troubleshooting is the page of incidents. The output of each command in it is written by TestTroubleshooting with -update.
const troubleshooting = "../docs/troubleshooting.md"

// incident makes a situation on a node. The commands of the page run there.
type incident struct {
	l *lab.Lab
	// files are the paths of files that commands wrote, by the names that the page gives them.
	files map[string]string
	// watch is "ruledump watch", where it ran while the incident happened.
	watch *lab.Process
	// send sends a packet for "ruledump trace".
	send func()
}

// edge is the Service of edge.yaml with an endpoint that serves, and rules of another program beside it.
func (i *incident) edge(t *testing.T, rules string) {
	t.Helper()
	pod, err := i.l.AddPod("edge", netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("fd00:10:244:1::5"))
	if err != nil {
		t.Fatal(err)
	}
	lab.ServeTCP(t, pod, ":8080", func(conn net.Conn) { fmt.Fprint(conn, conn.RemoteAddr()) })
	i.apply(t, "edge.yaml")
	if rules != "" {
		lab.Nft(t, i.l.Node, rules, "-f", "-")
	}
}

// forget makes the node forget its connections.
func (i *incident) forget(t *testing.T) {
	t.Helper()
	if err := i.l.Node.FlushConntrack(); err != nil {
		t.Fatal(err)
	}
}

// sysctl sets a parameter of the node's namespace.
func (i *incident) sysctl(t *testing.T, name, value string) {
	t.Helper()
	if err := i.l.Node.Do(func() error { return os.WriteFile("/proc/sys/net/"+name, []byte(value), 0) }); err != nil {
		t.Fatal(err)
	}
}

// sees compares the client's address that the server sees.
func (i *incident) sees(t *testing.T, want string, client *lab.Host, to string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	conn, err := client.DialContext(ctx, "tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(await.Patience)); err != nil {
		t.Fatal(err)
	}
	if seen, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(seen), want) {
		t.Errorf("the server saw %s, %v; want %s", seen, err, want)
	}
	i.forget(t)
}

// becomes sends the first packet of a connection, and says what must become of it.
func (i *incident) becomes(t *testing.T, want string, host *lab.Host, from netip.Addr, to string) {
	t.Helper()
	if result := dialled(t, host, from, netip.MustParseAddrPort(to), want); result != want {
		t.Errorf("a connection from %s to %s was %s, want %s", from, to, result, want)
	}
}

// apply puts the rules for manifests of docs/troubleshooting into the node's kernel.
func (i *incident) apply(t *testing.T, manifests string) {
	t.Helper()
	i.applyWith(t, manifests, "config.yaml")
}

func (i *incident) applyWith(t *testing.T, manifests, config string) {
	t.Helper()
	s, err := ruledump.FromManifests(filepath.Join("../docs/troubleshooting", manifests), ruledump.Compilation{Node: "node-1", Config: filepath.Join("../docs/troubleshooting", config)})
	if err != nil {
		t.Fatal(err)
	}
	conn := lab.Conn(t, i.l.Node)
	var tx nft.Transaction
	for _, want := range s.Tables {
		have, err := conn.ReadTable(t.Context(), want.Family, want.Name)
		if err != nil {
			t.Fatal(err)
		}
		tx.Append(nft.Diff(have, want)) // which leaves clients where they are
	}
	if _, err := conn.Commit(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
}

// pod makes an endpoint reachable.
func (i *incident) pod(t *testing.T, addr string) {
	t.Helper()
	if _, err := i.l.AddPod(addr, netip.MustParseAddr(addr)); err != nil {
		t.Fatal(err)
	}
}

// dial sends a packet from a host outside to a Service. Nobody needs to answer.
func (i *incident) dial(t *testing.T, network, from, to string) {
	t.Helper()
	err := i.l.Outside.Do(func() error {
		source, err := net.ResolveUDPAddr("udp", from)
		if err != nil {
			return err
		}
		if network == "udp" {
			conn, err := (&net.Dialer{LocalAddr: source}).Dial(network, to)
			if err != nil {
				return err
			}
			defer conn.Close()
			_, err = conn.Write([]byte("hello"))
			return err
		}
		// The connection need not come about: its first packet is enough.
		conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: source.IP}, Timeout: 300 * time.Millisecond}).Dial(network, to)
		if err == nil {
			conn.Close()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// connect opens a connection of the client to the Service of edge.yaml, which lasts until the test ends.
func (i *incident) connect(t *testing.T) {
	t.Helper()
	pod, err := i.l.AddPod("edge", netip.MustParseAddr("10.244.1.5"))
	if err != nil {
		t.Fatal(err)
	}
	lab.ServeTCP(t, pod, ":8080", lab.Echo)
	i.apply(t, "edge.yaml")
	var conn net.Conn
	err = i.l.Client.Do(func() (err error) {
		conn, err = (&net.Dialer{LocalAddr: &net.TCPAddr{IP: lab.ClientAddrs.IPv4.AsSlice(), Port: 40000}, Timeout: await.Patience}).Dial("tcp", "10.96.0.80:80")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
}

// incidents prepare the node for those incidents of the page, by their heading, whose commands look at a live kernel.
var incidents = map[string]func(*testing.T, *incident){
	"udp": func(t *testing.T, i *incident) {
		i.pod(t, "10.244.1.7")
		i.apply(t, "udp-before.yaml")
		i.dial(t, "udp", "198.51.100.7:40000", "10.96.0.53:53")
		i.apply(t, "udp-after.yaml")
	},
	"flushed": func(t *testing.T, i *incident) {
		i.apply(t, "shop.yaml")
		i.watch = lab.Start(t, i.l.Node, "ruledump", "watch", "--parts=3")
		i.watch.Says(t, watchCost)
		lab.Nft(t, i.l.Node, "", "flush", "ruleset")
		i.watch.Says(t, "-table 2")
		i.watch.Says(t, "more\n")
	},
	"leftovers": func(t *testing.T, i *incident) {
		i.apply(t, "shop.yaml")
		lab.Nft(t, i.l.Node, `
add table ip nat
add chain ip nat KUBE-SERVICES
add rule ip nat KUBE-SERVICES ip daddr 10.96.0.10 tcp dport 80 counter dnat to 10.244.1.99:8080
add chain ip nat PREROUTING { type nat hook prerouting priority dstnat; }
add rule ip nat PREROUTING jump KUBE-SERVICES
`, "-f", "-")
	},
	"firewall": func(t *testing.T, i *incident) {
		i.pod(t, "10.244.1.7")
		i.apply(t, "shop.yaml")
		lab.Nft(t, i.l.Node, "add table inet fw\nadd chain inet fw f { type filter hook forward priority -5; policy drop; }\n"+
			"add rule inet fw f ct state established,related accept\n", "-f", "-")
		i.becomes(t, "dropped", i.l.Outside, lab.OutsideAddrs.IPv4, "10.96.0.10:80")
	},
	"ranges": func(t *testing.T, i *incident) {
		i.pod(t, "10.244.1.5")
		i.apply(t, "shop.yaml")
		i.becomes(t, "dropped", i.l.Outside, lab.OutsideAddrs.IPv4, "192.0.2.50:80")
	},
	"egress": func(t *testing.T, i *incident) {
		i.edge(t, `table inet cni {
	chain policies { type filter hook forward priority filter; policy accept;
		ct state established,related accept
		ip saddr 10.244.1.250 jump client-egress
	}
	chain client-egress {
		ip daddr 10.96.0.80 tcp dport 80 accept
		drop
	}
}
`)
		i.becomes(t, "dropped", i.l.Client, lab.ClientAddrs.IPv4, "10.96.0.80:80")
	},
	"half-open": func(t *testing.T, i *incident) {
		i.edge(t, `table inet cni {
	chain policies { type filter hook forward priority filter; policy accept;
		ip daddr 10.244.1.5 tcp dport 8080 accept
		ip saddr 10.244.1.5 drop
	}
}
`)
		i.becomes(t, "dropped", i.l.Client, lab.ClientAddrs.IPv4, "10.96.0.80:80")
	},
	"family": func(t *testing.T, i *incident) {
		i.edge(t, `table inet cni {
	chain policies { type filter hook forward priority filter; policy accept;
		ct state established,related accept
		ip saddr 10.244.0.0/16 oifname "veth-*" accept
		oifname "veth-*" drop
	}
}
`)
		i.becomes(t, "delivered", i.l.Client, lab.ClientAddrs.IPv4, "10.96.0.80:80")
		i.becomes(t, "dropped", i.l.Client, lab.ClientAddrs.IPv6, "[fd00:10:96::80]:80")
		i.forget(t)
	},
	"asymmetric": func(t *testing.T, i *incident) {
		i.edge(t, "")
		i.sysctl(t, "ipv4/conf/all/rp_filter", "1")
		move := lab.StartCommand(t, i.l.Node, exec.Command("ip", "route", "replace", "198.51.100.8", "dev", "eth0"))
		if move.Wait() != nil {
			t.Fatal(move.Output())
		}
		i.send = func() { i.becomes(t, "dropped", i.l.Outside, lab.SecondOutsideAddrs.IPv4, "192.168.0.1:30080") }
	},
	"target-port": func(t *testing.T, i *incident) {
		i.pod(t, "10.244.1.5")
		i.apply(t, "edge.yaml")
		i.send = func() { i.becomes(t, "refused", i.l.Client, lab.ClientAddrs.IPv4, "10.96.0.80:80") }
	},
	"old-endpoint": func(t *testing.T, i *incident) {
		i.connect(t)
		i.apply(t, "edge-after.yaml")
	},
	"deleted": func(t *testing.T, i *incident) {
		i.connect(t)
		i.apply(t, "deleted.yaml")
		i.becomes(t, "dropped", i.l.Client, lab.ClientAddrs.IPv4, "10.96.0.80:80")
		i.becomes(t, "delivered", i.l.Client, lab.ClientAddrs.IPv4, "10.96.0.90:80")
	},
	"docker": func(t *testing.T, i *incident) {
		i.edge(t, "")
		loadForeign(t, i.l.Node, "../testdata/foreign/docker.txtar", "nft")
		i.becomes(t, "dropped", i.l.Outside, lab.OutsideAddrs.IPv4, "192.168.0.1:30080")
	},
	"input": func(t *testing.T, i *incident) {
		i.edge(t, "table inet fw {\n chain in { type filter hook input priority filter; policy accept;\n tcp dport 30080 drop\n }\n}\n")
		i.becomes(t, "delivered", i.l.Outside, lab.OutsideAddrs.IPv4, "192.168.0.1:30080")
		i.forget(t)
	},
	"source": func(t *testing.T, i *incident) {
		i.edge(t, "")
		i.sees(t, "10.244.1.254:", i.l.Outside, "192.168.0.1:30080")
	},
	"mark": func(t *testing.T, i *incident) {
		i.edge(t, `table inet mesh {
	chain marks { type filter hook prerouting priority mangle; policy accept;
		ip saddr 10.244.1.250 meta mark set 0x4001
	}
}
`)
		i.sees(t, "10.244.1.254:", i.l.Client, "10.96.0.80:80")
	},
	"conntrack-full": func(t *testing.T, i *incident) { i.edge(t, "") },
	"mtu": func(t *testing.T, i *incident) {
		i.both(t, "config.yaml")
		i.command(t, i.l.Node, "ip", "link", "set", "eth0", "mtu", "1300")
	},
	"proxy-dead": func(t *testing.T, i *incident) { i.edge(t, "") },
	"unanswered": func(t *testing.T, i *incident) {
		pod, err := i.l.AddPod("edge", netip.MustParseAddr("10.244.1.5"))
		if err != nil {
			t.Fatal(err)
		}
		i.apply(t, "edge.yaml")
		lab.Nft(t, pod, "table ip inside {\n chain in { type filter hook input priority 0; policy accept;\n tcp dport 8080 drop\n }\n}\n", "-f", "-")
		for range 4 {
			i.try(i.l.Client, "10.96.0.80:80")
		}
	},
	"affinity": func(t *testing.T, i *incident) {
		i.pod(t, "10.244.1.5")
		i.apply(t, "affinity-before.yaml")
		i.dial(t, "tcp", "198.51.100.7:0", "10.96.0.70:80")
		i.apply(t, "affinity-after.yaml")
	},
}

// TestTroubleshooting runs the commands of docs/troubleshooting.md, each section on a node of its own, and compares what they
// print with the page.
func TestTroubleshooting(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(troubleshooting)
	if err != nil {
		t.Fatal(err)
	}
	binary := lab.Binary(t, "ruledump")
	sections := strings.SplitAfter(string(page), "\n<a id=")
	for at := range sections {
		if at == 0 {
			continue
		}
		id, _, _ := strings.Cut(strings.TrimPrefix(sections[at], `"`), `"`)
		t.Run(id, func(t *testing.T) {
			i := &incident{l: lab.ForTest(t), files: map[string]string{}}
			if prepare := incidents[id]; prepare != nil {
				prepare(t, i)
			}
			got := runBlocks(t, i, binary, sections[at])
			if *update {
				sections[at] = got
			} else if diff := cmp.Diff(sections[at], got); diff != "" {
				t.Errorf("docs/troubleshooting.md (-page +now):\n%s", diff)
			}
		})
	}
	if n := len(sections) - 1; n < 22 {
		t.Errorf("the page has %d incidents, want 22", n)
	}
	if *update {
		if err := os.WriteFile(troubleshooting, []byte(strings.Join(sections, "")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// runBlocks returns the section with the output of its commands as it is now.
func runBlocks(t *testing.T, i *incident, binary, section string) string {
	t.Helper()
	var out []string
	lines := strings.Split(section, "\n")
	commands := 0
	for at := 0; at < len(lines); at++ {
		out = append(out, lines[at])
		command, isCommand := strings.CutPrefix(lines[at], "    $ ")
		if !isCommand {
			continue
		}
		commands++
		for at+1 < len(lines) && strings.HasPrefix(lines[at+1], "    ") && !strings.HasPrefix(lines[at+1], "    $ ") || at+2 < len(lines) && lines[at+1] == "" && strings.HasPrefix(lines[at+2], "    ") && !strings.HasPrefix(lines[at+2], "    $ ") {
			at++
		}
		text := i.run(t, binary, command)
		if strings.HasPrefix(command, "ruledump graph ") { // a block that Markdown shows as a drawing
			if end := slices.Index(lines[at+1:], "```"); end >= 0 && slices.Index(lines[at+1:], "```mermaid") == 1 {
				at += 1 + end
			}
			out = append(out, "", "```mermaid", text+"```")
			continue
		}
		for line := range strings.Lines(text) {
			out = append(out, strings.TrimRight("    "+strings.TrimSuffix(line, "\n"), " "))
		}
	}
	if commands == 0 {
		t.Error("no command")
	}
	return strings.Join(out, "\n")
}

// run runs a command of the page in the folder of its manifests, as a shell would; of shells it knows "> FILE" and
// "| head -N" alone.
func (i *incident) run(t *testing.T, binary, command string) string {
	t.Helper()
	command, file, _ := strings.Cut(command, " > ")
	command, head, _ := strings.Cut(command, " | head -")
	words := strings.Fields(command)
	if words[0] != "ruledump" {
		t.Fatalf("command %q is not ruledump", command)
	}
	if words[1] == "watch" {
		return stable(flush.FindString(i.watch.Output()))
	}
	for at, word := range words {
		if path := i.files[word]; path != "" {
			words[at] = path
		}
	}
	if words[1] == "check" {
		words = slices.Insert(words, 2, "--proxy-address=") // nobody keeps the rules here; a command of the page may ask all the same
	}
	cmd := exec.Command(binary, words[1:]...)
	cmd.Dir = "../docs/troubleshooting"
	p := lab.StartCommand(t, i.l.Node, cmd)
	if words[1] == "trace" {
		p.Says(t, "marks packets")
		i.send()
	}
	err := p.Wait()
	text := p.Output()
	if file != "" {
		i.files[file] = filepath.Join(t.TempDir(), file)
		if err := os.WriteFile(i.files[file], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		text = ""
	}
	if words[1] == "trace" {
		text = strings.TrimRight(text, "\n") + "\n"
	}
	if err != nil && cmd.ProcessState.ExitCode() > 2 {
		t.Errorf("%s: %v\n%s", command, err, text)
	}
	text = stable(text)
	if file == "" && words[1] != "trace" && words[1] != "check" && !slices.Contains(words, "--dump") {
		i.runOnReport(t, binary, words, text)
	}
	if n, err := strconv.Atoi(head); err == nil {
		lines := strings.SplitAfter(text, "\n")
		text = strings.Join(lines[:min(n, len(lines))], "")
	}
	return text
}

// runOnReport makes a report of the node, and runs a command elsewhere with nothing but the report. It has to say the same.
// If the command is about manifests, the node gets their rules.
func (i *incident) runOnReport(t *testing.T, binary string, command []string, want string) {
	t.Helper()
	var kept []string
	files := map[string]string{}
	for at := 1; at < len(command); at++ {
		switch word := command[at]; word {
		case "--manifests", "--config", "--node":
			at++
			files[word] = command[at]
		default:
			kept = append(kept, word)
		}
	}
	objects := slices.Contains(kept, "wide") || kept[0] == "graph" // which name the nodes of endpoints
	if objects {
		return
	}
	if files["--manifests"] != "" {
		i.applyWith(t, files["--manifests"], files["--config"])
	}
	report := filepath.Join(t.TempDir(), "report.tar.gz")
	if text := runRuledump(t, i.l.Node, "report", "-o", report); !strings.Contains(text, "wrote "+report) {
		t.Errorf("report: %s", text)
	}
	p := lab.StartCommand(t, i.l.Outside, exec.Command(binary, append(kept, "--dump", report)...))
	_ = p.Wait() // the text says it
	got := stable(p.Output())
	for _, same := range []func(string) string{
		func(text string) string { return strings.ReplaceAll(text, " (host name)", "") },
		func(text string) string { return ofObjects.ReplaceAllString(text, "") },
		func(text string) string { return noTables.ReplaceAllString(text, "no table") },
		func(text string) string {
			if files["--manifests"] == "" {
				return text
			}
			return ways.ReplaceAllString(text, "")
		},
	} {
		want, got = same(want), same(got)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-on the node +from a report):\n%s", strings.Join(kept, " "), diff)
	}
}

var (
	// ways are the ways by which packets leave, and remarks on them, which compiled rules do not have.
	ways = regexp.MustCompile(`(?m)^ +to \S+ (?:via \S+ )?dev .*\n|^ +\S+: leaves by the default route.*\n| to \S+ (?:via \S+ )?dev .*$`)
	// ofObjects are warnings about objects, which a report does not have.
	ofObjects = regexp.MustCompile(`(?m)^ruledump: .* claimed by .*\n`)
	// noTables matches the message about missing tables, of a kernel and of a report.
	noTables = regexp.MustCompile(`ruledump: .* no table ip kube-proxy or ip6 kube-proxy.*`)
)

var (
	expires = regexp.MustCompile(`for 10\d\d\d s more`)
	// flush is the commit that deletes the tables, in the output of watch.
	flush      = regexp.MustCompile(`(?m)^.*-table 2\n(  .*\n)*`)
	commit     = regexp.MustCompile(`\S+ generation \d+ by (.*?) \((?:pid|thread) \d+\)(?:, started by [^:]* \(pid \d+\))?(?:, in [^:]*)?:`)
	left       = regexp.MustCompile(`expires 2h59m\S+`)
	entries    = regexp.MustCompile(`conntrack: entries: \d+ of \d+`)
	timestamp  = regexp.MustCompile(`generation \d+ at \S+`)
	port       = regexp.MustCompile(`\b(198\.51\.100\.[78]|10\.244\.1\.250):[3456]\d{4}\b`)
	traceTable = regexp.MustCompile(`table ruledump-trace-\d+`)
	clock      = regexp.MustCompile(`(?m)^\d\d:\d\d:\d\d\.\d{3} `)
	// timeLeft is a time in the column LEFT of connections.
	timeLeft = regexp.MustCompile(`\b(119h59m)?5\ds( +-)`)
	hostName = regexp.MustCompile(`\b(on|node) ` + regexp.QuoteMeta(thisHost()) + `\b`)
)

func thisHost() string {
	name, _ := os.Hostname()
	return name
}

// stable replaces what is different each time.
func stable(text string) string {
	text = lab.Abandoned.ReplaceAllString(text, "")
	text = expires.ReplaceAllString(text, "for 10799 s more")
	text = commit.ReplaceAllString(text, "2026-11-22T03:00:00.579634336Z generation 3 by $1 (pid 19914):")
	text = left.ReplaceAllString(text, "expires 2h59m59s")
	text = entries.ReplaceAllString(text, "conntrack: entries: 12 of 262144")
	text = timestamp.ReplaceAllString(text, "generation 2 at 2026-11-22T03:00:00Z")
	text = port.ReplaceAllString(text, "$1:40000")
	text = traceTable.ReplaceAllString(text, "table ruledump-trace-4711")
	text = timeLeft.ReplaceAllString(text, "${1}59s$2")
	text = clock.ReplaceAllString(text, "03:00:00.000 ")
	if rest, is := strings.CutPrefix(text, thisHost()+" (host name): "); is {
		text = "node-1: " + rest
	}
	return hostName.ReplaceAllString(text, "$1 node-1")
}
