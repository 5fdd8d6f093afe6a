package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const junit = `<testsuites><testsuite name="e2e">
<testcase name="[SynchronizedBeforeSuite]" status="passed" time="1"></testcase>
<testcase name="[It] [sig-network] DNS should a" status="passed" time="2.5"></testcase>
<testcase name="[It] [sig-network] DNS should b" status="failed" time="3"><failure message="timed out" type="failed">long</failure></testcase>
<testcase name="[It] [sig-network] DNS should c" status="skipped" time="0"><skipped message="skipped"></skipped></testcase>
<testcase name="[It] [sig-network] DNS should d" status="skipped" time="0.1"><skipped message="skipped - needs 9 nodes"></skipped></testcase>
<testcase name="[It] [sig-network] DNS should e" status="panicked" time="1"><error message="nil" type="panicked"></error></testcase>
</testsuite></testsuites>`

func TestParseJUnit(t *testing.T) {
	got, err := parseJUnit([]byte(junit))
	if err != nil {
		t.Fatal(err)
	}
	want := []spec{
		{"[sig-network] DNS should a", "passed", 2.5, ""},
		{"[sig-network] DNS should b", "failed", 3, "timed out"},
		{"[sig-network] DNS should d", "skipped", 0.1, "skipped - needs 9 nodes"},
		{"[sig-network] DNS should e", "panicked", 1, "nil"},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(spec{})); diff != "" {
		t.Errorf("specs (-want +got):\n%s", diff)
	}
}

func TestReport(t *testing.T) {
	const b, e = "[sig-network] DNS should b", "[sig-network] DNS should e"
	run := func(kubeProxyFails []string, known map[string]string, ended ...string) (string, error) {
		specs, err := parseJUnit([]byte(junit))
		if err != nil {
			t.Fatal(err)
		}
		r := report{proxy: "nftproxy", parts: []partResult{{"dns", specs, 90 * time.Second}}, omitted: map[string]int{"needs the Internet": 3}, ended: ended}
		var again partResult
		for _, name := range kubeProxyFails {
			again.specs = append(again.specs, spec{name: name, outcome: "failed"})
		}
		r.judge(again, known)
		return r.page(), r.verdict()
	}
	t.Run("a failure counts", func(t *testing.T) {
		page, err := run(nil, nil)
		for _, name := range []string{b, e} {
			if err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("got %v, want %s named", err, name)
			}
		}
		for _, want := range []string{"| dns | 1 | 2 | 1 | 90 |", "| all | 1 | 2 | 1 | 90 |", "should d | skipped - needs 9 nodes |", "| 3 | needs the Internet |", "kube-proxy passes it", "left out the parts services, "} {
			if !strings.Contains(page, want) {
				t.Errorf("the page lacks %q:\n%s", want, page)
			}
		}
	})
	t.Run("a failure that is in the list counts if kube-proxy passes", func(t *testing.T) {
		if _, err := run([]string{b}, map[string]string{b: "a reason", e: "a reason"}); err == nil || strings.Contains(err.Error(), b) || !strings.Contains(err.Error(), e) {
			t.Errorf("got %v, want %s alone", err, e)
		}
	})
	t.Run("a failure of kube-proxy's too counts if it is not in the list", func(t *testing.T) {
		if _, err := run([]string{b, e}, map[string]string{b: "a reason"}); err == nil || strings.Contains(err.Error(), b) || !strings.Contains(err.Error(), e) {
			t.Errorf("got %v, want %s alone", err, e)
		}
	})
	t.Run("known failures do not count", func(t *testing.T) {
		page, err := run([]string{b, e}, map[string]string{b: "a reason", e: "a reason"})
		if err != nil || !strings.Contains(page, "kube-proxy fails it too, in the same cluster. a reason") {
			t.Errorf("got %v, and the page\n%s", err, page)
		}
	})
	t.Run("a proxy that ended counts", func(t *testing.T) {
		if _, err := run([]string{b, e}, map[string]string{b: "a reason", e: "a reason"}, "node-2"); err == nil || !strings.Contains(err.Error(), "node-2") {
			t.Errorf("got %v, want node-2 named", err)
		}
	})
}

