package proxytest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/nft"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A proxy has settled when a pod reaches the probe: a Service with a new address, written after all
// other objects. Then the proxy has received those too; and for some that write object by object, the
// kernel's ruleset must have rested for quiet.

const (
	// quiet is the time for which the ruleset must not change.
	quiet = 50 * time.Millisecond
	// quietWithin bounds the wait for that: another program may commit all the time.
	quietWithin = 2 * time.Second
	// probePort is the port of the probe's endpoint, on the pod on node-2 that every lab has.
	probePort      = 9999
	probeNamespace = "proxytest"
)

// probe is the Service by which a node knows that the proxy has settled.
type probe struct {
	server  io.Closer
	number  int
	objects []apiservertest.Object
}

// greeting is the text that the endpoint of the probe sends.
const greeting = "proxytest"

func newProbe(l *lab.Lab) (*probe, error) {
	server, err := l.Remote.ServeTCP(fmt.Sprintf(":%d", probePort), func(conn net.Conn) { _, _ = io.WriteString(conn, greeting) })
	if err != nil {
		return nil, fmt.Errorf("probe: %w", err)
	}
	return &probe{server: server}, nil
}

// addr returns the present address of the probe, in one family.
func (p *probe) addr(f Family) netip.Addr {
	number := byte(p.number%250 + 1)
	if f == IPv4 {
		return netip.AddrFrom4([4]byte{10, 96, 254, number})
	}
	return netip.MustParseAddr(fmt.Sprintf("fd00:10:96::fe%02x", number))
}

// next returns the objects of a new probe.
func (p *probe) next(families []Family) []apiservertest.Object {
	p.number++
	name := fmt.Sprintf("probe-%d", p.number)
	meta := metav1.ObjectMeta{Namespace: probeNamespace, Name: name}
	service := &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{
		Type:  corev1.ServiceTypeClusterIP,
		Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
	}}
	p.objects = []apiservertest.Object{service}
	for _, f := range families {
		service.Spec.ClusterIPs = append(service.Spec.ClusterIPs, p.addr(f).String())
		meta.Name = fmt.Sprintf("%s-%d", name, f)
		meta.Labels = map[string]string{discoveryv1.LabelServiceName: name}
		p.objects = append(p.objects, &discoveryv1.EndpointSlice{
			ObjectMeta:  meta,
			AddressType: f.addressType(),
			Ports:       []discoveryv1.EndpointPort{{Name: new(""), Protocol: new(corev1.ProtocolTCP), Port: new(int32(probePort))}},
			Endpoints: []discoveryv1.Endpoint{{
				Addresses:  []string{f.address(lab.RemotePodAddrs).String()},
				Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
				NodeName:   new(lab.RemoteName),
			}},
		})
	}
	setServiceDefaults(&service.Spec)
	return p.objects
}

// errUnsettled says that a proxy did not settle in time.
var errUnsettled = errors.New("the proxy has not settled")

// await dials the probe from a pod until it answers.
func (p *probe) await(ctx context.Context, l *lab.Lab, f Family, proxy *process) error {
	to := netip.AddrPortFrom(p.addr(f), 80).String()
	for patience := 20 * time.Millisecond; ; patience = min(2*patience, time.Second) {
		attempt, cancel := context.WithTimeout(ctx, patience)
		err := greeted(attempt, l.Client, to)
		cancel()
		if err == nil {
			return nil
		}
		if err := proxy.hasEnded(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %s has no route to the probe at %s (%w)", errUnsettled, f, to, err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func greeted(ctx context.Context, client *lab.Host, to string) error {
	conn, err := client.DialContext(ctx, "tcp", to)
	if err != nil {
		return err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	text, err := io.ReadAll(io.LimitReader(conn, int64(len(greeting))))
	if err == nil && string(text) != greeting {
		err = fmt.Errorf("somebody else answers: %q", text)
	}
	return err
}

// awaitQuiet returns when the ruleset has not changed for a while.
func awaitQuiet(ctx context.Context, c *nft.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, quietWithin)
	defer cancel()
	last, err := c.Generation(ctx)
	for since := time.Now(); err == nil && time.Since(since) < quiet; {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(quiet / 5):
		}
		var now uint32
		if now, err = c.Generation(ctx); now != last {
			last, since = now, time.Now()
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}
