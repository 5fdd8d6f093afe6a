package flows

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// Failure is a flow with another result than expected.
type Failure struct {
	// Flow is the flow that failed.
	Flow Flow
	// Seen says what happened, and Want what was expected of that; it is empty if the flow could not be sent.
	Seen, Want string
}

// Error names the flow and the reason.
func (f *Failure) Error() string {
	text := fmt.Sprintf("flow %q (%s %s → %s): %s", f.Flow.Name, f.Flow.Protocol, f.Flow.From, f.Flow.To, f.Seen)
	if f.Want != "" {
		text += ", " + f.Want
	}
	return text
}

// Runner sends the flows of one case through a lab, in which it sets up the case's endpoints.
// A lab can have only one Runner at a time.
type Runner struct {
	// Patience is the time that a connection waits for an answer that must come.
	Patience time.Duration

	lab     *lab.Lab
	pods    []string
	remotes []netip.Addr
	arrived arrivals

	// mu guards what is opened on demand, and the numbers that were given out.
	mu        sync.Mutex
	last      uint32
	taken     map[uint16]bool
	homes     map[string]netip.AddrPort // the endpoint that a flow reached last, by its name
	served    map[service]bool
	sctp      map[service]*sctpServer
	listeners map[*lab.Host]*listener
	closers   []io.Closer
}

// NewRunner sets up endpoints: those on the node under test as pods, those with an address
// that a host in the lab has on that host, all others on the other node. An endpoint of which
// no slice says where it is is on the node whose pods have such addresses. Ready or not, each
// serves its ports. On a kernel without IPv6 those of IPv6 are left out.
func NewRunner(l *lab.Lab, endpoints []Endpoint) (*Runner, error) {
	r := &Runner{
		Patience:  patience,
		lab:       l,
		arrived:   arrivals{reached: map[uint32]netip.AddrPort{}},
		served:    map[service]bool{},
		taken:     map[uint16]bool{},
		homes:     map[string]netip.AddrPort{},
		sctp:      map[service]*sctpServer{},
		listeners: map[*lab.Host]*listener{},
	}
	for _, endpoint := range endpoints {
		if endpoint.Addr.Is6() && !lab.HasIPv6 {
			continue
		}
		if err := r.add(endpoint); err != nil {
			return nil, errors.Join(fmt.Errorf("endpoint %s: %w", endpoint.Addr, err), r.Close())
		}
	}
	return r, nil
}

func (r *Runner) add(endpoint Endpoint) error {
	host, err := r.place(endpoint)
	if err != nil {
		return err
	}
	for _, port := range endpoint.Ports {
		err := r.serve(service{host, port.Protocol, netip.AddrPortFrom(endpoint.Addr, port.Number)})
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *Runner) place(endpoint Endpoint) (*lab.Host, error) {
	if host := r.lab.HostOf(endpoint.Addr); host != nil {
		return host, nil
	}
	ofNode := slices.ContainsFunc(lab.LocalPodNetworks, func(p netip.Prefix) bool { return p.Contains(endpoint.Addr) })
	if endpoint.Node == lab.NodeName || endpoint.Node == "" && ofNode {
		name := endpoint.Addr.String()
		host, err := r.lab.AddPod(name, endpoint.Addr)
		if err == nil {
			r.pods = append(r.pods, name)
		}
		return host, err
	}
	if err := r.lab.AddRemoteAddr(endpoint.Addr); err != nil {
		return nil, err
	}
	r.remotes = append(r.remotes, endpoint.Addr)
	return r.lab.Remote, nil
}

// Close removes the endpoints and makes the node under test forget their connections.
func (r *Runner) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.closers {
		c.Close()
	}
	for _, s := range r.sctp {
		s.conn.Close()
	}
	for _, e := range r.listeners {
		e.close()
	}
	errs := []error{r.lab.RemovePods(r.pods...)}
	for _, addr := range r.remotes {
		errs = append(errs, r.lab.RemoveRemoteAddr(addr))
	}
	return errors.Join(append(errs, r.lab.Node.FlushConntrack())...)
}

// serve makes sure that s is served.
func (r *Runner) serve(s service) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.served[s] || s.protocol == ICMP {
		return nil
	}
	if err := r.listen(s); err != nil {
		return fmt.Errorf("serve %s %s on %s: %w", s.protocol, s.at, s.host.Name, err)
	}
	r.served[s], r.taken[s.at.Port()] = true, true
	return nil
}

// listen needs mu.
func (r *Runner) listen(s service) error {
	var conn io.Closer
	var err error
	switch s.protocol {
	case TCP:
		conn, err = s.host.ServeTCP(s.at.String(), answerTCP)
	case UDP:
		conn, err = s.host.AnswerUDP(s.at, answerUDP(s.at, &r.arrived))
	case SCTP:
		return s.host.Do(func() error { return r.listenSCTP(s) })
	default:
		err = fmt.Errorf("unknown protocol %s", s.protocol)
	}
	if err == nil {
		r.closers = append(r.closers, conn)
	}
	return err
}

// listenSCTP opens a port of the one server that answers for all ports of an address.
func (r *Runner) listenSCTP(s service) (err error) {
	addr := service{host: s.host, protocol: SCTP, at: netip.AddrPortFrom(s.at.Addr(), 0)}
	if r.sctp[addr] == nil {
		if r.sctp[addr], err = serveSCTP(s.at.Addr(), &r.arrived); err != nil {
			delete(r.sctp, addr)
			return err
		}
	}
	r.sctp[addr].open(s.at.Port())
	return nil
}

func (r *Runner) listenerOf(h *lab.Host) (*listener, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.listeners[h] == nil {
		e, err := newListener(h)
		if err != nil {
			return nil, err
		}
		r.listeners[h] = e
	}
	return r.listeners[h], nil
}

// Source ports are below those that kernels and node ports use, and above those of the proxy itself.
const (
	firstPort = 15000
	ports     = 14000
)

// next returns a token and a source port that no other attempt of this Runner has, not for
// the next 14,000 of them at least, and that nothing serves.
func (r *Runner) next() (token uint32, port uint16) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		r.last++
		port = uint16(firstPort + r.last%ports)
		if !r.taken[port] {
			return r.last, port
		}
	}
}

// homeOf returns the endpoint that the flow of that name reached.
func (r *Runner) homeOf(name string) (home netip.AddrPort, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	home, ok = r.homes[name]
	return home, ok
}

func (r *Runner) setHome(name string, home netip.AddrPort) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.homes[name] = home
}
