package verb

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// Filter selects Services, their addresses and the connections to them, by anything that a verb prints in a table. The
// zero value selects all.
type Filter struct {
	// Namespace is the namespace of a Service; empty for all.
	Namespace string
	// Name is the name of a Service. Without a Namespace it may be another word of a table: a chain, a map of session
	// affinity, a kind, a policy, a protocol, an IP family, the state of a connection.
	Name string
	// Port is the name or the number of a Service's port.
	Port string
	// prefix has the addresses of clients, Services or endpoints. at is the port at these addresses; 0 for all ports. With
	// a port and without a prefix it is a node port.
	prefix netip.Prefix
	at     uint16
	// protocol is that of at; 0 for all.
	protocol model.Protocol
	// text is the user's argument.
	text string
	// unserved selects frontends without an endpoint for some clients.
	unserved bool
}

// isAll reports whether a filter selects all Services.
func (f Filter) isAll() bool { return f == Filter{unserved: f.unserved} }

// filterHelp is for the help of commands with a filter.
const filterHelp = `
NAME is anything that a table of ruledump shows: a Service ([NAMESPACE/]NAME[:PORT]), an
address of a Service, an endpoint or a client (with or without port and protocol, or a
prefix), a node port (:30080), a chain, or another word such as NodePort, Local or UDP.`

// parseFilter reads a namespace, "" for all, and perhaps what to select.
func parseFilter(namespace string, names []string) (f Filter, err error) {
	f.Namespace = namespace
	if len(names) == 0 || names[0] == "" {
		return f, nil
	}
	f.text = names[0]
	if isAddress(f.text) {
		return f, f.parseAddress()
	}
	before, name, qualified := strings.Cut(f.text, "/")
	switch {
	case !qualified:
		name = before
	case namespace != "" && namespace != before:
		return Filter{}, fmt.Errorf("%s is not in namespace %s", f.text, namespace)
	default:
		f.Namespace = before
	}
	f.Name, f.Port, _ = strings.Cut(name, ":")
	return f, nil
}

// isAddress reports whether a text is an address or a node port, perhaps a wrong one, and no name.
func isAddress(text string) bool {
	if strings.HasPrefix(text, ":") || strings.HasPrefix(text, "[") {
		return true
	}
	for _, end := range []string{"/@=", "/@=:"} { // of IPv6 without brackets, and of IPv4
		address := text
		if at := strings.IndexAny(text, end); at >= 0 {
			address = text[:at]
		}
		if _, err := netip.ParseAddr(address); err == nil {
			return true
		}
	}
	return false
}

// parseAddress reads ADDRESS, ADDRESS:PORT or :PORT with or without a protocol, a prefix, or an endpoint with its
// place, as in "10.244.1.5:8080=shop/web-1@node-1/zone-a".
func (f *Filter) parseAddress() error {
	text := unplaced(f.text)
	if prefix, err := netip.ParsePrefix(text); err == nil {
		f.prefix = prefix.Masked()
		return nil
	}
	text, protocol, _ := strings.Cut(text, "/")
	if i := slices.IndexFunc(protocols, func(p model.Protocol) bool { return strings.EqualFold(p.String(), protocol) }); i >= 0 {
		f.protocol = protocols[i]
	} else if protocol != "" {
		return fmt.Errorf("%q: protocol %q is not tcp, udp or sctp", f.text, protocol)
	}
	if port, err := strconv.ParseUint(strings.TrimPrefix(text, ":"), 10, 16); err == nil && port > 0 && text[0] == ':' {
		f.at = uint16(port)
		return nil
	}
	parsed, err := parseAddrPort(text)
	if err == nil {
		f.at, f.prefix = parsed.Port(), netip.PrefixFrom(parsed.Addr().WithZone(""), parsed.Addr().BitLen())
	}
	return err
}

var protocols = []model.Protocol{model.TCP, model.UDP, model.SCTP}

// selects reports whether a frontend is selected, on a node with those addresses.
func (f *Filter) selects(of *compiler.Frontend, node []netip.Addr) bool {
	return f.dials(of, node) || f.isIn(of) && f.prefix.IsValid() &&
		(slices.ContainsFunc(of.Endpoints, f.has) || slices.ContainsFunc(of.LocalEndpoints, f.has) || slices.Contains(of.Sources, f.prefix))
}

// dials reports whether a frontend itself is selected, and not for one of its endpoints or sources.
func (f *Filter) dials(of *compiler.Frontend, node []netip.Addr) bool {
	switch {
	case !f.isIn(of):
		return false
	case f.prefix.IsValid() && of.Kind == compiler.FrontendNodePort:
		return slices.ContainsFunc(node, func(addr netip.Addr) bool {
			return addr.Is4() == (of.Family == nft.FamilyIP) && f.has(netip.AddrPortFrom(addr, of.Port))
		})
	case f.prefix.IsValid():
		return f.has(netip.AddrPortFrom(of.Addr, of.Port))
	case f.at != 0:
		return of.Kind == compiler.FrontendNodePort && of.Port == f.at
	}
	return f.Name == "" || f.names(of)
}

// isIn reports whether a frontend is in the namespace, and of the protocol.
func (f *Filter) isIn(of *compiler.Frontend) bool {
	namespace, _, _ := splitServicePort(of.ServicePort)
	return (f.Namespace == "" || f.Namespace == namespace) && (f.protocol == 0 || f.protocol == of.Protocol)
}

// has reports whether an address is one of the filter's.
func (f *Filter) has(addr netip.AddrPort) bool {
	return f.prefix.Contains(addr.Addr()) && (f.at == 0 || f.at == addr.Port())
}

