package health

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/nftproxy/nftproxy/internal/nodeaddr"
	"github.com/nftproxy/nftproxy/model"
)

// ServicesOptions configures Services.
type ServicesOptions struct {
	// Ready reports whether the proxy is ready: (*Proxy).Ready. While it is not, every answer is 503.
	Ready func() bool
	// Primary listens on the node's addresses in the model.
	Primary bool
	// CIDRs listens on the machine's addresses in them. A CIDR of length 0 means all addresses of its family.
	CIDRs []netip.Prefix
	// Addresses lists the machine's addresses in prefixes, by family; nil means nodeaddr.Within.
	Addresses func(prefixes []netip.Prefix) (map[model.Family][]netip.Addr, error)
	// Clock is the clock for repeated listings; nil means the machine's clock.
	Clock clock.WithDelayedExecution
	// OnFailure, if set, is called when a server cannot listen, once for each reason. It must not call the Services.
	OnFailure func(namespace, service string, err error)
	// OnListening, if set, is called with the numbers of listening and failing servers. It must not call the Services.
	OnListening func(listening, failing int)
}

// Services serves the healthCheckNodePort of each Service that has one, so that a load balancer finds the nodes with
// endpoints. As in kube-proxy, a Service has a server for each IP family, which counts endpoints of that family.
type Services struct {
	options ServicesOptions

	// ending makes the first Apply end all servers with its context.
	ending sync.Once
	// mu guards the fields below.
	mu      sync.Mutex
	logger  klog.Logger
	nodeIPs []netip.Addr
	// ports holds the Service ports with a healthCheckNodePort, and servers the servers of their Services.
	ports   map[model.PortID]*model.ServicePort
	servers map[serviceID]*server
	closed  bool
	// addresses are the addresses to listen on, by family, from the last successful listing. unlisted says that a later
	// listing failed.
	addresses map[model.Family][]netip.Addr
	unlisted  bool
	// timer starts the next listing of the machine's addresses; nil without servers. delay is the time before it after
	// a failure, else 0; delays returns the next delays.
	timer  clock.Timer
	delay  time.Duration
	delays backoff.ExponentialBackOff
}

// serviceID names a Service in one IP family.
type serviceID struct {
	namespace, name string
	family          model.Family
}

const (
	// lookInterval is the time between two listings of the machine's addresses.
	lookInterval = 10 * time.Second
	// minRetryDelay is the time before the next listing after a failure. It doubles with each failure, up to
	// lookInterval.
	minRetryDelay = time.Second
)

