package verb

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"html"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/nftproxy/nftproxy/nft"
)

// The tests of tools/page open these pages in a browser.
var pages = flag.String("pages", "", "write pages of ruledump check into this `directory`")

var shopSnapshot = sync.OnceValues(func() (*ruledump.Snapshot, error) {
	return ruledump.FromManifests("../../../docs/troubleshooting/shop.yaml", ruledump.Compilation{Node: "node-1", Config: "../../../docs/troubleshooting/config.yaml"})
})

// shopRules returns a copy of the rules of shop.yaml to which tables can be added.
func shopRules() (*ruledump.Snapshot, error) {
	rules, err := shopSnapshot()
	if err != nil {
		return nil, err
	}
	own := *rules
	return &own, nil
}

// brokenNode is a node with four faults, in the words of the page about incidents. Its rules are real ones.
func brokenNode(t testing.TB) *Check {
	t.Helper()
	rules, err := shopRules()
	if err != nil {
		t.Fatal(err)
	}
	drop := nft.NewRule(nft.Match{Field: nft.IPDaddr, Value: netip.MustParsePrefix("10.244.2.0/24")}, nft.Drop)
	rules.Ordered = append(slices.Clone(rules.Tables), &nft.Table{Family: nft.FamilyInet, Name: "fw", Kernel: &nft.KernelTable{Other: true},
		Chains: []*nft.Chain{{Name: "forward", Type: nft.TypeFilter, Hook: nft.HookForward, Rules: []nft.Rule{drop}}}})
	taken := time.Date(2026, 11, 24, 18, 50, 12, 0, time.UTC)
	c := &Check{
		nodeDocument: aboutNode("Check", rules), Taken: taken, Verdict: verdictBroken, rules: rules,
		Clients: []CheckClient{
			{Name: "pods here", Kind: "pod", From: "10.244.1.250"}, {Name: "pods elsewhere", Kind: "pod-elsewhere", From: "10.244.2.250%eth0"},
			{Name: "this node", Kind: "node", From: "192.168.0.1"}, {Name: "outside, eth0", Kind: "outside", From: "198.51.100.7%eth0"},
		},
		Findings: []CheckFinding{
			{Level: levelBroken, Cause: "inet fw forward drops it (rule 1)", Why: "ip daddr 10.244.2.0/24 drop: endpoints on node-2 get nothing, and two of four connections to shop/search fail.",
				Services: []string{"shop/search", "shop/shopfront"}, ServicesTotal: 2, Endpoints: addrPorts("10.244.2.10:8080", "10.244.2.11:8080", "10.244.2.6:8080"), EndpointsTotal: 3,
				Clients: []string{"pods here", "pods elsewhere", "outside, eth0"}, From: "10.244.1.250", To: "10.96.0.60:80", More: "ruledump explain --from 10.244.1.250 --to 10.96.0.60:80"},
			{Level: levelBroken, Cause: "no ready endpoint on any node", Why: "The slice of shop/cart has one endpoint, and it is not ready.", Services: []string{"shop/cart"}, ServicesTotal: 1,
				Clients: []string{"pods here", "pods elsewhere", "this node"}, From: "10.244.1.250", To: "10.96.0.30:80", More: "ruledump explain --from 10.244.1.250 --to 10.96.0.30:80"},
			{Level: levelBroken, Cause: "policy Local, and no endpoint on this node", Why: "Clients outside the cluster get no answer from 192.0.2.40 through this node.", Services: []string{"shop/shopfront"}, ServicesTotal: 1,
				Clients: []string{"outside, eth0"}, From: "198.51.100.7%eth0", To: "192.0.2.40:80", More: "ruledump explain --from 198.51.100.7%eth0 --to 192.0.2.40:80"},
			{Level: levelBroken, Cause: "10.244.1.5:8080 does not answer", Why: "12 of 14 connections are unanswered: look at the pod and at its network policy.", Services: []string{"shop/admin", "shop/web"}, ServicesTotal: 2,
				Endpoints: addrPorts("10.244.1.5:8080"), EndpointsTotal: 1, Clients: []string{"pods here", "this node"}, More: "ruledump connections 10.244.1.5 --unanswered"},
			{Level: levelRemark, Cause: "connection tracking is 83 % full", Why: "New connections are dropped at 262144 entries.", More: "sysctl net.netfilter.nf_conntrack_max"},
		},
		Services: []CheckService{
			{"shop/admin", "10.96.0.50:80/TCP", "ClusterIP", []int{-1, -1, -1, -2}}, {"shop/admin", "192.0.2.50:80/TCP", "External", []int{-1, -1, -1, -3}},
			{"shop/cart", "10.96.0.30:80/TCP", "ClusterIP", []int{1, 1, 1, -2}}, {"shop/search", "10.96.0.60:80/TCP", "ClusterIP", []int{0, 0, -1, -2}},
			{"shop/shopfront", "10.96.0.40:80/TCP", "ClusterIP", []int{0, 0, -1, -2}}, {"shop/shopfront", "192.0.2.40:80/TCP", "External", []int{-1, -1, -1, 2}},
			{"shop/web", "10.96.0.10:80/TCP", "ClusterIP", []int{-1, -1, -1, -2}},
		},
		Endpoints: []CheckEndpoint{
			{netip.MustParseAddrPort("10.244.1.5:8080"), "node-1", "shop/web-6d5f9c7b8-x2kqp", 2, 14, 12, 3}, {netip.MustParseAddrPort("10.244.1.10:8080"), "node-1", "shop/search-0", 1, 31, 0, -1},
			{netip.MustParseAddrPort("10.244.1.11:8080"), "node-1", "shop/search-2", 1, 28, 0, -1}, {netip.MustParseAddrPort("10.244.2.6:8080"), "node-2", "shop/shopfront-79f7d9c9d4-m4z9c", 1, 0, 0, 0},
			{netip.MustParseAddrPort("10.244.2.10:8080"), "node-2", "shop/search-1", 1, 9, 9, 0}, {netip.MustParseAddrPort("10.244.2.11:8080"), "node-2", "shop/search-3", 1, 7, 7, 0},
		},
		Conntrack:   &CheckConntrack{Entries: 217_580, Limit: 262_144, InsertFailed: 3, EarlyDrop: 12},
		Proxy:       CheckProxy{State: "applied", LastSync: taken.Add(-12 * time.Second), Generation: 4312, Rules: 61, Repairs: 2},
		NotLookedAt: []string{"programs of tc at eth0"},
	}
	return c
}

