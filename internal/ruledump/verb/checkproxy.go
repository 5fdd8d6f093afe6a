package verb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/nftproxy/nftproxy/internal/ruledump"
)

// The states of the proxy.
const (
	proxyApplied = "applied"
	proxyFailing = "failing"
	proxyNone    = "none"
	proxyUnknown = "unknown"
)

// health is what is read of the proxy's /healthz.
type health struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
	Status      map[string]struct {
		LastUpdated time.Time `json:"lastUpdated"`
	} `json:"status"`
	Problems []string `json:"problems"`
}

// addProxy asks the proxy that keeps these rules how it fares, or reads its answer in a report.
func (e *checker) addProxy(ctx context.Context, from *source) {
	e.Proxy = CheckProxy{State: proxyUnknown, Generation: e.rules.Generation}
	for _, t := range e.rules.Tables {
		for _, c := range t.Chains {
			e.Proxy.Rules += uint32(len(c.Rules))
		}
	}
	metrics := e.rules.Files["metrics.txt"]
	if e.live && from.proxy != nil {
		_, metrics, _ = ruledump.Page(ctx, "http://"+from.proxy.Address+"/metrics", maxPage) // without them it is not known
	}
	e.readMetrics(string(metrics))
	switch text := e.rules.Files["healthz.json"]; {
	case e.rules.KubeProxys():
		e.Proxy.Why = "Kubernetes' kube-proxy has written these rules"
	case text != nil:
		e.readHealth("healthz.json of the report", text)
	case !e.live:
	case from.proxy != nil:
		e.askHealth(ctx, from.proxy)
	case from.abandoned():
		e.Proxy.State, e.Proxy.Why = proxyNone, from.whyAbandoned()
		e.fact(levelBroken, "no proxy keeps these rules", "changes of Services and endpoints do not come here: "+e.Proxy.Why, "kubectl -n kube-system get pods -o wide; ruledump diff")
	case from.noProxy != nil:
		e.Proxy.Why = from.noProxy.Error()
	}
}

// readMetrics looks in the proxy's metrics for its repairs, and for addresses that several Services claim: the rules have one
// Service alone for each address.
func (e *checker) readMetrics(metrics string) {
	for line := range strings.Lines(metrics) {
		name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		value, err := strconv.ParseFloat(text, 64)
		switch {
		case err != nil || value <= 0:
		case name == "kubeproxy_nftables_foreign_changes_repaired_total":
			e.Proxy.Repairs = uint64(value)
		case name == "kubeproxy_contested_addresses":
			e.fact(levelRemark, fmt.Sprintf("addresses that several Services claim: %.0f", value), "one Service gets each; the proxy's log and the events of the others name them",
				"kubectl get events -A; ruledump check --kubeconfig FILE --node NODE")
		}
	}
}

func (e *checker) askHealth(ctx context.Context, p *ruledump.Proxy) {
	at, err := healthAddress(p.Config.HealthzBindAddress)
	if err == nil && !at.IsValid() {
		err = errors.New("the proxy serves no /healthz")
	}
	var status int
	var text []byte
	url := "http://" + at.String() + "/healthz"
	if err == nil {
		status, text, err = ruledump.Page(ctx, url, maxConfigHealth)
	}
	if err == nil && status != http.StatusOK && status != http.StatusServiceUnavailable {
		err = fmt.Errorf("status %d", status)
	}
	if err != nil {
		e.Proxy.Why = "/healthz: " + err.Error()
		return
	}
	e.readHealth(url, text)
}

// maxConfigHealth bounds the bytes of an answer of /healthz.
const maxConfigHealth = 1 << 16

func (e *checker) readHealth(source string, text []byte) {
	var h health
	if err := json.Unmarshal(text, &h); err != nil {
		e.Proxy.Why = "/healthz: " + err.Error()
		return
	}
	e.Proxy.State, e.Proxy.Why, e.Proxy.Source, e.Proxy.LastSync = proxyApplied, strings.Join(h.Problems, "; "), source, h.LastUpdated
	for _, s := range h.Status {
		e.Proxy.LastSync = s.LastUpdated
	}
	if !h.Healthy {
		e.Proxy.State = proxyFailing
		e.fact(levelBroken, "the proxy is not healthy", "its last sync was at "+e.Proxy.LastSync.Format(time.RFC3339)+"; "+e.Proxy.Why, "kubectl -n kube-system logs POD; see its log on this node")
	}
}
