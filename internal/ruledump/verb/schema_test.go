package verb

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

func compiledSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	parsed, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		t.Fatal(err)
	}
	closeObjects(parsed)
	c := jsonschema.NewCompiler()
	if err := c.AddResource("v1.json", parsed); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("v1.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// closeObjects forbids fields that the schema does not name, so that a new field without a description fails the test.
func closeObjects(v any) {
	switch v := v.(type) {
	case map[string]any:
		if _, isObject := v["properties"]; isObject {
			v["additionalProperties"] = false
		}
		for _, e := range v {
			closeObjects(e)
		}
	case []any:
		for _, e := range v {
			closeObjects(e)
		}
	}
}

func TestSchema(t *testing.T) {
	s := compiledSchema(t)
	conforms := func(t *testing.T, text string) {
		t.Helper()
		value, err := jsonschema.UnmarshalJSON(bytes.NewReader([]byte(text)))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Validate(value); err != nil {
			t.Errorf("%v\n%.2000s", err, text)
		}
	}
	for i, c := range flows.Cases(t) {
		if testing.Short() && i%10 > 0 {
			continue
		}
		from := []string{"--manifests", c.ManifestsDir(t), "--config", c.ConfigFile(t), "--node", lab.NodeName}
		dumped := filepath.Join(t.TempDir(), "dump.json")
		for _, command := range [][]string{
			append([]string{"compile"}, from...),
			append([]string{"check"}, from...),
			append([]string{"services"}, from...),
			append([]string{"stats"}, from...),
			append([]string{"explain", "--from", "198.51.100.7:40000%eth0", "--to", "192.0.2.10:80"}, from...),
			append([]string{"explain", "--from", "10.244.1.250:40000%veth1", "--to", "10.96.0.10:80"}, from...),
			append([]string{"diff", "--dump", dumped}, from...),
		} {
			t.Run(c.Name+"/"+command[0], func(t *testing.T) {
				status, stdout, stderr := execute(append(command, "-o", "json")...)
				// Findings make it 1, and clients whose way manifests do not tell make it 2: those of detectLocal by interface.
				if status != 0 && (command[0] != "check" || stdout == "") {
					t.Fatalf("status %d: %s", status, stderr)
				}
				conforms(t, stdout)
				if command[0] == "compile" {
					if err := os.WriteFile(dumped, []byte(stdout), 0o600); err != nil {
						t.Fatal(err)
					}
				}
			})
		}
	}
	t.Run("rules of a node-local server", func(t *testing.T) {
		target, _ := flows.Serve(t, exampleDir+"manifests")
		status, stdout, stderr := execute("compile", "-o", "json", "--node-local", target, "--node=node-1")
		if status != 0 || !strings.Contains(stdout, `"origin": "node-local"`) {
			t.Fatalf("status %d: %s", status, stderr)
		}
		conforms(t, stdout)
	})
	t.Run("a dump with tables of other programs", func(t *testing.T) {
		fw, err := (&nft.Table{Family: nft.FamilyIP6, Name: "fw", Chains: []*nft.Chain{{Name: "c", Rules: []nft.Rule{nft.NewRule(nft.Drop)}}}}).Record()
		if err != nil {
			t.Fatal(err)
		}
		others, err := json.Marshal(map[string]any{
			"tables": []any{map[string]any{"family": "ip", "name": "kube-proxy", "own": true}, map[string]any{"family": "ip6", "name": "fw", "netlink": fw}},
			"routes": []any{map[string]string{"to": "0.0.0.0/0", "interface": "eth0"}}, "interfaces": map[string]int{"eth0": 2},
			"bridges": map[string]string{"veth-1": "cni0"}, "bridgePorts": map[string]string{"10.244.1.5": "veth-1"}, "bridgeFilters": []string{"ip"}, "noHairpin": []string{"veth-1"}, "notLookedAt": []string{"x"},
		})
		if err != nil {
			t.Fatal(err)
		}
		status, dump, stderr := execute("compile", "-o", "json", "--node=node-1", "--manifests", exampleDir+"manifests")
		if status != 0 {
			t.Fatal(stderr)
		}
		dumped := filepath.Join(t.TempDir(), "dump.json")
		dump = strings.Replace(dump, `"tables": [`, `"others": `+string(others)+`, "tables": [`, 1)
		if err := os.WriteFile(dumped, []byte(dump), 0o600); err != nil {
			t.Fatal(err)
		}
		status, stdout, stderr := execute("live", "-o", "json", "--dump", dumped)
		if status != 0 || !strings.Contains(stdout, `"rule": "drop"`) {
			t.Fatalf("status %d: %s", status, stderr)
		}
		conforms(t, stdout)
	})
	t.Run("a difference", func(t *testing.T) {
		conforms(t, different(t, "-o", "json"))
	})
	t.Run("a change", func(t *testing.T) {
		text, err := json.Marshal(change{document: documentOf("Change"), Counts: map[string]int{"+rule": 1}, Parts: []string{"+ rule"}})
		if err != nil {
			t.Fatal(err)
		}
		conforms(t, string(text))
	})
	t.Run("a refusal", func(t *testing.T) {
		client, dialed := netip.MustParseAddrPort("10.244.1.5:40000"), netip.MustParseAddrPort("10.96.0.10:80")
		about := nodeDocument{documentOf("Refusal"), "node-1", "host-name"}
		for _, f := range []refusal{
			{nodeDocument: about, Lost: true},
			{nodeDocument: about, Limited: true},
			{
				nodeDocument: about, Result: "refused", Reason: ReasonNoEndpoints, Why: "no endpoint", Namespace: "shop", Service: "web", Port: "http",
				Client: client, Dialed: dialed, Protocol: "TCP",
			},
		} {
			text, err := json.Marshal(f)
			if err != nil {
				t.Fatal(err)
			}
			conforms(t, string(text))
		}
	})
	t.Run("connections, their events, and a report", func(t *testing.T) {
		flow := &serviceFlow{Protocol: "TCP", connection: connection{State: "ESTABLISHED", NoEndpoint: true, Finished: true}, Begun: time.Now(), Packets: 1, Bytes: 1, Node: "dev eth0"}
		sum := &connectionSum{sumKey{"shop/web", "TCP", "10.244.1.5", ruledump.Place{Pod: "shop/web-1"}}, 1, 1, 1, 1, 1, 1}
		for _, document := range []any{
			Connections{nodeDocument: nodeDocument{document: documentOf("Connections")}, Flows: []*serviceFlow{flow}},
			Connections{nodeDocument: nodeDocument{document: documentOf("Connections")}, By: "client", Sums: []*connectionSum{sum}},
			flowEvent{document: documentOf("ConnectionEvent"), Event: "ended", serviceFlow: flow},
			flowEvent{document: documentOf("ConnectionEvent"), Event: "lost"},
			Report{
				nodeDocument: nodeDocument{document: documentOf("Report")}, Sysctls: map[string]string{"net/ipv4/ip_forward": "1"},
				Interfaces: []describedInterface{{"lo", 65536, "up|loopback", []netip.Prefix{netip.MustParsePrefix("127.0.0.1/8")}}},
				Missing:    []string{"log.txt: no such file"}, Redacted: true,
			},
		} {
			text, err := json.Marshal(document)
			if err != nil {
				t.Fatal(err)
			}
			conforms(t, string(text))
		}
	})
	t.Run("rates", func(t *testing.T) {
		rate := &serviceRate{Namespace: "shop", Service: "web", Port: "http", traffic: traffic{Connections: 1.5, Packets: 2, Bytes: 3}, Refused: []refusedRate{{"policy-local", 1}}}
		text, err := json.Marshal(Rates{nodeDocument: nodeDocument{document: documentOf("Rates")}, From: "counters", Problem: "lost", Services: []*serviceRate{rate}})
		if err != nil {
			t.Fatal(err)
		}
		conforms(t, string(text))
	})
	t.Run("a trace", func(t *testing.T) {
		disagrees := false
		for _, c := range []tracedPacket{
			{document: documentOf("Trace"), Lost: true},
			{
				document: documentOf("Trace"), Packet: "tcp", ServicePort: "shop/web", Agrees: &disagrees, Expected: []string{"dropped"},
				Outcome: &Outcome{Result: "dropped", Reason: ReasonKernel, Why: "no rule", Path: []step{{Hook: "prerouting", Verdict: "policy accept"}}},
			},
		} {
			text, err := json.Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			conforms(t, string(text))
		}
	})
	t.Run("a preflight, and that of many nodes", func(t *testing.T) {
		answer := &Preflight{nodeDocument: nodeDocument{documentOf("Preflight"), "node-1", "host-name"}, Verdict: levelGo, Mode: "none"}
		answer.add(finding{"mark", levelLook, "seen", "why", "do"})
		for _, v := range []View{answer, tableOf(map[string]*Preflight{"node-1": answer})} {
			text, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			conforms(t, string(text))
		}
	})
	t.Run("another document does not conform", func(t *testing.T) {
		for _, text := range []string{`{}`, `{"apiVersion": "ruledump.nftproxy/v2", "kind": "Services", "frontends": []}`, `{"apiVersion": "ruledump.nftproxy/v1", "kind": "Services"}`} {
			value, _ := jsonschema.UnmarshalJSON(bytes.NewReader([]byte(text)))
			if s.Validate(value) == nil {
				t.Errorf("%s conforms", text)
			}
		}
	})
}
