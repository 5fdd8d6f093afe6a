package health

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/nftproxy/nftproxy/model"
)

// ServicesOptions configures Services.
type ServicesOptions struct {
	// Ready reports whether the proxy is ready: (*Proxy).Ready. While it is not, every answer is 503.
	Ready func() bool
	// Primary listens on the node's addresses in the model (KubeProxyConfiguration nodePortAddresses:
	// primary).
	Primary bool
	// CIDRs listens on each address of the machine that is in one of them. A CIDR of length 0 means all
	// addresses of its family (KubeProxyConfiguration nodePortAddresses).
	CIDRs []netip.Prefix
	// Clock is the clock for trying again; nil means the machine's clock.
	Clock clock.WithDelayedExecution
	// OnFailure, if set, is called when a Service's port cannot be listened on, once for
	// each reason. It must not call the Services.
	OnFailure func(namespace, service string, err error)
	// OnListening, if set, is called with the numbers of servers that listen and that cannot,
	// whenever they may have changed. It must not call the Services.
	OnListening func(listening, failing int)
}

// Services serves the healthCheckNodePort of each Service that has one, so that a load
// balancer finds the nodes with endpoints. As in kube-proxy there is a server for each IP family
// of a Service: it listens on addresses of that family and counts endpoints of that family.
type Services struct {
	options ServicesOptions

	// ending makes the first Apply arrange that all servers end with its context.
	ending sync.Once
	// mu guards the fields below.
	mu      sync.Mutex
	logger  klog.Logger
	servers map[serviceID]*server
	nodeIPs []netip.Addr
	closed  bool
	// retry is the next try of servers that cannot listen; nil if there are none. delay is the time up to it.
	retry clock.Timer
	delay time.Duration
}

// serviceID names a Service in one IP family.
type serviceID struct {
	namespace, name string
	family          model.Family
}

// How long to wait before trying again to listen: twice as long each time.
const (
	minRetryDelay = time.Second
	maxRetryDelay = time.Minute
)

// NewServices returns Services that serve nothing yet.
func NewServices(options ServicesOptions) *Services {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	return &Services{options: options, servers: map[serviceID]*server{}}
}

// Apply starts, updates and ends servers after changes. Call it after the changes have been synced:
// load balancers must not send traffic before the rules exist. If a server cannot listen, because
// another program has the port for example, Apply logs that and tries again with later changes and after
// 1 s, then twice as long each time, up to 1 min. The others are not affected. Servers end with ctx, which
// should be the same for all calls.
func (s *Services) Apply(ctx context.Context, changes *model.Changes) {
	s.ending.Do(func() { context.AfterFunc(ctx, s.close) })
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.logger = klog.FromContext(ctx)
	touched := s.update(changes)
	if len(touched) == 0 && s.retry == nil {
		return
	}
	addresses := s.addresses()
	// All that closes comes before all that opens, because a port may move between Services.
	for id := range touched {
		s.release(s.servers[id], addresses[id.family])
	}
	s.listen(addresses)
}

// update applies the changes and returns the servers that they may concern.
func (s *Services) update(changes *model.Changes) map[serviceID]bool {
	touched := map[serviceID]bool{}
	if changes.Node != nil {
		s.nodeIPs = changes.Node.IPs
	}
	if changes.Full || changes.Node != nil {
		for id, server := range s.servers {
			touched[id] = true
			if changes.Full {
				clear(server.ports)
			}
		}
	}
	for id, port := range changes.Ports {
		key := serviceID{id.Namespace, id.Service, id.Family}
		server := s.servers[key]
		served := port != nil && port.HealthCheckNodePort != 0
		if server == nil && !served {
			continue
		}
		if server == nil {
			server = newServiceServer(key, s.options.Ready)
			s.servers[key] = server
		}
		if served {
			server.ports[id] = port
		} else {
			delete(server.ports, id)
		}
		touched[key] = true
	}
	return touched
}

// release ends a server that is no longer needed, or that has to listen elsewhere.
func (s *Services) release(server *server, addresses []netip.Addr) {
	if len(server.ports) == 0 {
		server.close()
		delete(s.servers, server.id)
		return
	}
	server.count()
	if !server.listensOn(addresses) {
		server.close()
	}
}

// listen opens the servers that do not listen, and starts a retry if any fails. In a family for which
// nodePortAddresses names nothing, no server listens.
func (s *Services) listen(addresses map[model.Family][]netip.Addr) {
	listening, failing := 0, 0
	for _, server := range s.servers {
		wanted, configured := addresses[server.id.family]
		if !server.listening() && configured {
			if err := server.open(s.logger, wanted); err != nil {
				failing++
				s.report(server, err)
			}
		}
		if server.listening() {
			listening++
		}
	}
	s.retryLater(failing > 0)
	if s.options.OnListening != nil {
		s.options.OnListening(listening, failing)
	}
}

func (s *Services) retryLater(wanted bool) {
	switch {
	case wanted && s.retry == nil:
		s.delay = min(max(2*s.delay, minRetryDelay), maxRetryDelay)
		s.retry = s.options.Clock.AfterFunc(s.delay, s.tryAgain)
	case !wanted:
		if s.retry != nil {
			s.retry.Stop()
		}
		s.retry, s.delay = nil, 0
	}
}

func (s *Services) tryAgain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.retry == nil {
		return // close or Apply came first
	}
	s.retry = nil
	s.listen(s.addresses())
}

// report logs a failure, once for each reason.
func (s *Services) report(server *server, err error) {
	if server.reported == err.Error() {
		return
	}
	server.reported = err.Error()
	s.logger.Error(err, "Cannot serve the health check of a Service, will retry", server.logValues()...)
	if s.options.OnFailure != nil {
		s.options.OnFailure(server.id.namespace, server.id.name,
			fmt.Errorf("healthCheckNodePort %d: %w; until that is mended, load balancers take this node for one without endpoints", server.wantedPort(), err))
	}
}

// close ends all servers, for good.
func (s *Services) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.retry != nil {
		s.retry.Stop()
	}
	for _, server := range s.servers {
		server.close()
	}
}
