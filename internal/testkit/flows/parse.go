package flows

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"sigs.k8s.io/yaml"
)

// file, entry and wanted are a flow file as it is written.
type file struct {
	Flows []entry `json:"flows"`
}

type entry struct {
	Name     string `json:"name"`
	From     string `json:"from"`
	To       string `json:"to"`
	Protocol string `json:"protocol,omitempty"`
	Port     uint16 `json:"port,omitempty"`
	Expect   wanted `json:"expect"`
}

type wanted struct {
	Endpoints []string `json:"endpoints,omitempty"`
	Sticky    bool     `json:"sticky,omitempty"`
	As        string   `json:"as,omitempty"`
	Source    string   `json:"source,omitempty"`
	Result    string   `json:"result,omitempty"`
}

// Load reads and parses a flow file.
func Load(path string) ([]Flow, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	flows, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return flows, nil
}

// Parse reads a flow file. It is strict: an error names the flow and the field that is
// unknown, missing, or does not make sense.
func Parse(data []byte) ([]Flow, error) {
	var f file
	if err := yaml.UnmarshalStrict(data, &f); err != nil {
		return nil, err
	}
	return parseFlows(f.Flows)
}

func parseFlows(entries []entry) ([]Flow, error) {
	if len(entries) == 0 {
		return nil, errors.New("flows: there are none")
	}
	names := map[string]bool{}
	flows := make([]Flow, 0, len(entries))
	for i, e := range entries {
		flow, err := e.parse()
		if err == nil && names[e.Name] {
			err = errors.New("name: another flow has it too")
		}
		if err != nil {
			return nil, fmt.Errorf("flows[%d] %q: %w", i, e.Name, err)
		}
		names[e.Name] = true
		flows = append(flows, flow)
	}
	return flows, nil
}

func (e entry) parse() (Flow, error) {
	if e.Name == "" {
		return Flow{}, errors.New("name: missing")
	}
	protocol, err := parseProtocol(e.Protocol)
	if err != nil {
		return Flow{}, fmt.Errorf("protocol: %w", err)
	}
	to, err := parseTarget(e.To, protocol)
	if err != nil {
		return Flow{}, fmt.Errorf("to: %w", err)
	}
	from, err := parseOrigin(e.From, to.Addr())
	if err != nil {
		return Flow{}, fmt.Errorf("from: %w", err)
	}
	expect, err := e.Expect.parse(to.Addr(), protocol)
	if err != nil {
		return Flow{}, fmt.Errorf("expect%w", err)
	}
	return Flow{Name: e.Name, From: from, To: to, Protocol: protocol, Port: e.Port, Expect: expect}, nil
}

func parseProtocol(text string) (Protocol, error) {
	switch p := Protocol(text); p {
	case "":
		return TCP, nil
	case TCP, UDP, SCTP, ICMP:
		return p, nil
	}
	return "", fmt.Errorf("%q is not TCP, UDP, SCTP or ICMP", text)
}

func parseTarget(text string, protocol Protocol) (netip.AddrPort, error) {
	if text == "" {
		return netip.AddrPort{}, errors.New("missing")
	}
	if protocol == ICMP {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return netip.AddrPort{}, fmt.Errorf("%q is not an IP address, which is all that ICMP takes", text)
		}
		return netip.AddrPortFrom(addr, 0), nil
	}
	return parseAddrPort(text)
}

func parseAddrPort(text string) (netip.AddrPort, error) {
	parsed, err := netip.ParseAddrPort(text)
	if err != nil || parsed.Port() == 0 {
		return netip.AddrPort{}, fmt.Errorf("%q is not an IP address and port", text)
	}
	return parsed, nil
}

func parseOrigin(text string, to netip.Addr) (Origin, error) {
	if text == "" {
		return "", errors.New("missing")
	}
	if _, named := origins[Origin(text)]; named {
		return Origin(text), nil
	}
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return "", fmt.Errorf("%q is not client, node, outside, outside2, remote or an IP address", text)
	}
	if addr.Is4() != to.Is4() {
		return "", fmt.Errorf("%s and the address in to are of different families", addr)
	}
	return Origin(addr.String()), nil
}

// parse returns errors that continue the word "expect".
func (w wanted) parse(to netip.Addr, protocol Protocol) (Expectation, error) {
	if (w.Result == "") == (len(w.Endpoints) == 0) {
		return Expectation{}, errors.New(": needs either endpoints or result")
	}
	if w.Result != "" {
		return w.parseResult()
	}
	if protocol == ICMP {
		return Expectation{}, errors.New(".endpoints: an ICMP echo has a result only")
	}
	source, err := parseSource(w.Source)
	if err != nil {
		return Expectation{}, fmt.Errorf(".source: %w", err)
	}
	endpoints, err := parseEndpoints(w.Endpoints, to)
	if err != nil {
		return Expectation{}, fmt.Errorf(".endpoints%w", err)
	}
	return Expectation{Endpoints: endpoints, Sticky: w.Sticky || w.As != "", As: w.As, Source: source}, nil
}

func (w wanted) parseResult() (Expectation, error) {
	switch {
	case w.Source != "":
		return Expectation{}, errors.New(".source: goes with endpoints only")
	case w.Sticky || w.As != "":
		return Expectation{}, errors.New(".sticky: goes with endpoints only")
	}
	switch r := Result(w.Result); r {
	case Refused, Dropped, Untouched:
		return Expectation{Result: r}, nil
	}
	return Expectation{}, fmt.Errorf(".result: %q is not refused, dropped or untouched", w.Result)
}

func parseSource(text string) (Source, error) {
	switch s := Source(text); s {
	case "", Kept, Masqueraded:
		return s, nil
	}
	return "", fmt.Errorf("%q is not kept or masqueraded", text)
}

func parseEndpoints(texts []string, to netip.Addr) ([]netip.AddrPort, error) {
	endpoints := make([]netip.AddrPort, 0, len(texts))
	for i, text := range texts {
		endpoint, err := parseAddrPort(text)
		switch {
		case err != nil:
			return nil, fmt.Errorf("[%d]: %w", i, err)
		case endpoint.Addr().Is4() != to.Is4():
			return nil, fmt.Errorf("[%d]: %s and the address in to are of different families", i, endpoint)
		case slices.Contains(endpoints, endpoint):
			return nil, fmt.Errorf("[%d]: %s is there twice", i, endpoint)
		}
		endpoints = append(endpoints, endpoint)
	}
	return endpoints, nil
}