func addrPorts(texts ...string) (list []netip.AddrPort) {
	for _, text := range texts {
		list = append(list, netip.MustParseAddrPort(text))
	}
	return list
}

// largeNode is a broken node with that many Services more, each with a ClusterIP, a node port and so many endpoints.
func largeNode(t testing.TB, services, endpoints int) *Check {
	c := brokenNode(t)
	for i := range services {
		name := fmt.Sprintf("team-%d/some-service-%d:https", i%40, i)
		c.Services = append(c.Services, CheckService{name, fmt.Sprintf("10.%d.%d.%d:8443/TCP", 97+i>>16, i>>8&255, i&255), "ClusterIP", []int{-1, -1, -1, -2}},
			CheckService{name, fmt.Sprintf(":%d/TCP", 30000+i%2768), "NodePort", []int{-1, -1, -1, -1}})
		for j := range endpoints {
			n := i*endpoints + j
			address := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(128 + n>>16), byte(n >> 8), byte(n)}), 8443)
			c.Endpoints = append(c.Endpoints, CheckEndpoint{address, fmt.Sprintf("node-%d.example.com", n%300), fmt.Sprintf("team-%d/some-service-%d-7c9d6b5f4-%05x", i%40, i, n), 1, n % 7, 0, -1})
		}
	}
	return c
}

