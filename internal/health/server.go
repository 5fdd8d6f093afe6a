package health

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync/atomic"

	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/model"
)

// server answers on the healthCheckNodePort of one Service in one IP family. Services.mu guards it, except
// for the fields that ServeHTTP uses: id, healthy and localEndpoints.
type server struct {
	id      serviceID
	healthy func() bool
	// localEndpoints counts the ready endpoints on this node.
	localEndpoints atomic.Int64

	// wantedPort is the healthCheckNodePort.
	wantedPort uint16
	// port and listeners are in use by the server. http is nil while the server does not listen.
	port      uint16
	listeners map[netip.Addr]net.Listener
	http      *http.Server
	// reported is the last reported failure to listen; empty while the server listens.
	reported string
}

// errNoAddress is the error of a machine without an address to listen on.
var errNoAddress = errors.New("no address of this machine is in nodePortAddresses")

// closeUnwanted ends the server on other ports and addresses than the wanted ones.
func (s *server) closeUnwanted(addresses []netip.Addr) {
	for addr, l := range s.listeners {
		if s.port != s.wantedPort || !slices.Contains(addresses, addr) {
			_ = l.Close()
			delete(s.listeners, addr)
		}
	}
	if len(s.listeners) == 0 {
		s.close()
	}
}

// open listens on the missing addresses. It returns the first failure.
func (s *server) open(logger klog.Logger, addresses []netip.Addr) (failure error) {
	if len(addresses) == 0 {
		return errNoAddress
	}
	s.port = s.wantedPort
	for _, addr := range addresses {
		if s.listeners[addr] != nil {
			continue
		}
		if err := s.serve(logger, addr); err != nil && failure == nil {
			failure = err
		}
	}
	if failure == nil && s.reported != "" {
		s.reported = ""
		logger.Info("Serving the health check of a Service after all", s.logValues()...)
	}
	return failure
}

// serve answers on an address.
func (s *server) serve(logger klog.Logger, addr netip.Addr) error {
	network := "tcp4"
	if s.id.family == model.IPv6 {
		network = "tcp6"
	}
	l, err := net.Listen(network, netip.AddrPortFrom(addr, s.port).String())
	if err != nil {
		return err
	}
	s.listeners[addr] = l
	if s.http == nil {
		s.http = newServer(s)
	}
	httpServer := s.http
	go func() {
		if err := httpServer.Serve(l); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			logger.Error(err, "The health check of a Service is not served any more",
				"service", klog.KRef(s.id.namespace, s.id.name), "address", l.Addr())
		}
	}()
	return nil
}

// close ends the server, and returns when its ports are free.
func (s *server) close() {
	for _, l := range s.listeners {
		_ = l.Close()
	}
	clear(s.listeners)
	if s.http != nil {
		_ = s.http.Close()
		s.http = nil
	}
}

func (s *server) logValues() []any {
	return []any{"service", klog.KRef(s.id.namespace, s.id.name), "ipFamily", s.id.family, "healthCheckNodePort", s.wantedPort}
}

// serviceAnswer is the body of a health check, with kube-proxy's fields.
type serviceAnswer struct {
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
	LocalEndpoints      int64 `json:"localEndpoints"`
	ServiceProxyHealthy bool  `json:"serviceProxyHealthy"`
}

// ServeHTTP answers any request, whatever its path and method.
func (s *server) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	body := serviceAnswer{LocalEndpoints: s.localEndpoints.Load(), ServiceProxyHealthy: s.healthy()}
	body.Service.Namespace, body.Service.Name = s.id.namespace, s.id.name
	code := http.StatusServiceUnavailable
	if body.LocalEndpoints > 0 && body.ServiceProxyHealthy {
		code = http.StatusOK
	}
	text, err := json.MarshalIndent(body, "", "\t")
	if err != nil { // cannot happen: the fields are strings, a number and a bool
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.FormatInt(body.LocalEndpoints, 10))
	writeJSON(w, code, text)
}
