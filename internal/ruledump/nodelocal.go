package ruledump

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr/funcr"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nodelocal"
)

// nodeLocalPatience bounds FromNodeLocal's wait for the full state of a server.
const nodeLocalPatience = 10 * time.Second

// FromNodeLocal compiles the state that a server of the node-local API has for the node. target is unix:///PATH, or
// tcp://HOST:PORT with all three files. It takes the first full state and leaves. If none comes within
// nodeLocalPatience, the error has the reason of the last fault.
func FromNodeLocal(ctx context.Context, target string, files nodelocal.TLSFiles, c Compilation) (*Snapshot, error) {
	config, _, err := c.load()
	if err != nil {
		return nil, err
	}
	compiled, err := compiler.New(config)
	if err != nil {
		return nil, err
	}
	var fault atomic.Value // the reason of the last line of the log that has one
	log := funcr.NewJSON(func(line string) {
		var said struct{ Reason string }
		if err := json.Unmarshal([]byte(line), &said); err == nil && said.Reason != "" {
			fault.Store(said.Reason)
		}
	}, funcr.Options{Verbosity: 9})
	options := nodelocal.Options{Node: c.Node, ServiceProxyName: c.ServiceProxyName, Logger: log, OnSkip: func(err error) { c.warn("a Service port is left out: %v", err) }}
	if files.Any() {
		options.TLS = files.Client
	}
	ctx, stop := context.WithTimeoutCause(ctx, nodeLocalPatience, errNoState)
	defer stop()
	var s *Snapshot
	taken := model.FullState(func(_ context.Context, state *model.Changes) error {
		if s == nil {
			s = c.apply(compiled, NodeLocal, state)
			if state.Node != nil {
				s.Addresses = slices.Clone(state.Node.IPs)
			}
			stop()
		}
		return nil
	})
	if err := nodelocal.Run(ctx, target, taken, options); err != nil {
		return nil, err
	}
	if s == nil {
		if reason := fault.Load(); reason != nil && errors.Is(context.Cause(ctx), errNoState) {
			return nil, fmt.Errorf("node-local server %s: %w: %s", target, errNoState, reason)
		}
		return nil, fmt.Errorf("node-local server %s: %w", target, context.Cause(ctx))
	}
	if len(s.Addresses) == 0 {
		c.warn("the node-local server knows no addresses of a Node %s; these are the rules of a node without any", c.Node)
	}
	return s, nil
}

var errNoState = fmt.Errorf("no state of the node within %v", nodeLocalPatience)
