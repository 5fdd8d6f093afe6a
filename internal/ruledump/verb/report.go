package verb

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/nftproxy/nftproxy/internal/version"
	"github.com/nftproxy/nftproxy/internal/wholefile"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/spf13/cobra"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The files of a report that commands read. The other names are in gather.
const (
	statsFile       = "stats.json"
	connectionsFile = "connections.json"
)

// Bounds of a report.
const (
	// partPatience is the time for each part.
	partPatience = 10 * time.Second
	// maxLog bounds the bytes of the end of a log that are kept.
	maxLog = 1 << 20
	// maxPage bounds the bytes of a page of the proxy.
	maxPage = 32 << 20
	// maxInterfaces bounds the interfaces that are described.
	maxInterfaces = 500
)

func newReportCommand() *cobra.Command {
	var from source
	var output, log string
	var redact bool
	cmd := &cobra.Command{
		Use:   "report",
		Short: "Write all that a bug report needs into one file",
		Long: `report collects what explains an incident on this node into one .tar.gz:
the rules with the clients of session affinity, tables of other programs, what "stats" says,
sums of the connections to Services, those to endpoints that do not serve, sysctls, interfaces,
the kernel's counters of dropped packets, and the proxy's configuration, flags, health and
metrics. --log adds the end of a log.

All commands that take --dump read it: "ruledump explain --dump FILE", on any machine.

It has no Secrets. It has names of Services, and addresses of clients. With --redact each
address is replaced by another one, always the same within the report; rules of other
programs are left out. What stays: all names, also that of a Node that contains an address;
ports; the lengths of prefixes; and how many first bits two addresses have in common, so that
one known address tells that much of the others.

It needs CAP_NET_ADMIN. What else cannot be read is named, and left out.`,
		Example: `  # What is wrong on this node?
  ruledump report -o node-1.tar.gz --log /var/log/kube-proxy.log

  # The same with the log from Kubernetes.
  kubectl logs -n kube-system kube-proxy-x7k2p | ruledump report --log - -o node-1.tar.gz

  # Elsewhere.
  ruledump explain --dump node-1.tar.gz --from 198.51.100.7 --to 192.0.2.10:80`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	addServiceProxyName(flags, &from.serviceProxyName)
	from.addProxyAddress(cmd)
	flags.StringVarP(&output, "output", "o", "", "file to write; - is standard output (default nftproxy-NODE-TIME.tar.gz)")
	flags.StringVar(&log, "log", "", "add the last MiB of this log; - is standard input")
	flags.BoolVar(&redact, "redact", false, "replace IP addresses by pseudonyms, and leave out the rules of other programs")
	_ = cmd.MarkFlagFilename("output", "tar.gz")
	_ = cmd.MarkFlagFilename("log")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		defer from.close()
		rules, err := from.actual(cmd)
		if err != nil {
			return err
		}
		r := &report{Report: Report{
			nodeDocument: aboutNode("Report", rules), Writer: "ruledump " + version.Own(), Taken: rules.Taken,
		}, from: &from, rules: rules}
		if redact {
			r.pseudonyms, r.Redacted = ruledump.NewPseudonyms(), true
		}
		r.gather(cmd, log)
		return r.write(cmd, output)
	}
	return cmd
}

// Report describes the node of a report, and what the report lacks.
type Report struct {
	nodeDocument
	Writer string    `json:"writer"` // the program that wrote the report
	Taken  time.Time `json:"taken"`
	Kernel string    `json:"kernel"` // name, release, version and machine, as of uname
	// Sysctls: the files below /proc/sys that decide about packets, with their values
	Sysctls    map[string]string    `json:"sysctls"`
	Interfaces []describedInterface `json:"interfaces"` // at most 500
	// Redacted: pseudonyms stand for IP addresses, and rules of other programs are left out
	Redacted bool `json:"redacted,omitempty"`
	// Missing says what could not be read, and why.
	Missing []string `json:"missing,omitempty"`
}

type describedInterface struct {
	Name      string         `json:"name"`
	MTU       int            `json:"mtu"`
	Flags     string         `json:"flags"`
	Addresses []netip.Prefix `json:"addresses,omitempty"`
}

// interfaces lists the interfaces of the calling thread's network namespace.
func interfaces() (list []describedInterface, err error) {
	found, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list the interfaces of this network namespace: %w", err)
	}
	all, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) { // then some may be missing
		return nil, fmt.Errorf("list the addresses of this network namespace: %w", err)
	}
	addresses := map[int][]netip.Prefix{}
	for _, a := range all {
		if prefix, err := netip.ParsePrefix(a.IPNet.String()); err == nil {
			addresses[a.LinkIndex] = append(addresses[a.LinkIndex], prefix)
		}
	}
	for _, i := range found {
		list = append(list, describedInterface{i.Name, i.MTU, i.Flags.String(), addresses[i.Index]})
	}
	return list, nil
}

// report is a report in the making.
type report struct {
	Report
	from  *source
	rules *ruledump.Snapshot
	files []ruledump.File
	// pseudonyms, if set, stand for addresses.
	pseudonyms *ruledump.Pseudonyms
}

