package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	proxyImage    = "localhost/nftproxy/kube-proxy"
	proxyImageTag = "e2e"
	// daemonSetLabel is the label of nodes that the DaemonSet's pods serve, so that it takes one node over after the other.
	daemonSetLabel = "e2e.nftproxy.io/daemonset"
)

// makeProxyImage has make write the image, for this machine's architecture alone.
func (o options) makeProxyImage(ctx context.Context) (image, error) {
	dir := filepath.Join(o.images, "proxy")
	cmd := exec.CommandContext(ctx, "make", "image", "ARCHITECTURES="+runtime.GOARCH,
		"IMAGE="+proxyImage, "VERSION="+proxyImageTag, "BIN="+dir, "GO="+o.goCommand)
	cmd.Env = append(os.Environ(), "MAKEFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return image{}, fmt.Errorf("make image: %w\n%s", err, out)
	}
	return image{file: filepath.Join(dir, "image.tar"), names: []string{proxyImage + ":" + proxyImageTag}}, nil
}

// edit replaces a text of a file.
type edit struct{ file, text, with string }

// overlayEdits fill in a copy of the overlay standalone, as docs/deploy.md says. The last three are for this cluster alone:
// containerd leaves the OOM score as it is, a node cannot set the size of its connection tracking, and the DaemonSet serves
// nodes with the label.
func (c *cluster) overlayEdits() []edit {
	return []edit{
		{"config.conf", "PODS-RANGE", podRanges},
		{"kubeconfig.conf", "https://control-plane.example:6443", c.server()},
		{"kustomization.yaml", "newTag: v0.1.0", "newTag: " + proxyImageTag},
		{"config.conf", "oomScoreAdj: -997", "oomScoreAdj: 0"},
		{"config.conf", "mode: nftables\n", "mode: nftables\nconntrack: {maxPerCore: 0, min: 0}\n"},
		{"kustomization.yaml", "images:\n", `patches:
- target: {kind: DaemonSet}
  patch: |-
    - {op: add, path: /spec/template/spec/nodeSelector/` + strings.ReplaceAll(daemonSetLabel, "/", "~1") + `, value: ""}
images:
`},
	}
}

// writeOverlay writes the overlay, and returns its directory.
func (c *cluster) writeOverlay() (string, error) {
	root := filepath.Join(c.dir, "kustomize")
	if err := errors.Join(os.RemoveAll(root), os.CopyFS(root, os.DirFS("deploy/kustomize"))); err != nil {
		return "", err
	}
	overlay := filepath.Join(root, "overlays/standalone")
	for _, e := range c.overlayEdits() {
		if err := e.in(overlay); err != nil {
			return "", err
		}
	}
	return overlay, nil
}

func (e edit) in(dir string) error {
	file := filepath.Join(dir, e.file)
	before, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	after := strings.Replace(string(before), e.text, e.with, 1)
	if after == string(before) {
		return fmt.Errorf("%s lacks %q", file, e.text)
	}
	return os.WriteFile(file, []byte(after), 0o644)
}

// giveToDaemonSet ends the node's process, and has a pod of the DaemonSet serve the node.
func (s *scenarioRun) giveToDaemonSet(ctx context.Context, n *node) error {
	if err := s.stopProxyOf(n); err != nil {
		return err
	}
	if _, err := s.kubectl("", "label", "node", n.Name, daemonSetLabel+"="); err != nil {
		return err
	}
	return await(ctx, n.Name+": the pod of the DaemonSet is ready", func() error {
		pods, err := s.proxyPods(ctx, *n)
		if err != nil {
			return err
		}
		for _, p := range pods {
			if podReady(p) {
				return nil
			}
		}
		return fmt.Errorf("none of %d pods is", len(pods))
	})
}

