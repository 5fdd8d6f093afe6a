package verb

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// row is a row of a table that a verb printed, by the headings of its columns.
type row map[string]string

// tableRows reads the tables in an output. Cells are two spaces apart.
func tableRows(output string) (rows []row) {
	gap := regexp.MustCompile(` {2,}`)
	var head []string
	for line := range strings.Lines(output) {
		cells := gap.Split(strings.TrimRight(line, "\n"), -1)
		switch {
		case len(cells) < 2:
			head = nil
		case line == strings.ToUpper(line) && !strings.ContainsAny(line, "0123456789"):
			head = cells
		case len(cells) == len(head):
			r := row{}
			for i, cell := range cells {
				r[head[i]] = cell
			}
			rows = append(rows, r)
		}
	}
	return rows
}

// quantities are columns whose cells count or measure, and name nothing.
var quantities = map[string][]string{
	"services": {"ENDPOINTS", "AFFINITY"},
	"stats":    {"CHAINS", "RULES", "SETS", "ELEMENTS", "MEMORY (ESTIMATE)", "OWNER", "EXTERNAL", "CLIENTS", "SIZE", "FULL"},
}

// Each cell that a verb prints for a golden case is accepted by each verb that takes a Service or an address: services
// prints its row again, and the others answer, or say that the cell names several Services.
func TestEachCellIsAccepted(t *testing.T) {
	for i, name := range []string{
		"baseline-of-the-example", "affinity-under-policy-local", "source-ranges-drop-all-others", "both-policies-local",
		"one-port-number-for-tcp-udp-and-sctp", "each-named-port-goes-to-its-own-target", "no-endpoints-refuses-every-frontend",
	} {
		if testing.Short() && i > 1 {
			continue
		}
		from := []string{"--manifests", exampleDir + "manifests", "--node", lab.NodeName}
		if name != "baseline-of-the-example" {
			c := flows.FindCase(t, name)
			from = []string{"--manifests", c.ManifestsDir(t), "--config", c.ConfigFile(t), "--node", lab.NodeName}
		}
		t.Run(name, func(t *testing.T) {
			dump := filepath.Join(t.TempDir(), "dump.json")
			if err := os.WriteFile(dump, []byte(printed(t, append([]string{"compile", "-o", "json"}, from...)...)), 0o600); err != nil {
				t.Fatal(err)
			}
			// With objects there are places of endpoints too.
			for _, source := range [][]string{{"--dump", dump}, from} {
				eachCellIsAccepted(t, source)
			}
		})
	}
}

func eachCellIsAccepted(t *testing.T, source []string) {
	t.Helper()
	tried := map[string]struct {
		status         int
		stdout, stderr string
	}{}
	for _, verb := range [][]string{{"services", "-o", "wide"}, {"stats"}} {
		rows := tableRows(printed(t, append(verb, source...)...))
		if len(rows) == 0 {
			t.Fatalf("%s prints no table", verb[0])
		}
		for _, r := range rows {
			for column, text := range r {
				if slices.Contains(quantities[verb[0]], column) {
					continue
				}
				for _, cell := range strings.FieldsFunc(strings.ReplaceAll(text, "; local: ", ","), func(c rune) bool { return c == ',' }) {
					if cell == "-" || column == "SOURCES" && !strings.Contains(cell, "/") { // "all", "2 ranges"
						continue
					}
					services, again := tried[cell]
					if !again {
						services.status, services.stdout, services.stderr = execute(append([]string{"services", cell, "-o", "wide"}, source...)...)
						tried[cell] = services
					}
					switch {
					case verb[0] == "stats" && strings.Contains(services.stderr, "the rules have no Service "+cell+":"): // "ip6"
					case services.status != 0:
						t.Errorf("services %q: %s", cell, services.stderr)
					case verb[0] == "services" && !slices.ContainsFunc(tableRows(services.stdout), r.is):
						t.Errorf("services %q does not print %v", cell, r)
					case !again:
						accepted(t, cell, source)
					}
				}
			}
		}
	}
}

func (r row) is(other row) bool {
	return r["SERVICE PORT"] == other["SERVICE PORT"] && r["FRONTEND"] == other["FRONTEND"]
}

// accepted gives a cell to the verbs that take one Service or address.
func accepted(t *testing.T, cell string, source []string) {
	t.Helper()
	several := regexp.MustCompile(`names \d+ Service`)
	if status, _, stderr := execute(append([]string{"graph", cell}, source...)...); status != 0 && !several.MatchString(stderr) {
		t.Errorf("graph %q: %s", cell, stderr)
	}
	var refused []string
	for _, client := range []string{"198.51.100.7", "2001:db8:51::7"} {
		if status, _, stderr := execute(append([]string{"explain", "--to", cell, "--from", client}, source...)...); status != 0 && !several.MatchString(stderr) {
			refused = append(refused, stderr)
		}
	}
	if len(refused) == 2 {
		t.Errorf("explain --to %q: %s", cell, refused)
	}
}