func TestCheckPage(t *testing.T) {
	t.Run("is as recorded", func(t *testing.T) {
		const golden = "testdata/check.html"
		page := brokenNode(t).HTML()
		if *update {
			if err := os.WriteFile(golden, []byte(page), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), page); diff != "" {
			t.Errorf("make golden rewrites %s (-recorded +now):\n%s", golden, diff)
		}
	})
	t.Run("has at most 5 MB, and all rows of 10,000 Services with 2 endpoints", func(t *testing.T) {
		c := largeNode(t, 10_000, 2)
		page := c.HTML()
		services, endpoints := pageRows(t, page)
		t.Logf("%d bytes, %d addresses, %d endpoints", len(page), services, endpoints)
		if len(page) > 5_000_000 || services != len(c.Services) || endpoints != len(c.Endpoints) {
			t.Errorf("%d bytes with %d of %d addresses, %d of %d endpoints", len(page), services, len(c.Services), endpoints, len(c.Endpoints))
		}
	})
	t.Run("has at most 5 MB with more of everything, and the worst of it", func(t *testing.T) {
		c := largeNode(t, 30_000, 3)
		for i := range c.Services {
			c.Services[i].ServicePort = strings.Repeat("<", 500) + c.Services[i].ServicePort
		}
		for i := range c.Services[0].Cells {
			c.Services[len(c.Services)-1].Cells[i] = 0
		}
		worst := c.Findings[0]
		for i := range 1000 {
			worst.Services = append(worst.Services, strings.Repeat("&", 500))
			worst.Cause = fmt.Sprint("cause ", i)
			c.Findings = append(c.Findings, worst)
		}
		page := c.HTML()
		services, endpoints := pageRows(t, page)
		if len(page) > 5_000_000 || services == 0 || services == len(c.Services) || endpoints == 0 {
			t.Errorf("%d bytes with %d of %d addresses, %d of %d endpoints", len(page), services, len(c.Services), endpoints, len(c.Endpoints))
		}
		for _, want := range []string{"cause 0", "more: <code>ruledump check -o json</code>", c.Services[len(c.Services)-1].Address, fmt.Sprintf(`"all":[%d,%d]`, len(c.Services), len(c.Endpoints))} {
			if !strings.Contains(page, want) {
				t.Errorf("no %q", want)
			}
		}
	})
	t.Run("of nothing", func(t *testing.T) {
		page := (&Check{Verdict: verdictWorks}).HTML()
		if !strings.Contains(page, "<title>this node: nothing is broken</title>") {
			t.Error(page)
		}
		structure(t, page)
	})
	if *pages != "" {
		for name, c := range map[string]*Check{"broken.html": brokenNode(t), "large.html": largeNode(t, 10_000, 2), "hostile.html": hostileNode(t, hostileTexts[0]), "works.html": {Verdict: verdictWorks, Taken: time.Unix(0, 0)}} {
			if err := os.WriteFile(filepath.Join(*pages, name), []byte(c.HTML()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

var dataBlock = regexp.MustCompile(`(?s)<script id="data" type="application/json">(.*?)</script>`)

// pageRows returns how many rows the tables of a page have.
func pageRows(t testing.TB, page string) (services, endpoints int) {
	t.Helper()
	var tables struct{ Services, Endpoints [][]any }
	if err := json.Unmarshal([]byte(dataBlock.FindStringSubmatch(page)[1]), &tables); err != nil {
		t.Fatal(err)
	}
	return len(tables.Services), len(tables.Endpoints)
}

// hostileTexts try to leave the place that a text has.
var hostileTexts = []string{
	`</script><script>document.title = "hacked"</script><img src="http://127.0.0.1:9/x" onerror="document.title='hacked'">`,
	`" autofocus onfocus="document.title='hacked'" x="`, `' onmouseover='document.title="hacked"`, "<!--<script>", "]]>", "--><b>", "{{script}}{{data}}", "$$$", "\x00\x1b[31m\xff\xfe", "\u202egnp.exe\u2066", "\u2028</title>",
	`$(reboot);` + "`reboot`", strings.Repeat("a", 70_000), "&lt;b&gt;",
}

// hostileNode is a broken node with one text in each place that has a text.
func hostileNode(t testing.TB, text string) *Check {
	c := brokenNode(t)
	c.Node, c.Proxy = text, CheckProxy{State: text, Why: text}
	c.NotLookedAt = []string{text}
	f := &c.Findings[0]
	f.Level, f.Cause, f.Why, f.More, f.Clients = checkLevel(text), text, text, text, []string{text}
	f.Services = slices.Repeat([]string{text}, 8)
	f.ServicesTotal = 9
	c.Findings[1].From, c.Findings[1].To = text, text
	c.Services[0].ServicePort, c.Services[0].Address, c.Services[0].Kind = text, text, text
	c.Endpoints[0].Node, c.Endpoints[0].Pod = text, text
	c.Clients[0] = CheckClient{text, text, text, text}
	fw := c.rules.Ordered[len(c.rules.Ordered)-1]
	fw.Name, fw.Chains[0].Name = text[:min(len(text), 255)], text[:min(len(text), 255)]
	return c
}

// structure returns the elements of a page with the names of their attributes, without the block of JSON.
func structure(t testing.TB, page string) (out []string) {
	t.Helper()
	page = dataBlock.ReplaceAllString(page, "")
	for _, own := range []string{checkCSS, checkJS, svgStyle, "<!doctype html>\n"} {
		page = strings.ReplaceAll(page, own, "")
	}
	d := xml.NewDecoder(strings.NewReader(page))
	d.Strict, d.AutoClose, d.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, page)
		}
		if start, ok := token.(xml.StartElement); ok {
			names := []string{start.Name.Local}
			for _, a := range start.Attr {
				names = append(names, a.Name.Local)
			}
			out = append(out, strings.Join(names, " "))
		}
		if _, isComment := token.(xml.Comment); isComment {
			out = append(out, "comment")
		}
	}
}

// checkEscaped fails if a text changes the elements of the page.
func checkEscaped(t *testing.T, text string) {
	t.Helper()
	with, page := hostileNode(t, "x").HTML(), hostileNode(t, text).HTML()
	if strings.ContainsFunc(page, func(r rune) bool {
		return strings.ContainsRune("\x00\x1b\u202a\u202b\u202d\u202e\u2066\u2067\u2028", r)
	}) {
		t.Errorf("%q: the page has characters that cannot be seen", text)
	}
	if strings.Count(page, "<script") != 2 || strings.Count(page, "</script") != 2 || strings.Contains(dataBlock.FindString(page)[20:], "<!") {
		t.Errorf("%q: other scripts", text)
	}
	pageRows(t, page)
	// How a drawing wraps its lines depends on their lengths.
	drawn := func(name string) bool {
		return strings.HasPrefix(name, "text ") || strings.HasPrefix(name, "rect ") || strings.HasPrefix(name, "path ")
	}
	a, b := slices.DeleteFunc(structure(t, with), drawn), slices.DeleteFunc(structure(t, page), drawn)
	if diff := cmp.Diff(a, b); diff != "" {
		t.Errorf("%q: other elements:\n%s", text, diff)
	}
}

func TestCheckPageEscapes(t *testing.T) {
	t.Run("and the test would see an element", func(t *testing.T) {
		with := structure(t, strings.Replace(brokenNode(t).HTML(), "<h2", "<b onclick='x'></b><h2", 1))
		if !slices.Contains(with, "b onclick") {
			t.Error(with)
		}
	})
	for i, text := range hostileTexts {
		t.Run(fmt.Sprint("text ", i), func(t *testing.T) { checkEscaped(t, text) })
	}
}

// FuzzCheckPage tries the two ways of a text into the page.
func FuzzCheckPage(f *testing.F) {
	for _, text := range hostileTexts {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var m markup
		m.add(`<p title="$">$</p>`, text, text)
		var p struct {
			Title string `xml:"title,attr"`
			Text  string `xml:",innerxml"`
		}
		if err := xml.Unmarshal([]byte(m.String()), &p); err != nil || html.UnescapeString(p.Text) != plain(text) || strings.ContainsAny(p.Text, `<>"'`) {
			t.Errorf("%q became %q: %v", text, m.String(), err)
		}
		c := &Check{
			Clients: []CheckClient{{text, text, text, text}}, Services: []CheckService{{text, text, text, []int{-1}}}, Endpoints: []CheckEndpoint{{Node: text, Pod: text}},
		}
		if data := c.tables(); !json.Valid([]byte(data)) || strings.ContainsAny(data, "<>") {
			t.Errorf("%q became %q", text, data)
		}
	})
}