// NewServices returns Services that serve nothing yet.
func NewServices(options ServicesOptions) *Services {
	if options.Addresses == nil {
		options.Addresses = nodeaddr.Within
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	return &Services{
		options: options, ports: map[model.PortID]*model.ServicePort{}, servers: map[serviceID]*server{},
		delays: backoff.ExponentialBackOff{InitialInterval: minRetryDelay, Multiplier: 2, MaxInterval: lookInterval},
	}
}

// Apply starts, updates and ends servers. Call it after a Sync: load balancers must not send traffic before the rules
// exist. If a server cannot listen, or the machine's addresses cannot be listed, Apply tries again with later changes
// and after 1 s, then after twice as long each time, up to 10 s. Servers listen on new addresses within 10 s. Servers
// end with ctx, which should be the same for all calls.
func (s *Services) Apply(ctx context.Context, changes *model.Changes) {
	s.ending.Do(func() { context.AfterFunc(ctx, s.close) })
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.logger = klog.FromContext(ctx)
	touched := s.note(changes)
	if touched {
		s.update()
	}
	if touched || s.delay > 0 {
		s.listen()
	}
}

// note records the changes, and reports whether they may affect servers.
func (s *Services) note(changes *model.Changes) (touched bool) {
	touched = len(s.ports) > 0 && (changes.Full || changes.Node != nil)
	if changes.Node != nil {
		s.nodeIPs = changes.Node.IPs
	}
	if changes.Full {
		clear(s.ports)
	}
	for id, port := range changes.Ports {
		touched = touched || s.ports[id] != nil
		delete(s.ports, id)
		if port != nil && port.HealthCheckNodePort != 0 {
			s.ports[id], touched = port, true
		}
	}
	return touched
}

// update gives each Service a server and its number of ready endpoints on this node, and ends the other servers. An
// address counts once. Terminating endpoints do not count, even while they serve in place of ready ones, so that load
// balancers choose other nodes (KEP-1669).
func (s *Services) update() {
	ready := map[serviceID]map[netip.Addr]struct{}{}
	for id, port := range s.ports {
		key := serviceID{id.Namespace, id.Service, id.Family}
		if ready[key] == nil {
			ready[key] = map[netip.Addr]struct{}{}
		}
		if s.servers[key] == nil {
			s.servers[key] = &server{id: key, healthy: s.options.Ready, listeners: map[netip.Addr]net.Listener{}}
		}
		s.servers[key].wantedPort = port.HealthCheckNodePort // equal for all ports of a Service
		if !port.LocalTerminating {
			for _, endpoint := range port.Local {
				ready[key][endpoint.AddrPort.Addr()] = struct{}{}
			}
		}
	}
	for key, server := range s.servers {
		server.localEndpoints.Store(int64(len(ready[key])))
		if ready[key] == nil {
			server.close()
			delete(s.servers, key)
		}
	}
}

// list updates the addresses to listen on. If the machine's addresses cannot be listed, the last ones stay.
func (s *Services) list() error {
	prefixes := slices.Clone(s.options.CIDRs)
	if s.options.Primary {
		for _, ip := range s.nodeIPs {
			prefixes = append(prefixes, netip.PrefixFrom(ip, ip.BitLen()))
		}
	}
	addresses, err := s.options.Addresses(prefixes)
	if err == nil {
		s.addresses = addresses
	} else if !s.unlisted {
		s.logger.Error(err, "Cannot find new addresses for the health checks of Services, will retry")
	}
	s.unlisted = err != nil
	return err
}

// listen makes each server listen on all addresses, and starts the timer. In a family without nodePortAddresses no
// server listens.
func (s *Services) listen() {
	err := s.list()
	// Closes come before opens, because a port may move between Services.
	for _, server := range s.servers {
		server.closeUnwanted(s.addresses[server.id.family])
	}
	listening, failing := 0, 0
	for _, server := range s.servers {
		failure := err
		if wanted, configured := s.addresses[server.id.family]; configured {
			if failure = server.open(s.logger, wanted); failure != nil {
				s.report(server, failure)
			}
		}
		switch {
		case failure != nil:
			failing++
		case len(server.listeners) > 0:
			listening++
		}
	}
	s.lookLater(err != nil || failing > 0)
	if s.options.OnListening != nil {
		s.options.OnListening(listening, failing)
	}
}

// lookLater starts the timer. After a failure a running timer stays.
func (s *Services) lookLater(failing bool) {
	if failing && s.delay > 0 && s.timer != nil {
		return
	}
	s.stopTimer()
	wait := lookInterval
	if failing {
		s.delay = s.delays.NextBackOff()
		wait = s.delay
	} else {
		s.delay = 0
		s.delays.Reset()
	}
	if len(s.servers) > 0 {
		s.timer = s.options.Clock.AfterFunc(wait, s.look)
	}
}

func (s *Services) stopTimer() {
	if s.timer != nil {
		s.timer.Stop()
	}
	s.timer = nil
}

func (s *Services) look() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.timer == nil {
		return // close or Apply came first
	}
	s.stopTimer()
	s.listen()
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
			fmt.Errorf("healthCheckNodePort %d: %w; until that is mended, load balancers take this node for one without endpoints", server.wantedPort, err))
	}
}

// close ends all servers, for good.
func (s *Services) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.stopTimer()
	for _, server := range s.servers {
		server.close()
	}
}
