package ruledump

import (
	"cmp"
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// kubeProxyChecks are chains that refuse clients in the tables of Kubernetes' kube-proxy: of v1.37, and of versions
// with a chain for each endpoint. nftproxy's tables do not have them.
var kubeProxyChecks = []string{"service-endpoints-check", "endpoints-check"}

// isKubeProxys reports whether Kubernetes' kube-proxy wrote a table. The comment does not tell: it stays when one
// program replaces the content that the other wrote.
func isKubeProxys(t *nft.Table) bool {
	return t.Set(compiler.ServiceIPs) != nil &&
		slices.ContainsFunc(kubeProxyChecks, func(name string) bool { return t.Chain(name) != nil })
}

// KubeProxys reports whether Kubernetes' kube-proxy wrote the tables.
func (s *Snapshot) KubeProxys() bool { return slices.ContainsFunc(s.Tables, isKubeProxys) }

// Walked returns the tables that a packet comes through, and the host.
func (s *Snapshot) Walked() ([]*nft.Table, evaluator.Host) {
	host := s.Host
	host.Addresses = s.Addresses
	if s.Ordered != nil {
		return s.Ordered, host
	}
	return s.Tables, host
}

// kubeProxyReader reads the frontends of a table of kube-proxy's: by name the sets with their elements, and the
// chains. There may be a set and a chain for each Service.
type kubeProxyReader struct {
	family nft.Family
	sets   map[string]*nft.Set
	chains map[string]*nft.Chain
	found  map[nft.Data]*compiler.Frontend
}

func (s *Snapshot) kubeProxyFrontends(t *nft.Table) []*compiler.Frontend {
	r := &kubeProxyReader{t.Family, map[string]*nft.Set{}, map[string]*nft.Chain{}, map[nft.Data]*compiler.Frontend{}}
	for _, set := range t.Sets {
		r.sets[set.Name] = set
	}
	for _, chain := range t.Chains {
		r.chains[chain.Name] = chain
	}
	for _, name := range []string{compiler.ServiceIPs, "service-nodeports"} {
		r.each(name, func(e nft.Element) {
			if f := r.frontend(e.Key, servicePortOf(e.Verdict.Chain)); f != nil {
				f.Chain = e.Verdict.Chain
				r.serve(f)
			}
		})
	}
	for _, name := range []string{"no-endpoint-services", "no-endpoint-nodeports"} {
		r.each(name, func(e nft.Element) {
			f := r.frontend(e.Key, e.Comment)
			switch {
			case f == nil:
			case e.Verdict == nft.Drop:
				f.Unserved, f.Policy = compiler.UnservedDrop, model.PolicyLocal.String()
			default:
				f.Unserved = compiler.UnservedReject
			}
		})
	}
	r.each("firewall-ips", func(e nft.Element) {
		if f := r.found[e.Key]; f != nil {
			f.Sources = r.sources(e.Verdict.Chain)
		}
	})
	return slices.Collect(maps.Values(r.found))
}

func (r *kubeProxyReader) each(set string, f func(nft.Element)) {
	if s := r.sets[set]; s != nil {
		for _, e := range s.Elements() {
			f(e)
		}
	}
}

// frontend returns the frontend with a key, [address .] protocol . port; nil for another key.
func (r *kubeProxyReader) frontend(key nft.Data, servicePort string) *compiler.Frontend {
	if f := r.found[key]; f != nil {
		return f
	}
	at := len(key) - 8 // protocol and port have four bytes each
	if at < 0 {
		return nil
	}
	f := &compiler.Frontend{
		Family: r.family, Kind: compiler.FrontendNodePort, ServicePort: servicePort,
		Protocol: model.Protocol(key[at]), Port: binary.BigEndian.Uint16([]byte(key[at+4:])),
	}
	if addr, ok := netip.AddrFromSlice([]byte(key[:at])); ok {
		f.Addr, f.Kind = addr, compiler.FrontendExternal
		if set := r.sets["cluster-ips"]; set != nil {
			if _, isClusterIP := set.Element(key[:at]); isClusterIP {
				f.Kind = compiler.FrontendClusterIP
			}
		}
	}
	r.found[key] = f
	return f
}

// servicePortOf returns the Service port of a chain such as "external-KHN6ECMT-shop/web/tcp/http".
func servicePortOf(chain string) string {
	_, name, _ := strings.Cut(chain, "-")
	_, name, _ = strings.Cut(name, "-")
	parts := strings.SplitN(name, "/", 4)
	if len(parts) < 4 { // cut
		return name
	}
	return strings.TrimSuffix(parts[0]+"/"+parts[1]+":"+parts[3], ":")
}

// serve fills in what the chain of a frontend does.
func (r *kubeProxyReader) serve(f *compiler.Frontend) {
	if !strings.HasPrefix(f.Chain, "external-") {
		f.Endpoints = r.endpoints(f.Chain)
	} else {
		f.Policy = model.PolicyCluster.String()
		for _, rule := range r.rules(f.Chain) {
			if rule.Comment == "short-circuit local traffic" {
				f.Policy = model.PolicyLocal.String()
			}
			switch next := nextChain(rule); {
			case strings.HasPrefix(next, "service-"):
				f.ShortCircuit, f.Endpoints = next, r.endpoints(next)
			case strings.HasPrefix(next, "local-"):
				f.LocalEndpoints = r.endpoints(next)
			}
		}
		if f.Masquerade = f.Policy == model.PolicyCluster.String(); f.Masquerade {
			f.ShortCircuit = ""
		}
	}
	for _, chain := range []string{f.Chain, f.ShortCircuit, strings.Replace(f.Chain, "external-", "service-", 1)} {
		for _, rule := range r.rules(chain) {
			for _, statement := range rule.Statements {
				if in, is := statement.(nft.InSet); is && strings.HasPrefix(in.Set, "affinity-") && r.sets[in.Set] != nil {
					f.AffinityTimeout = r.sets[in.Set].Timeout()
				}
			}
		}
	}
}

func (r *kubeProxyReader) rules(chain string) []nft.Rule {
	if c := r.chains[chain]; c != nil {
		return c.Rules
	}
	return nil
}

// nextChain is the chain to which a rule leads; empty for none.
func nextChain(rule nft.Rule) string {
	for _, statement := range rule.Statements {
		if v, is := statement.(nft.Verdict); is {
			return v.Chain
		}
	}
	return ""
}

// endpoints returns those that a chain draws from: the address of its dnat, the values of the map that its dnat draws
// from, or the endpoints of the chains that it draws from.
func (r *kubeProxyReader) endpoints(chain string) (list []netip.AddrPort) {
	for _, rule := range r.rules(chain) {
		for _, statement := range rule.Statements {
			name := ""
			switch x := statement.(type) {
			case nft.NAT:
				name = x.Map()
				addr, _ := x.Addr.(nft.Constant)
				port, _ := x.Port.(nft.Constant)
				if endpoint, ok := compiler.ParseEndpoint(nft.Data(addr) + nft.Data(port) + "\x00\x00"); ok {
					list = append(list, endpoint)
				}
			case nft.Vmap:
				name = x.Map
			}
			if name == "" || strings.HasPrefix(chain, "endpoint-") { // a dump may have a loop
				continue
			}
			r.each(name, func(e nft.Element) {
				if strings.HasPrefix(e.Verdict.Chain, "endpoint-") {
					list = append(list, r.endpoints(e.Verdict.Chain)...)
				} else if endpoint, ok := compiler.ParseEndpoint(e.Value); ok {
					list = append(list, endpoint)
				}
			})
		}
	}
	return list
}

// sources returns the prefixes that a chain of firewall-ips does not drop.
func (r *kubeProxyReader) sources(chain string) []netip.Prefix {
	list := []netip.Prefix{}
	for _, rule := range r.rules(chain) {
		for _, statement := range rule.Statements {
			switch x := statement.(type) {
			case nft.Match:
				if prefix, is := x.Value.(netip.Prefix); is && x.Field == r.family.Saddr() && x.Op == nft.NotEqual {
					list = append(list, prefix)
				}
			case nft.InSet:
				if x.Op == nft.NotEqual && len(x.Key) == 1 && x.Key[0] == r.family.Saddr() {
					r.each(x.Set, func(e nft.Element) { list = append(list, prefixOf(e)) })
				}
			}
		}
	}
	list = slices.DeleteFunc(list, func(p netip.Prefix) bool { return !p.IsValid() })
	slices.SortFunc(list, netip.Prefix.Compare)
	return list
}

// prefixOf returns the prefix of an element with a range of addresses; the zero Prefix if it is none.
func prefixOf(e nft.Element) netip.Prefix {
	first, ok := netip.AddrFromSlice([]byte(e.Key))
	last, _ := netip.AddrFromSlice([]byte(cmp.Or(e.KeyEnd, e.Key)))
	for bits := 0; ok && bits <= first.BitLen(); bits++ {
		if p := netip.PrefixFrom(first, bits).Masked(); p.Addr() == first && nft.LastAddr(p) == last {
			return p
		}
	}
	return netip.Prefix{}
}
