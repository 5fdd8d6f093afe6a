package flows

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// patience bounds the wait of an attempt for an answer, which may take its time on a busy machine. In
// between, TCP sends its SYN again by itself.
const patience = 10 * time.Second

// ShortPatience bounds the wait of an attempt where silence is, or may be, the expected result. Where other results
// may come as well, an answer that takes longer is taken for silence, so an emulated machine needs more. It must be
// shorter than repeatAfter: a datagram that is sent again may meet another fate.
var ShortPatience = 400 * time.Millisecond

// atOnce bounds how many flows run at the same time; most of the time they wait.
const atOnce = 64

// Run is Failures, joined to one error; nil when every flow became what was expected.
func (r *Runner) Run(flows []Flow) error {
	var errs []error
	for _, failure := range r.Failures(flows) {
		errs = append(errs, failure)
	}
	return errors.Join(errs...)
}

// Failures sends all flows, many at the same time, and returns those with another result than expected. On a kernel
// without IPv6 those of IPv6 are left out.
func (r *Runner) Failures(flows []Flow) []*Failure {
	failures := make([]*Failure, len(flows))
	slots := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for i, flow := range flows {
		if flow.To.Addr().Is6() && !lab.HasIPv6 {
			continue
		}
		slots <- struct{}{}
		all.Go(func() {
			if failures[i] = r.run(flow); failures[i] != nil {
				failures[i].Flow = flow
			}
			<-slots
		})
	}
	all.Wait()
	return slices.DeleteFunc(failures, func(f *Failure) bool { return f == nil })
}

func (r *Runner) run(flow Flow) (failure *Failure) {
	err := func() error {
		s, err := r.sender(flow)
		if err != nil {
			return err
		}
		if flow.Expect.Result == Untouched {
			if err := s.await(); err != nil {
				return err
			}
		}
		return s.host.Do(func() error {
			if s.from, err = s.source(); err != nil {
				return err
			}
			if flow.Expect.Result != "" {
				failure = s.once()
			} else {
				failure = s.often()
			}
			return nil
		})
	}()
	if err != nil {
		return &Failure{Seen: err.Error()}
	}
	return failure
}

// sender makes the attempts of a flow.
type sender struct {
	flow     Flow
	runner   *Runner
	host     *lab.Host
	listener *listener
	// target hears echoes arrive, when it is not the sender itself.
	target *listener
	from   netip.Addr
}

func (r *Runner) sender(flow Flow) (*sender, error) {
	s := &sender{flow: flow, runner: r, host: r.lab.Node}
	if flow.From != FromNode {
		from := flow.From.Addr(flow.To.Addr())
		if s.host = r.lab.HostOf(from); s.host == nil {
			return nil, fmt.Errorf("cannot send: nothing in the lab has the address %s", from)
		}
	}
	var err error
	s.listener, err = r.listenerOf(s.host)
	return s, err
}

// source returns the address that packets start from. It runs inside the host.
func (s *sender) source() (netip.Addr, error) {
	if s.flow.From != FromNode {
		return s.flow.From.Addr(s.flow.To.Addr()), nil
	}
	return sourceTowards(s.flow.To.Addr())
}

// await has somebody listen at the very address that the flow goes to.
func (s *sender) await() error {
	to := s.flow.To.Addr()
	host := s.runner.lab.HostOf(to)
	if to.IsLoopback() {
		host = s.host
	}
	if host == nil {
		return fmt.Errorf("cannot be untouched: nothing in the lab has the address %s", to)
	}
	if s.flow.Protocol != ICMP {
		return s.runner.serve(service{host, s.flow.Protocol, s.flow.To})
	}
	target, err := s.runner.listenerOf(host)
	if target != s.listener {
		s.target = target
	}
	return err
}

// patience returns the bound of an attempt's wait for an answer.
func (s *sender) patience() time.Duration {
	if s.flow.Expect.Result == Dropped {
		return ShortPatience
	}
	return s.runner.Patience
}

// attempt makes one connection. It runs inside the host.
func (s *sender) attempt(patience time.Duration) outcome {
	token, port := s.runner.next()
	if s.flow.Port != 0 {
		port = s.flow.Port
	}
	x := exchange{s.flow.Protocol, port, s.flow.To}
	notices, done := s.listener.await(x)
	defer done()
	if s.target != nil {
		defer s.target.share(x, s.listener)()
	}
	a := &attempt{
		exchange: x,
		from:     s.from,
		bound:    s.flow.From != FromNode,
		token:    token,
		notices:  notices,
		patience: patience,
		arrived:  &s.runner.arrived,
	}
	return a.run()
}

// often connects until all endpoints were seen, and some more to notice others.
func (s *sender) often() *Failure {
	want := s.flow.Expect.Endpoints
	least, most := 10+4*len(want), 10+40*len(want)
	if s.flow.Port != 0 {
		least, most = 1, 1
	}
	seen := map[netip.AddrPort]bool{}
	if home, ok := s.runner.homeOf(s.flow.Expect.As); ok {
		seen[home] = true
	}
	for i := 1; i <= most; i++ {
		o := s.attempt(s.patience())
		if want := s.judge(o); want != "" {
			return &Failure{Seen: fmt.Sprintf("connection %d %s", i, o), Want: want}
		}
		seen[o.answer.reached] = true
		if s.flow.Expect.Sticky && len(seen) > 1 {
			return &Failure{Seen: fmt.Sprintf("connection %d reached %s", i, o.answer.reached), Want: "want the same endpoint as before"}
		}
		if i >= least && (s.flow.Expect.Sticky || s.flow.Port != 0 || len(seen) == len(want)) {
			s.runner.setHome(s.flow.Name, o.answer.reached)
			return nil
		}
	}
	missed := slices.DeleteFunc(slices.Clone(want), func(a netip.AddrPort) bool { return seen[a] })
	return &Failure{Seen: fmt.Sprintf("none of %d connections reached %v", most, missed), Want: "want each endpoint reached"}
}

func (s *sender) once() *Failure {
	o := s.attempt(s.patience())
	if want := s.judge(o); want != "" {
		return &Failure{Seen: o.String(), Want: want}
	}
	return nil
}