func (r *report) add(name string, data []byte) {
	if r.pseudonyms != nil && name != ruledump.RulesFile {
		data = r.pseudonyms.Text(data)
	}
	r.files = append(r.files, ruledump.File{Name: name, Data: data})
}

func (r *report) addDocument(name string, document any) {
	data, err := json.MarshalIndent(document, "", "  ")
	if err != nil {
		r.miss(name, err)
		return
	}
	r.add(name, append(data, '\n'))
}

func (r *report) miss(name string, err error) {
	r.Missing = append(r.Missing, fmt.Sprintf("%s: %v", name, err))
}

// gather collects the files. A part that cannot be read is missing, and does not end the report.
func (r *report) gather(cmd *cobra.Command, log string) {
	for _, part := range []struct {
		name   string
		gather func(ctx context.Context) error
	}{
		{"clients of session affinity", r.gatherClients},
		{ruledump.RulesFile, r.gatherRules},
		{statsFile, r.gatherStats},
		{connectionsFile, r.gatherConnections},
		{"pages of the proxy", r.gatherPages},
		{"log.txt", func(context.Context) error { return r.gatherLog(cmd, log) }},
		{"interfaces", r.gatherInterfaces},
	} {
		ctx, stop := context.WithTimeoutCause(cmd.Context(), partPatience, fmt.Errorf("not read within %v", partPatience))
		if err := part.gather(ctx); err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			r.miss(part.name, err)
		}
		stop()
	}
	for name, file := range map[string]string{"conntrack-counters.txt": "stat/nf_conntrack", "snmp.txt": "snmp", "netstat.txt": "netstat"} {
		if text, err := os.ReadFile("/proc/thread-self/net/" + file); err == nil { // else the kernel has no such file
			r.add(name, text)
		}
	}
	r.gatherKernel()
}

// gatherClients reads the rules again with the clients of session affinity, if any Service has it. There may be a
// million clients; then the report goes without.
func (r *report) gatherClients(ctx context.Context) error {
	isDynamic := func(s *nft.Set) bool { return s.Dynamic }
	if !slices.ContainsFunc(r.rules.Tables, func(t *nft.Table) bool { return slices.ContainsFunc(t.Sets, isDynamic) }) {
		return nil
	}
	rules, err := ruledump.FromKernel(ctx, r.from.conn, r.from.serviceProxyName, true)
	if err == nil {
		rules.Node, rules.NodeSource = r.rules.Node, r.rules.NodeSource
		r.rules = rules
	}
	return err
}

func (r *report) gatherRules(ctx context.Context) error {
	rules := r.rules
	rules.AddOthers(ctx, r.from.conn, true)
	if r.pseudonyms != nil {
		var err error
		if rules, err = rules.Redact(r.pseudonyms); err != nil {
			return err
		}
	}
	var b bytes.Buffer
	err := rules.Write(&b)
	if err == nil {
		r.add(ruledump.RulesFile, b.Bytes())
	}
	return err
}

func (r *report) gatherStats(ctx context.Context) error {
	counted, err := Stats(r.rules)
	if err == nil {
		err = counted.addLeftovers(ctx)
	}
	if counted != nil {
		r.addDocument(statsFile, counted)
	}
	return err
}

// gatherConnections adds up the connections, and lists those whose endpoint does not serve.
func (r *report) gatherConnections(ctx context.Context) error {
	index := &flowIndex{from: r.from}
	if err := index.build(r.rules); err != nil {
		return err
	}
	list, err := listConnections(ctx, index, connectionOptions{by: sumByState, limit: defaultLimit, listFailing: true})
	if err == nil {
		r.addDocument(connectionsFile, list)
	}
	return err
}

// gatherPages asks the proxy for its pages.
func (r *report) gatherPages(ctx context.Context) error {
	proxy := r.from.proxy
	if proxy == nil {
		return cmp.Or(r.from.noProxy, errors.New("--proxy-address is empty"))
	}
	for _, page := range []struct{ name, path string }{
		{"configz.json", "/configz"}, {"flagz.txt", "/flagz"}, {"statusz.txt", "/statusz"}, {"metrics.txt", "/metrics"},
	} {
		r.gatherPage(ctx, page.name, proxy.Address+page.path)
	}
	health, err := healthAddress(proxy.Config.HealthzBindAddress)
	if err != nil || !health.IsValid() {
		return err
	}
	r.gatherPage(ctx, "healthz.json", health.String()+"/healthz")
	r.gatherPage(ctx, "livez.json", health.String()+"/livez")
	return nil
}

func (r *report) gatherPage(ctx context.Context, name, address string) {
	status, text, err := ruledump.Page(ctx, "http://"+address, maxPage)
	switch {
	case err != nil:
		r.miss(name, err)
	case status == http.StatusNotFound: // a page that the configuration switches off
	default:
		r.add(name, text)
	}
}