// names reports whether the name is that of the frontend's Service, or another word about the frontend.
func (f *Filter) names(of *compiler.Frontend) bool {
	_, service, port := splitServicePort(of.ServicePort)
	switch {
	case f.Name == service && (f.Port == "" || f.Port == port || f.Port == fmt.Sprint(of.Port)):
		return true
	case f.text == "" || of.ServicePort == f.text: // a cut name too
		return f.text != ""
	}
	words := append([]string{of.Chain, of.ShortCircuit, string(of.Kind), of.Policy, of.Protocol.String(), of.Family.String()}, of.AffinityMaps...)
	word := strings.TrimPrefix(f.text, of.Family.String()+" ") // "ip affinity-3h-tcp"
	return slices.Contains(words, word)
}

// selectsFlow reports whether a connection to a frontend is selected.
func (f *Filter) selectsFlow(flow *serviceFlow, of *compiler.Frontend) bool {
	switch {
	case !f.isIn(of):
		return false
	case f.prefix.IsValid():
		return f.has(flow.Source) || f.has(flow.Dialed) || f.has(flow.Server)
	}
	return f.dials(of, nil) || f.isFlowWord() && (f.text == flow.stateText() || f.text == flow.Node)
}

// isFlowWord reports whether the filter may be the state of a connection, or a next hop such as "via 192.168.0.2".
func (f *Filter) isFlowWord() bool {
	return f.Name != "" && (f.text == strings.ToUpper(f.text) || f.isNextHop())
}

func (f *Filter) isNextHop() bool { return strings.Contains(f.text, " ") }

// dialed returns the frontends to which selected connections may be.
func (f *Filter) dialed(s *ruledump.Snapshot) ([]*compiler.Frontend, error) {
	all, err := s.Frontends()
	all = slices.DeleteFunc(all, func(of *compiler.Frontend) bool { return !f.isIn(of) })
	some := slices.DeleteFunc(slices.Clone(all), func(of *compiler.Frontend) bool { return !f.dials(of, s.Addresses) })
	if f.prefix.IsValid() && (f.at == 0 || len(some) == 0) || f.isFlowWord() {
		return all, err // clients and endpoints too
	}
	return some, err
}

// notFound returns the error of a filter that selects no Service.
func (f Filter) notFound() error {
	const hint = "see whether it exists, is not headless or ExternalName, and has a ClusterIP"
	what := "Service"
	switch {
	case f.prefix.IsValid() || f.at != 0:
		return fmt.Errorf("the rules have no Service with the address or the endpoint %s", f.text)
	case f.Name != "" && f.Namespace == "":
		what += " " + f.text
	case f.Name != "":
		what += " " + f.Namespace + "/" + f.Name
		if f.Port != "" {
			what += ":" + f.Port
		}
	case f.Namespace != "":
		what += " in namespace " + f.Namespace
	}
	return fmt.Errorf("the rules have no %s: %s", what, hint)
}

// splitServicePort takes "namespace/service:port" apart.
func splitServicePort(servicePort string) (namespace, service, port string) {
	namespace, service, _ = strings.Cut(servicePort, "/")
	service, port, _ = strings.Cut(service, ":")
	return namespace, service, port
}

// frontendsOf returns the frontends of the Services that the filter selects, sorted by Service port.
func frontendsOf(s *ruledump.Snapshot, filter Filter) ([]*compiler.Frontend, error) {
	frontends, err := s.Frontends()
	return slices.DeleteFunc(frontends, func(f *compiler.Frontend) bool { return !filter.selects(f, s.Addresses) }), err
}

// target is the destination and the protocol of packets to a frontend, or to an address; then the frontend is nil.
type target struct {
	evaluator.Packet
	frontend *compiler.Frontend
}

// targetsOf returns what text names: one address, or all addresses of the Services that it selects.
func targetsOf(s *ruledump.Snapshot, text string) (targets []target, err error) {
	if _, err := netip.ParsePrefix(text); err != nil && isAddress(text) && !strings.HasPrefix(text, ":") {
		to, err := parseTarget(text)
		return []target{{Packet: to}}, err
	}
	filter, err := parseFilter("", []string{text})
	if err != nil {
		return nil, err
	}
	frontends, err := frontendsOf(s, filter)
	for _, f := range frontends {
		addresses := []netip.Addr{f.Addr}
		if f.Kind == compiler.FrontendNodePort {
			addresses = s.Addresses
		}
		for _, addr := range addresses {
			if addr.Is4() == (f.Family == nft.FamilyIP) {
				to := evaluator.Packet{Destination: netip.AddrPortFrom(addr, f.Port), Protocol: uint8(f.Protocol)}
				targets = append(targets, target{to, f})
			}
		}
	}
	if err == nil && len(targets) == 0 {
		err = filter.notFound()
	}
	return targets, err
}

// targetOf returns the one destination of an IP family that text names. A Service stands for the
// first of its addresses, which is the ClusterIP.
func targetOf(s *ruledump.Snapshot, text string, is4 bool) (to evaluator.Packet, err error) {
	targets, err := targetsOf(s, text)
	if err != nil || targets[0].frontend == nil {
		return append(targets, target{})[0].Packet, err
	}
	targets = slices.DeleteFunc(targets, func(t target) bool {
		addr := t.Destination.Addr()
		return addr.Is4() != is4 || addr.IsLoopback()
	})
	if len(targets) == 0 {
		return to, fmt.Errorf("%s has no address of the family of --from", text)
	}
	var ports []string
	for _, t := range targets { // sorted by Service port
		if !slices.Contains(ports, t.frontend.ServicePort) {
			ports = append(ports, t.frontend.ServicePort)
		}
	}
	if len(ports) > 1 {
		return to, fmt.Errorf("%s names %d Service ports: give one, such as %s", text, len(ports), ports[0])
	}
	return targets[0].Packet, nil
}
