package ruledump

import (
	"cmp"
	"encoding/binary"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
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
func (s *Snapshot) KubeProxys() bool { return len(s.whole) > 0 }

// Walked returns the tables that a packet comes through, and the host. Tables that Kubernetes' kube-proxy wrote have
// nft.Expressions as their rules, like those of other programs.
func (s *Snapshot) Walked() ([]*nft.Table, evaluator.Host) {
	tables, host := s.Tables, s.Host
	if s.Ordered != nil {
		tables = s.Ordered
	}
	host.Addresses = s.Addresses
	if !s.KubeProxys() {
		return tables, host
	}
	tables = slices.Clone(tables)
	for i, t := range tables {
		tables[i] = cmp.Or(s.whole[t], t)
	}
	lookup := host.Lookup
	host.Lookup = func(t *nft.Table, set string, key nft.Data) (nft.Element, bool, error) {
		isWhole := s.whole[s.Table(t.Family)] == t
		switch found := t.Set(set); {
		case isWhole && found != nil && found.Recorded():
			return t.Find(set, key)
		case isWhole && (found == nil || !found.Dynamic || s.ReadClients == nil), lookup == nil:
			return nft.Element{}, false, nil // an empty set; a dump has no clients of session affinity
		}
		return lookup(t, set, key)
	}
	return tables, host
}

// kubeProxyReader reads the frontends of a table of kube-proxy's: by name the sets with their elements, and the chains
// with whole rules. There may be a set and a chain for each Service.
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
	for _, chain := range s.whole[t].Chains {
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
			switch next := rule.next(); {
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
			for _, x := range rule.list {
				if l, is := x.(*expr.Lookup); is && strings.HasPrefix(l.SetName, "affinity-") && r.sets[l.SetName] != nil {
					f.AffinityTimeout = r.sets[l.SetName].Timeout()
				}
			}
		}
	}
}

// kubeProxyRule is a rule with its expressions.
type kubeProxyRule struct {
	nft.Rule
	list []any
}

func (r *kubeProxyReader) rules(chain string) (rules []kubeProxyRule) {
	if c := r.chains[chain]; c != nil {
		for _, rule := range c.Rules {
			for _, statement := range rule.Statements { // one, or none
				if x, is := statement.(nft.Expressions); is {
					rules = append(rules, kubeProxyRule{rule, x.List()})
				}
			}
		}
	}
	return rules
}

// next is the chain to which a rule leads; empty for none.
func (r *kubeProxyRule) next() string {
	for _, x := range r.list {
		if v, is := x.(*expr.Verdict); is {
			return v.Chain
		}
	}
	return ""
}

// endpoints returns those that a chain draws from: the address of its dnat, the values of the map that its dnat draws
// from, or the endpoints of the chains that it draws from.
func (r *kubeProxyReader) endpoints(chain string) (list []netip.AddrPort) {
	for _, rule := range r.rules(chain) {
		var constants []byte // the address, then the port
		for _, x := range rule.list {
			switch x := x.(type) {
			case *expr.Immediate:
				constants = append(constants, x.Data...)
			case *expr.NAT:
				if n := len(constants) - 2; n > 0 {
					if addr, ok := netip.AddrFromSlice(constants[:n]); ok {
						list = append(list, netip.AddrPortFrom(addr, binary.BigEndian.Uint16(constants[n:])))
					}
				}
			case *expr.Lookup:
				if !x.IsDestRegSet || strings.HasPrefix(chain, "endpoint-") { // a dump may have a loop
					continue
				}
				r.each(x.SetName, func(e nft.Element) {
					if strings.HasPrefix(e.Verdict.Chain, "endpoint-") {
						list = append(list, r.endpoints(e.Verdict.Chain)...)
					} else if endpoint, ok := compiler.ParseEndpoint(e.Value); ok {
						list = append(list, endpoint)
					}
				})
			}
		}
	}
	return list
}

var prefixes = regexp.MustCompile(`[0-9a-f.:]+([/-][0-9a-f.:]+)?`)

// sources returns the prefixes that a chain of firewall-ips does not drop: at most the first 12, which the text of the
// rule has.
func (r *kubeProxyReader) sources(chain string) []netip.Prefix {
	list := []netip.Prefix{}
	for _, rule := range r.rules(chain) {
		_, text, _ := strings.Cut(rule.String(), " saddr != ")
		text, _, _ = strings.Cut(text, " drop")
		for _, word := range prefixes.FindAllString(text, -1) {
			if prefix := prefixIn(word); prefix.IsValid() {
				list = append(list, prefix)
			}
		}
	}
	slices.SortFunc(list, netip.Prefix.Compare)
	return list
}

// prefixIn reads an address, a prefix, or a range that is one.
func prefixIn(text string) netip.Prefix {
	if prefix, err := netip.ParsePrefix(text); err == nil {
		return prefix
	}
	from, to, isRange := strings.Cut(text, "-")
	first, err := netip.ParseAddr(from)
	if err != nil {
		return netip.Prefix{}
	}
	last := first
	if isRange {
		last, _ = netip.ParseAddr(to)
	}
	for bits := range first.BitLen() + 1 {
		if p := netip.PrefixFrom(first, bits).Masked(); p.Addr() == first && p.Contains(last) && !p.Contains(last.Next()) {
			return p
		}
	}
	return netip.Prefix{}
}
