package ruledump

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/nftproxy/nftproxy/internal/config"
	"github.com/nftproxy/nftproxy/internal/config/v1alpha2"
	"k8s.io/apimachinery/pkg/util/validation"
	kubeproxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
)

// ProxyAddress is the default address of the proxy's metrics server.
const ProxyAddress = "127.0.0.1:10249"

const (
	// proxyPatience bounds RunningProxy's wait for the whole answer.
	proxyPatience = 2 * time.Second
	// maxConfigz bounds the bytes of an answer that are read. A configuration has some 3 kB.
	maxConfigz = 1 << 20
)

// Proxy is a running proxy, by what it says of itself.
type Proxy struct {
	// Address is HOST:PORT of its metrics server.
	Address string
	// Node is the name under which it knows its Node.
	Node string
	// Config holds its settings, with defaults filled in.
	Config *v1alpha2.KubeProxyConfiguration
}

// RunningProxy asks the proxy whose metrics server is at address, HOST:PORT, for its settings, at /configz. It waits
// for proxyPatience. An answer that is no valid KubeProxyConfiguration is an error: another program may listen there.
func RunningProxy(ctx context.Context, address string) (*Proxy, error) {
	url := "http://" + address + "/configz"
	status, text, err := Page(ctx, url, maxConfigz)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("status %d %s", status, http.StatusText(status))
	}
	if err != nil {
		return nil, fmt.Errorf("no proxy answers at %s: %w", url, err)
	}
	var components map[string]json.RawMessage
	if err := json.Unmarshal(text, &components); err != nil || components[kubeproxyv1alpha1.GroupName] == nil {
		return nil, fmt.Errorf("what answers at %s is no proxy: the answer has no %s", url, kubeproxyv1alpha1.GroupName)
	}
	file, err := config.Parse(components[kubeproxyv1alpha1.GroupName])
	if err == nil {
		err = config.CheckMode(file.Config.Mode, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("what answers at %s is no nftproxy: %w", url, err)
	}
	p := &Proxy{Address: address, Node: file.Config.HostnameOverride, Config: file.Config}
	if p.Node == "" {
		p.Node, _ = os.Hostname() // empty is refused below
	}
	p.Node = strings.ToLower(strings.TrimSpace(p.Node))
	if problems := validation.IsDNS1123Subdomain(p.Node); len(problems) > 0 {
		return nil, fmt.Errorf("what answers at %s is no proxy: hostnameOverride %q is no name of a Node", url, p.Node)
	}
	return p, nil
}

// Page returns the status and the body of the answer to GET, of at most limit bytes. It follows no redirect,
// asks no HTTP proxy, and waits for two seconds.
func Page(ctx context.Context, url string, limit int64) (status int, text []byte, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, proxyPatience, fmt.Errorf("no answer within %v", proxyPatience))
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, nil, err
	}
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
	}()
	response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	text, err = io.ReadAll(io.LimitReader(response.Body, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = fmt.Errorf("the answer has more than %d bytes", limit)
	}
	return response.StatusCode, text, err
}
