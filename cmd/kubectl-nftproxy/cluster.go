package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
)

const (
	// nodesAtOnce bounds the nodes that check at the same time, and nodePatience the time of each.
	nodesAtOnce  = 16
	nodePatience = 90 * time.Second
)

// checkCluster runs "ruledump check" on all nodes that have a proxy. ruledump on one of them makes a table of the answers.
func (s *session) checkCluster(ctx context.Context, command []string) error {
	output, command, err := takeOutput(command)
	if err != nil {
		return err
	}
	pods, err := s.proxies(ctx)
	if err != nil {
		return err
	}
	answers, failed := make([]bytes.Buffer, len(pods)), make([]bool, len(pods))
	slots := make(chan struct{}, nodesAtOnce)
	var wait sync.WaitGroup
	for i := range pods {
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			on := *s
			on.proxy = &pods[i]
			failed[i] = !on.checkNode(ctx, append(slices.Clip(command), "-o", "json"), &answers[i])
		})
	}
	wait.Wait()
	var all bytes.Buffer
	s.proxy = &pods[0]
	for i := range answers {
		if !failed[i] {
			s.proxy = &pods[i] // it has ruledump
		}
		all.Write(answers[i].Bytes())
	}
	return s.stream(ctx, []string{"check", "--collect", "-", "-o", cmp.Or(output, "text")}, remotecommand.StreamOptions{Stdin: &all, Stdout: os.Stdout, Stderr: os.Stderr})
}

// checkNode writes the answer of a node. It reports false for a node that gives none, with an answer that says so.
func (s *session) checkNode(ctx context.Context, command []string, to *bytes.Buffer) bool {
	ctx, stop := context.WithTimeoutCause(ctx, nodePatience, fmt.Errorf("no answer within %v", nodePatience))
	defer stop()
	var said bytes.Buffer
	err := s.stream(ctx, command, remotecommand.StreamOptions{Stdout: to, Stderr: &said})
	if err == nil || errors.As(err, new(exec.CodeExitError)) && json.Valid(to.Bytes()) {
		return true
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	to.Reset()
	why := strings.TrimSpace(said.String() + " " + err.Error())
	_ = json.NewEncoder(to).Encode(map[string]any{
		"apiVersion": "ruledump.nftproxy/v1", "kind": "Check", "node": s.proxy.Spec.NodeName, "verdict": "unknown", "notLookedAt": []string{why},
	}) // a buffer takes everything
	return false
}

// proxies lists the proxies' pods, one for each node, sorted by node.
func (s *session) proxies(ctx context.Context) ([]corev1.Pod, error) {
	found, err := s.listProxies(ctx)
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("there is no running pod in namespace %s with labels %s: --proxy-namespace and --selector name the proxy's", s.proxyNamespace, s.selector)
	}
	byNode := func(a, b corev1.Pod) int { return cmp.Compare(a.Spec.NodeName, b.Spec.NodeName) }
	slices.SortStableFunc(found, byNode)
	return slices.CompactFunc(found, func(a, b corev1.Pod) bool { return byNode(a, b) == 0 }), err
}