// healthAddress returns the address at which to ask for the health of a proxy whose health server listens at bound; the
// zero value if there is no such server. The proxy's answer named bound, and whoever gave that answer must not choose
// whom the report asks. So an address that is not this machine's loopback is an error.
func healthAddress(bound string) (netip.AddrPort, error) {
	if bound == "" {
		return netip.AddrPort{}, nil
	}
	at, err := netip.ParseAddrPort(bound)
	switch addr := at.Addr(); {
	case err != nil:
		return netip.AddrPort{}, err
	case addr == netip.IPv4Unspecified():
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), at.Port()), nil
	case addr == netip.IPv6Unspecified():
		return netip.AddrPortFrom(netip.IPv6Loopback(), at.Port()), nil
	case !addr.IsLoopback():
		return netip.AddrPort{}, fmt.Errorf("/healthz and /livez at %s are not asked, because the address is not loopback", at)
	}
	return at, nil
}

// gatherLog keeps the last whole lines of a log.
func (r *report) gatherLog(cmd *cobra.Command, name string) error {
	if name == "" {
		return nil
	}
	in, err := input(cmd, name)
	if err != nil {
		return err
	}
	defer in.Close()
	if file, isFile := in.(*os.File); isFile {
		_, _ = file.Seek(-maxLog-1, io.SeekEnd) // a shorter file, or one that cannot seek, is read whole
	}
	tail := tail{}
	_, err = io.Copy(&tail, in)
	r.add("log.txt", tail.lines())
	return err
}

// tail keeps the end of what is written to it.
type tail struct {
	kept []byte
	// cut says that there was more.
	cut bool
}

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p...)
	if more := len(t.kept) - maxLog; more > maxLog {
		t.kept, t.cut = append(t.kept[:0], t.kept[more:]...), true
	}
	return len(p), nil
}

// lines returns the whole lines of the last maxLog bytes.
func (t *tail) lines() []byte {
	kept := t.kept
	if more := len(kept) - maxLog; more > 0 {
		kept, t.cut = kept[more:], true
	}
	if t.cut {
		_, kept, _ = bytes.Cut(kept, []byte("\n"))
	}
	return kept
}

func (r *report) gatherInterfaces(context.Context) error {
	list, err := interfaces()
	r.Interfaces = list[:min(len(list), maxInterfaces)]
	return err
}

// sysctlFiles match the files below /proc/sys of what decides about packets.
var sysctlFiles = []string{
	"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/ipv6/conf/all/disable_ipv6", "net/ipv4/conf/*/rp_filter",
	"net/ipv4/conf/all/route_localnet", "net/ipv4/ip_local_port_range", "net/ipv4/ip_nonlocal_bind", "net/ipv4/vs/conntrack",
	"net/bridge/bridge-nf-call-*", "net/netfilter/nf_conntrack_*", "net/netfilter/nf_log_all_netns",
}

func (r *report) gatherKernel() {
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		text := func(b []byte) string { return unix.ByteSliceToString(b) }
		r.Kernel = strings.Join([]string{text(name.Sysname[:]), text(name.Release[:]), text(name.Version[:]), text(name.Machine[:])}, " ")
	}
	const root = "/proc/sys/"
	r.Sysctls = map[string]string{}
	for _, pattern := range sysctlFiles {
		files, _ := filepath.Glob(root + pattern) // the patterns are well formed
		for _, file := range files[:min(len(files), maxInterfaces)] {
			if value, err := os.ReadFile(file); err == nil { // some can only be written
				r.Sysctls[strings.TrimPrefix(file, root)] = strings.Join(strings.Fields(string(value)), " ")
			}
		}
	}
}

// write writes the report to a file, and says on standard error where and what is missing.
func (r *report) write(cmd *cobra.Command, output string) error {
	r.addDocument("report.json", r.Report)
	last := len(r.files) - 1
	r.files = append(r.files[last:], r.files[:last]...) // people look at it first
	directory := fmt.Sprintf("nftproxy-%s-%s", r.Node, r.Taken.Format("20060102T150405Z"))
	output = cmp.Or(output, directory+".tar.gz")
	var b bytes.Buffer
	err := ruledump.WriteReport(&b, directory, r.Taken, r.files)
	switch {
	case err != nil:
	case output == "-":
		_, err = cmd.OutOrStdout().Write(b.Bytes())
	default:
		err = wholefile.Write(output, b.Bytes(), 0o600)
	}
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	for _, what := range r.Missing {
		fmt.Fprintln(cmd.ErrOrStderr(), "ruledump: not in the report:", what)
	}
	if output != "-" {
		fmt.Fprintf(cmd.ErrOrStderr(), "ruledump: wrote %s, %d kB\n", output, (b.Len()+999)/1000)
	}
	return nil
}

// fromFile decodes a document in the report that the rules come from. It returns nil if there is none.
func fromFile[T any](s *ruledump.Snapshot, name string) (*T, error) {
	data := s.Files[name]
	if data == nil {
		return nil, nil
	}
	out := new(T)
	if err := json.Unmarshal(data, out); err != nil {
		return nil, fmt.Errorf("%s of the report: %w", name, err)
	}
	return out, nil
}
