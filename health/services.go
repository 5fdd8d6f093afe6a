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
	// Ready says whether the proxy works: (*Proxy).Ready. While it does not, every
	// answer is 503.
	Ready func() bool
	// Primary listens on the node's addresses in the model, CIDRs on each address of the
	// machine that is in one of them; a CIDR of length 0 means all addresses of its family
	// (KubeProxyConfiguration nodePortAddresses).
	Primary bool
	CIDRs   []netip.Prefix
	// Clock tells when to try again; nil means the machine's clock.
	Clock clock.WithDelayedExecution
	// OnFailure, if set, is called when a Service's port cannot be listened on, once for
	// each reason. It must not call the Services.
	OnFailure func(namespace, service string, err error)
	// OnSettled, if set, is called with how many servers listen and how many cannot,
	// whenever that may have changed. It must not call the Services.
	OnSettled func(listening, failing int)
}

// Services serves the healthCheckNodePort of each Service that has one, so that a load
// balancer finds the nodes with endpoints. As in kube-proxy there is a server for each IP family
// of a Service: it listens on addresses of that family and counts endpoints of that family.
type Services struct {
	options ServicesOptions

	// ending sees to it, once, that all ends with the context.
	ending sync.Once
	// mu guards what follows.
	mu      sync.Mutex
	logger  klog.Logger
	servers map[serviceID]*server
	nodeIPs []netip.Addr
	closed  bool
	// retry is the next try to listen on what could not be listened on; nil when there is none.
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

// Apply starts, updates and ends servers as the changes say. It is to be called after the
// changes have been synced: traffic must not be sent here before the rules are. A port that cannot be
// listened on (another program may have it) is logged, does not affect the others, and is
// tried again with later changes and after a while. Servers end with ctx, which should be
// the same for all calls.
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

// update takes the changes in and returns the servers that they may concern.
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

// release ends a server that is not needed any more, or not where it listens.
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

// listen opens all that is not open, and sees to it that what failed is tried again. In a
// family for which nodePortAddresses has nothing there is nothing to open.
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
	if s.options.OnSettled != nil {
		s.options.OnSettled(listening, failing)
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

// report tells of a failure, once for each reason.
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
