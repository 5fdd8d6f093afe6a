package integration

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

var kubeProxy = flag.String("kube-proxy", "", "Kubernetes' kube-proxy, to compare its endpoints with docs/migration.md")

// migrationRows returns what a pattern finds in docs/migration.md.
func migrationRows(t *testing.T, pattern string, atLeast int) [][]string {
	t.Helper()
	text, err := os.ReadFile("../docs/migration.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile("(?m)"+pattern).FindAllStringSubmatch(string(text), -1)
	if len(rows) < atLeast {
		t.Fatalf("docs/migration.md has %d rows that match %s, want at least %d", len(rows), pattern, atLeast)
	}
	return rows
}

func TestMigrationPage(t *testing.T) {
	t.Run("HTTP endpoints are as documented", testEndpointsAreAsDocumented)
	t.Run("metrics of libraries are as documented", testMetricsOfLibrariesAreAsDocumented)
}

func testEndpointsAreAsDocumented(t *testing.T) {
	rows := migrationRows(t, "^\\| (\\d+) \\| `(GET|PUT) (/\\S*)` \\| (\\d+) \\| (\\d+) \\| (.*) \\|$", 20)
	programs := map[string]string{"this": lab.Binary(t, "kube-proxy")}
	if *kubeProxy != "" {
		programs["Kubernetes'"] = *kubeProxy
	}
	for name, program := range programs {
		for column, profiling := range map[int]string{4: "--profiling=false", 5: "--profiling"} {
			t.Run(name+" "+profiling, func(t *testing.T) {
				f := newWithServer(t)
				args := append(append(f.args(), leaveConntrack...), "--proxy-mode=nftables", "--kubeconfig="+f.kubeconfig, profiling)
				p := lab.StartCommand(t, f.lab.Node, exec.Command(program, args...))
				f.serves(t)
				for _, row := range rows {
					port, method, path, want := row[1], row[2], row[3], row[column]
					if got := f.status(t, method, "http://127.0.0.1:"+port+path); got != want && (name == "this" || strings.HasPrefix(row[6], "same")) {
						t.Errorf("%s %s at port %s: status %s, want %s", method, path, port, got, want)
					}
				}
				if err := p.Stop(t); err != nil && name == "this" {
					t.Errorf("the proxy ended with %v", err)
				}
			})
		}
	}
}

// serves waits until both servers of the proxy answer, and the health server well.
func (f *withServer) serves(t *testing.T) {
	t.Helper()
	for _, server := range servers {
		await.Until(t, "there is a "+server.name, func() error {
			_, err := getFrom(f.lab.Node, strings.Replace("http://"+server.address+server.path, "0.0.0.0", "127.0.0.1", 1))
			return err
		})
	}
	await.Until(t, "the proxy is healthy", func() error {
		if got := f.status(t, http.MethodGet, "http://127.0.0.1:10256/healthz"); got != "200" {
			return fmt.Errorf("status %s", got)
		}
		return nil
	})
}

// status asks a server of the node.
func (f *troubled) status(t *testing.T, method, url string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: f.lab.Node.DialContext}}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	return fmt.Sprint(response.StatusCode)
}

func testMetricsOfLibrariesAreAsDocumented(t *testing.T) {
	f := newWithServer(t)
	f.start(t, "--kubeconfig="+f.kubeconfig)
	f.applied(t)
	page, err := getFrom(f.lab.Node, "http://127.0.0.1:10249/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range migrationRows(t, "^\\| `([a-z_]+[*]?)` \\| (same|different: .*|not applicable: .*) \\|$", 25) {
		name, there := row[1], !strings.HasPrefix(row[2], "not applicable")
		if there && strings.HasPrefix(name, "kubeproxy_") {
			continue // metrics with labels show when there is something to show; their own package tests them
		}
		pattern := `(?m)^# TYPE ` + strings.Replace(name, "*", `\w+`, 1) + ` `
		if regexp.MustCompile(pattern).MatchString(page) != there {
			t.Errorf("docs/migration.md says %s: %s", name, row[2])
		}
	}
}
