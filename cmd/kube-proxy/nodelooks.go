package main

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/conntrack"
	"github.com/nftproxy/nftproxy/internal/config"
	"github.com/nftproxy/nftproxy/internal/metrics"
	"github.com/nftproxy/nftproxy/internal/nodeaddr"
	"github.com/nftproxy/nftproxy/model"
)

// detectLocalEvery is the time between two looks at the routes and interfaces of pods, which may be many.
const detectLocalEvery = 10 * time.Minute

// watchDetectLocal warns when detectLocal fits nothing on this node, at the start and when this changes, until ctx ends. It
// reads routes and interfaces beside the Syncs.
func watchDetectLocal(ctx context.Context, local compiler.DetectLocal) {
	logger := klog.FromContext(ctx)
	for before := ""; ; {
		problem, err := detectLocalProblem(local)
		switch {
		case err != nil:
			logger.V(2).Info("Cannot see whether detectLocal fits this node", "reason", err.Error())
		case problem != "" && before == "":
			logger.Info("detectLocal fits nothing on this node: its pods are taken for clients outside of the cluster, masqueraded, and refused under policy Local", "problem", problem)
		case problem == "" && before != "":
			logger.Info("detectLocal fits this node now")
		}
		if err == nil {
			before = problem
			metrics.SetDetectLocalUnfit(problem != "")
		}
		if !pause(ctx, detectLocalEvery) {
			return
		}
	}
}

// pause waits, and reports false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// detectLocalProblem says why detectLocal fits nothing on this node; empty if something fits. NodeCIDR has the metric of the
// Node.
func detectLocalProblem(local compiler.DetectLocal) (string, error) {
	own, err := nodeaddr.OfInterfaces()
	if err != nil {
		return "", err
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		return "", err
	}
	n := config.NodeNetwork{Addresses: own, LeadsInto: nodeaddr.LeadsInto}
	for _, i := range interfaces {
		n.Interfaces = append(n.Interfaces, i.Name)
	}
	return config.DetectLocalProblem(local, n)
}

const (
	// silentEvery is the time between two looks for endpoints that do not answer.
	silentEvery = time.Minute
	// silentConnections is the number of unanswered connections that make an endpoint one that does not answer.
	silentConnections = 3
	// silentTable bounds the entries that a look lists: listing 200,000 takes some 0.1 s of a processor.
	silentTable = 200_000
	// answerTime is longer than an answer takes that comes.
	answerTime = 3 * time.Second
)

// watchSilentEndpoints counts the endpoints that do not answer, until ctx ends. It lists the connection tracking table over
// sockets of its own, so no Sync waits, and rests for at least ten times as long as a look takes.
func watchSilentEndpoints(ctx context.Context, table *conntrack.Conn, endpointOf func(conntrack.Flow) (model.PortID, bool)) {
	before := 0
	for begin := time.Now(); pause(ctx, max(silentEvery, 10*time.Since(begin))); {
		begin = time.Now()
		silent, err := table.SilentServers(ctx, synSentTimeout()-answerTime, silentConnections, silentTable)
		if err != nil {
			if metrics.SetUnansweredEndpoints(-1); !errors.Is(err, conntrack.ErrLargeTable) && ctx.Err() == nil {
				klog.FromContext(ctx).V(2).Info("Cannot see which endpoints do not answer", "reason", err.Error())
			}
			continue
		}
		var named []string
		for _, f := range silent {
			if id, found := endpointOf(f); found {
				named = append(named, f.Server.String()+" of "+id.ServicePortName())
			}
		}
		if len(named) > 0 && before == 0 {
			klog.FromContext(ctx).Info("Endpoints do not answer the TCP connections that this node sends to them", "endpoints", named[:min(len(named), 10)], "count", len(named))
		}
		before = len(named)
		metrics.SetUnansweredEndpoints(before)
	}
}

// synSentTimeout is the time for which the kernel keeps a TCP connection that nobody has answered, since its last packet.
func synSentTimeout() time.Duration {
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_syn_sent")
	if seconds, parseErr := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && parseErr == nil {
		return time.Duration(seconds) * time.Second
	}
	return 120 * time.Second // the kernel's default
}