func printed(t *testing.T, args ...string) string {
	t.Helper()
	status, stdout, stderr := execute(args...)
	if status != 0 {
		t.Fatalf("ruledump %q: %s", args, stderr)
	}
	return stdout
}

func TestFilter(t *testing.T) {
	const all = "shop/api shop/empty shop/web"
	for _, tc := range []struct {
		args []string
		// want has the Services that are selected, or the error.
		want string
	}{
		{nil, all},
		{[]string{"-A", "-n", "other"}, all},
		{[]string{"-n", "shop"}, all},
		{[]string{"shop/web"}, "shop/web"},
		{[]string{"web"}, "shop/web"},
		{[]string{"web:http"}, "shop/web"},
		{[]string{"shop/web:80"}, "shop/web"},
		{[]string{"-n", "shop", "web:http"}, "shop/web"},
		{[]string{"10.96.0.10"}, "shop/web"},
		{[]string{"10.96.0.10:80/tcp"}, "shop/web"},
		{[]string{"10.96.0.0/27"}, "shop/api shop/empty shop/web"},
		{[]string{"10.96.0.16/28"}, "shop/api shop/empty"},
		{[]string{":30443"}, "shop/api"},
		{[]string{"192.168.0.1:30443/TCP"}, "shop/api"},
		{[]string{"10.244.1.5"}, "shop/web"},
		{[]string{"10.244.1.7:8443"}, "shop/api"},
		{[]string{"cluster-2"}, "shop/api"},
		{[]string{"NodePort"}, "shop/api shop/web"},
		{[]string{"--unserved"}, "shop/empty"},
		{[]string{"--unserved", "shop/web"}, ""},
		{[]string{"shop/web:https"}, "the rules have no Service shop/web:https: see whether"},
		{[]string{"10.96.0.10:81"}, "the rules have no Service with the address or the endpoint 10.96.0.10:81"},
		{[]string{"10.96.0.10:80/UDP"}, "the rules have no Service with the address or the endpoint 10.96.0.10:80/UDP"},
		{[]string{"10.96.0.10:80/http"}, `"10.96.0.10:80/http": protocol "http" is not tcp, udp or sctp`},
		{[]string{"10.96.0.10:http"}, `"10.96.0.10:http": port "http" is not a number`},
		{[]string{":0"}, `":0" is neither an IP address nor one with a port`},
		{[]string{"-n", "other", "shop/web"}, "shop/web is not in namespace other"},
		{[]string{"ESTABLISHED"}, "the rules have no Service ESTABLISHED: see whether"},
	} {
		t.Run(strings.Join(tc.args, " "), func(t *testing.T) {
			args := append([]string{"services", "-o", "name", "--manifests", exampleDir + "manifests", "--config", exampleDir + "config.yaml", "--node", lab.NodeName}, tc.args...)
			status, stdout, stderr := execute(args...)
			if status != 0 && (tc.want == "" || !strings.HasPrefix(stderr, "ruledump: "+tc.want)) || status == 0 && strings.Join(strings.Fields(stdout), " ") != tc.want {
				t.Errorf("want %q, got %q %s", tc.want, stdout, stderr)
			}
		})
	}
}

func TestExplainToAService(t *testing.T) {
	for _, tc := range []struct{ from, to, want string }{
		{"10.244.1.250", "shop/web", "tcp 10.244.1.250 to 10.96.0.10:80\n"},
		{"10.244.1.250", "web:http", "tcp 10.244.1.250 to 10.96.0.10:80\n"},
		{"198.51.100.7", ":30080", "tcp 198.51.100.7 to 192.168.0.1:30080\n"},
		{"fd00::1", "shop/web", "--to: shop/web has no address of the family of --from"},
		{"10.244.1.250", "ClusterIP", "--to: ClusterIP names 3 Service ports: give one, such as shop/api"},
		{"10.244.1.250", "shop/nothing", "--to: the rules have no Service shop/nothing"},
	} {
		if got, err := explainExample("--from", tc.from, "--to", tc.to); !strings.Contains(got, tc.want) && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("--from %s --to %s: no %q in\n%s%v", tc.from, tc.to, tc.want, got, err)
		}
	}
}

func TestNoHeaders(t *testing.T) {
	args := []string{"services", "--manifests", exampleDir + "manifests", "--node", lab.NodeName}
	with, without := printed(t, args...), printed(t, append(args, "--no-headers")...)
	if _, rest, _ := strings.Cut(with, "\n"); rest != without || without == "" {
		t.Errorf("%q and %q", with, without)
	}
}