func TestParseKnown(t *testing.T) {
	got, err := parseKnown("# why\n[sig-network] a: #1\n  one\n  reason\n\n[sig-network] b\n\tanother\n")
	if diff := cmp.Diff(map[string]string{"[sig-network] a: #1": "one reason", "[sig-network] b": "another"}, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for _, text := range []string{"  a reason\n", "[sig-network] a\n", "[sig-network] a\n[sig-network] b\n  c\n"} {
		if _, err := parseKnown(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
	if _, err := readKnown("known.txt"); err != nil {
		t.Error(err)
	}
}

func TestParts(t *testing.T) {
	for name, want := range map[string]string{
		"[sig-network] Services should serve a basic endpoint from pods [Conformance]":                                                       "",
		"[sig-network] LoadBalancers [Feature:LoadBalancer] should be able to change the type and ports of a TCP service [Slow]":             "",
		"[sig-network] Networking Granular Checks: Services should function for pod-Service: http":                                           "",
		"[sig-network] Networking Granular Checks: Services should function for service endpoints using SCTP [Feature:SCTPConnectivity]":     "SCTP",
		"[sig-network] Netpol API should support creating NetworkPolicy API operations":                                                      "network policies",
		"[sig-network] IngressClass API should support creating IngressClass API operations [Conformance]":                                   "ingress",
		"[sig-network] Firewall of some provider":                                                                                            "cloud provider",
		"[sig-network] something else should be":                                                                                             "neither",
		"[sig-network] [Feature:IPv6DualStack] should create pod, add ipv6 and ipv4 ip to host ips [Feature:PodHostIPs]":                     "",
		"[sig-network] Traffic Distribution should route traffic to an endpoint in the same zone when using PreferSameZone":                  "",
		"[sig-network] Networking Internet connection should provide Internet connection for containers [Feature:Networking-IPv4]":           "Internet",
		"[sig-network] DNS configMap nameserver Forward PTR lookup should forward PTR records lookup to upstream nameserver [Slow] [Serial]": "CoreDNS",
	} {
		if got := leftOut(name); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if selected, err := selectParts("dns,hostport"); err != nil || len(selected.parts) != 2 || selected.parts[1].name != "hostport" {
		t.Errorf("got %v, %v", selected, err)
	}
	if _, err := selectParts("dsn"); err == nil || !strings.Contains(err.Error(), "hostport") {
		t.Errorf("got %v, want the names that there are", err)
	}
}

func TestListings(t *testing.T) {
	specs := parseSpecs("The following spec names can be used with 'ginkgo run --focus/skip':\n    test/e2e/network/dns.go:50: [sig-network] DNS should provide DNS\n    test/e2e/apps/job.go:9: [sig-apps] Job should\n")
	if diff := cmp.Diff([]string{"[sig-network] DNS should provide DNS"}, specs); diff != "" {
		t.Errorf("specs (-want +got):\n%s", diff)
	}
	images := parseImageNames("registry.example/e2e/nginx:1.27\nregistry.example/e2e/nginx:1.28\nregistry.example/pause:3\n")
	want := map[string][]string{"nginx": {"registry.example/e2e/nginx:1.27", "registry.example/e2e/nginx:1.28"}, "pause": {"registry.example/pause:3"}}
	if diff := cmp.Diff(want, images); diff != "" {
		t.Errorf("images (-want +got):\n%s", diff)
	}
}

func TestSpecText(t *testing.T) {
	for name, want := range map[string]string{
		"[sig-network] LoadBalancers should work [Slow] [sig-network, Slow]": "[sig-network] LoadBalancers should work [Slow]",
		"[SynchronizedBeforeSuite]": "[SynchronizedBeforeSuite]",
	} {
		if got := (spec{name: name}).text(); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