// takeFromDaemonSet ends the node's pod, and has a process serve the node.
func (s *scenarioRun) takeFromDaemonSet(ctx context.Context, n *node) error {
	if _, err := s.kubectl("", "label", "node", n.Name, daemonSetLabel+"-"); err != nil {
		return err
	}
	if err := await(ctx, n.Name+": the pod of the DaemonSet is gone", func() error {
		pods, err := s.proxyPods(ctx, *n)
		if err == nil && len(pods) > 0 {
			return fmt.Errorf("%s is not", pods[0].Name)
		}
		return err
	}); err != nil {
		return err
	}
	return s.setProxyOf(ctx, s.options, n, "nftproxy")
}

// proxyPods are the node's pods of the DaemonSet.
func (s *scenarioRun) proxyPods(ctx context.Context, n node) ([]v1.Pod, error) {
	pods, err := s.client.CoreV1().Pods("kube-system").List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=nftproxy", FieldSelector: "spec.nodeName=" + n.Name})
	if err != nil {
		return nil, err
	}
	return pods.Items, nil
}

func podReady(p v1.Pod) bool {
	for _, condition := range p.Status.Conditions {
		if condition.Type == v1.PodReady {
			return condition.Status == v1.ConditionTrue
		}
	}
	return false
}

// runDaemonSet has the DaemonSet serve all nodes, restarts it, and has processes serve the nodes again.
func runDaemonSet(ctx context.Context, s *scenarioRun) error {
	overlay, err := s.prepareDaemonSet(ctx)
	if err != nil {
		return err
	}
	made, err := s.serveWithControl(ctx)
	if err != nil {
		return err
	}
	s.later(func(context.Context) error { return s.removeDaemonSet(overlay) })
	if _, err := s.kubectl("", "apply", "-k", overlay); err != nil {
		return err
	}
	another := func(ctx context.Context) error { return s.serveAnother(ctx, made) }
	return s.each(ctx, made.all(), []action{
		{"processes to the DaemonSet, node after node", counts, s.eachNode(s.giveToDaemonSet)},
		{"a new Service", counts, another},
		{"a rollout restart of the DaemonSet", counts, s.restartDaemonSet},
		{"a new Service after the restart", counts, another},
		{"the DaemonSet to processes, node after node", counts, s.eachNode(s.takeFromDaemonSet)},
	})
}

// prepareDaemonSet makes the image, loads it on all nodes, and writes the overlay.
func (s *scenarioRun) prepareDaemonSet(ctx context.Context) (overlay string, err error) {
	begin := time.Now()
	made, err := s.options.makeProxyImage(ctx)
	if err != nil {
		return "", err
	}
	progress("%s: make image took %v", s.name, time.Since(begin).Round(time.Second))
	for _, n := range s.Nodes {
		if err := n.load(made); err != nil {
			return "", err
		}
	}
	return s.writeOverlay()
}

func (s *scenarioRun) eachNode(do func(context.Context, *node) error) func(context.Context) error {
	return func(ctx context.Context) error {
		for i := range s.Nodes {
			if err := do(ctx, &s.Nodes[i]); err != nil {
				return err
			}
		}
		return nil
	}
}

// restartDaemonSet replaces all pods, as many at once as the manifests say.
func (s *scenarioRun) restartDaemonSet(ctx context.Context) error {
	for _, args := range [][]string{{"rollout", "restart", "daemonset/nftproxy"}, {"rollout", "status", "daemonset/nftproxy", "--timeout=" + patience.String()}} {
		if _, err := s.kubectl("", append(args, "--namespace=kube-system")...); err != nil {
			return err
		}
	}
	return nil
}

// removeDaemonSet removes everything of the overlay, and the nodes' labels.
func (s *scenarioRun) removeDaemonSet(overlay string) error {
	_, removing := s.kubectl("", "delete", "-k", overlay, "--ignore-not-found", "--cascade=foreground")
	_, labels := s.kubectl("", "label", "nodes", "--all", daemonSetLabel+"-")
	return errors.Join(removing, labels)
}
