package protocol

import (
	"errors"
	"fmt"

	nodelocalv1 "github.com/nftproxy/nftproxy/nodelocal/v1"
)

// Limits bounds what a server can make a client keep. A zero field is that of DefaultLimits.
type Limits struct {
	// Ports is how many ports a batch may set and delete together, continuations not counted.
	Ports int
	// Addresses is how many addresses the ports of a batch may have: endpoints in all lists, external and load
	// balancer addresses, source ranges (model.ServicePort.Addresses), which also counts labels and annotations. Ports that are left
	// out do not count.
	Addresses int
	// Bytes is how long a batch may be on the wire.
	Bytes int
}

// DefaultLimits has room for twenty times the Services and the pods that Kubernetes is tested with (10,000 and
// 150,000). A batch that uses all of it takes about half a gigabyte of memory.
var DefaultLimits = Limits{Ports: 200_000, Addresses: 3_000_000, Bytes: 512 << 20}

// MaxTriggers is how many times of events a batch has at most (Sync.trigger_times).
const MaxTriggers = 10_000

// ErrLimit is returned, wrapped, for more than Limits allows.
var ErrLimit = errors.New("more than this client takes")

// OrDefault returns l with the defaults in place of its zero fields.
func (l Limits) OrDefault() Limits {
	for _, f := range []struct{ field, value *int }{
		{&l.Ports, &DefaultLimits.Ports}, {&l.Addresses, &DefaultLimits.Addresses}, {&l.Bytes, &DefaultLimits.Bytes},
	} {
		if *f.field == 0 {
			*f.field = *f.value
		}
	}
	return l
}

// Check returns an error that names the field of l that used exceeds.
func (l Limits) Check(used Limits) error {
	l = l.OrDefault()
	for _, f := range []struct {
		name      string
		used, max int
	}{
		{"Ports", used.Ports, l.Ports}, {"Addresses", used.Addresses, l.Addresses}, {"Bytes", used.Bytes, l.Bytes},
	} {
		if f.used > f.max {
			return fmt.Errorf("%w: Limits.%s is %d, and the server has sent %d", ErrLimit, f.name, f.max, f.used)
		}
	}
	return nil
}

// add counts a part of size bytes, but for its addresses, which count when they are decoded.
func (l *Limits) add(update *nodelocalv1.Update, size int) {
	l.Bytes += size + frameHeader
	l.Ports += len(update.GetDelete())
	for _, port := range update.GetSet() {
		if !port.GetContinued() {
			l.Ports++
		}
	}
}

// frameHeader is how many bytes gRPC puts before each message. They count, so that a batch of empty parts ends too.
const frameHeader = 5
