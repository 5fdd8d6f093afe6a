package integration

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/ruledump/verb"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// readReport returns the files of a report, by name.
func readReport(t *testing.T, name string) map[string]string {
	t.Helper()
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	compressed, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	files, archive := map[string]string{}, tar.NewReader(compressed)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		files[path.Base(header.Name)] = string(text)
	}
}

// expectReport makes a report on a node with the example's proxy, and looks into it.
func expectReport(t *testing.T, node *lab.Host) {
	t.Helper()
	dir := t.TempDir()
	report, log := filepath.Join(dir, "report.tar.gz"), filepath.Join(dir, "proxy.log")
	var lines strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&lines, "I1122 03:00:00 line %d of the log\n", i)
	}
	if err := os.WriteFile(log, []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if text := runRuledump(t, node, "report", "-o", report, "--log", log); strings.Contains(text, "not in the report") {
		t.Errorf("something is missing:\n%s", text)
	}
	if info, err := os.Stat(report); err != nil || info.Mode() != 0o600 {
		t.Errorf("others may read the report: %v, %v", info, err)
	}
	files := readReport(t, report)
	for name, want := range map[string]string{
		"configz.json": `"masqueradeBit":7`, "flagz.txt": "hostname-override=node-1", "statusz.txt": "/metrics",
		"metrics.txt": "kubeproxy_sync_proxy_rules_duration_seconds_count", "healthz.json": `"healthy":true`, "livez.json": `"healthy":true`,
		"rules.json": `"comment": "shop/web:http"`, "stats.json": `"frontends": `, "connections.json": `"by": "state"`, "netstat.txt": "TcpExt:",
	} {
		if !strings.Contains(files[name], want) {
			t.Errorf("%s has no %s:\n%.500s", name, want, files[name])
		}
	}
	tail := files["log.txt"]
	if !strings.HasPrefix(tail, "I1122") || !strings.HasSuffix(tail, "line 99999 of the log\n") || len(tail) > 1<<20 || len(tail) < 1<<20-100 {
		t.Errorf("the log has %d bytes: %.50q", len(tail), tail)
	}
	var described verb.Report
	if err := json.Unmarshal([]byte(files["report.json"]), &described); err != nil {
		t.Fatal(err)
	}
	if described.Node != "node-1" || described.Sysctls["net/ipv4/ip_forward"] != "1" || described.Sysctls["net/ipv4/conf/all/rp_filter"] == "" || len(described.Interfaces) < 2 {
		t.Errorf("report.json: %+v", described)
	}
	expectRedacted(t, node)
	for _, command := range [][]string{{"services"}, {"live"}, {"explain", "--from=198.51.100.7", "--to=192.0.2.10:80"}} {
		if diff := cmp.Diff(runRuledump(t, node, command...), runRuledump(t, node, append(command, "--dump", report)...)); diff != "" {
			t.Errorf("%s (-kernel +report):\n%s", command[0], diff)
		}
	}
}

// expectRedacted makes a redacted report, which has none of the addresses and explains the same.
func expectRedacted(t *testing.T, node *lab.Host) {
	t.Helper()
	lab.Nft(t, node, "add table inet fw\nadd chain inet fw f { type filter hook forward priority -5; }\nadd rule inet fw f ip saddr 203.0.113.77 accept\n", "-f", "-")
	dir := t.TempDir()
	report, log := filepath.Join(dir, "redacted.tar.gz"), filepath.Join(dir, "proxy.log")
	if err := os.WriteFile(log, []byte("I1122 client 198.51.100.7:4000 dialed [fd00:10:96::a]:80\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	runRuledump(t, node, "report", "--redact", "-o", report, "--log", log)
	files := readReport(t, report)
	files["live"] = runRuledump(t, node, "live", "--dump", report)
	for name, text := range files {
		for _, addr := range []string{"10.96.0.10", "192.0.2.10", "10.244.1.5", "10.244.0.0", "192.168.0.1", "198.51.100.7", "fd00:10:96::a", "203.0.113.77"} {
			if strings.Contains(text, addr) {
				t.Errorf("%s has %s", name, addr)
			}
		}
	}
	var services struct{ Frontends []struct{ Address string } }
	if err := json.Unmarshal([]byte(runRuledump(t, node, "services", "--dump", report, "-o=json", "shop/web")), &services); err != nil {
		t.Fatal(err)
	}
	to := services.Frontends[0].Address
	text := runRuledump(t, node, "explain", "--dump", report, "--from=203.0.113.9", "--to", to)
	if !strings.Contains(text, "why: sent to one of 3 endpoints: shop/web:http; the source is masqueraded: the client is outside clusterCIDR ") || !strings.Contains(text, "table inet fw: a redacted report leaves out the rules of other programs") {
		t.Errorf("to %s:\n%s", to, text)
	}
	lab.Nft(t, node, "", "delete", "table", "inet", "fw")
}

// A program that answers at port 10249 does not choose whom ruledump asks.
func TestReportAddresses(t *testing.T) {
	t.Parallel()
	l := lab.ForTest(t)
	for _, tt := range []struct {
		bound string
		asked bool
	}{{"0.0.0.0:10256", true}, {"127.0.0.1:10256", true}, {"192.168.0.1:10256", false}} {
		t.Run(tt.bound, func(t *testing.T) {
			var asked atomic.Int64
			for address, handler := range map[string]http.HandlerFunc{
				"127.0.0.1:10249": func(w http.ResponseWriter, _ *http.Request) {
					fmt.Fprintf(w, `{"kubeproxy.config.k8s.io": {"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": "nftables", "healthzBindAddress": %q}}`, tt.bound)
				},
				"0.0.0.0:10256": func(w http.ResponseWriter, _ *http.Request) {
					asked.Add(1)
					fmt.Fprintln(w, "the health")
				},
			} {
				var listener net.Listener
				if err := l.Node.Do(func() (err error) {
					listener, err = net.Listen("tcp", address)
					return err
				}); err != nil {
					t.Fatal(err)
				}
				server := httptest.NewUnstartedServer(handler)
				server.Listener.Close()
				server.Listener = listener
				server.Start()
				defer server.Close()
			}
			report := filepath.Join(t.TempDir(), "report.tar.gz")
			said := runRuledump(t, l.Node, "report", "-o", report)
			files := readReport(t, report)
			if files["configz.json"] == "" {
				t.Fatalf("the program at port 10249 was not asked:\n%s", said)
			}
			if got := asked.Load() == 2 && files["healthz.json"] == "the health\n"; got != tt.asked || !tt.asked && asked.Load() > 0 {
				t.Errorf("asked %d times, healthz.json is %q", asked.Load(), files["healthz.json"])
			}
			if missing := "pages of the proxy: /healthz and /livez at " + tt.bound + " are not asked"; strings.Contains(said, missing) == tt.asked {
				t.Errorf("ruledump says:\n%s", said)
			}
		})
	}
}
