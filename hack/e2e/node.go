package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	containerdSocket = "/run/containerd/containerd.sock"
	pluginDir        = "/usr/lib/cni"
)

// containerdConfig is for containerd 1.6 and 1.7. Processes may not lower their OOM score everywhere.
const containerdConfig = `version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs", "io.containerd.tracing.processor.v1.otlp"]
[grpc]
address = "` + containerdSocket + `"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "` + pauseImage + `"
restrict_oom_score_adj = true
disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "` + pluginDir + `"
conf_dir = "%[1]s/cni"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
`

// kubeletConfig lets everybody who reaches a kubelet use it: only the cluster does.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
clusterDNS: [%[2]q]
clusterDomain: cluster.local
containerRuntimeEndpoint: unix://` + containerdSocket + `
resolvConf: %[1]s/resolv.conf
evictionHard: {memory.available: "0%%", nodefs.available: "0%%", nodefs.inodesFree: "0%%", imagefs.available: "0%%"}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
enforceNodeAllocatable: []
oomScoreAdj: 0
registerNode: true
serializeImagePulls: false
volumePluginDir: /var/lib/kubelet/plugins-flex
`

// networkConfig returns the CNI configuration: each pod has a link to the node.
func (n node) networkConfig() any {
	type list = []any
	type object = map[string]any
	var ranges list
	for _, r := range n.podRanges() {
		ranges = append(ranges, list{object{"subnet": r.String()}})
	}
	return object{"cniVersion": "1.0.0", "name": "pods", "plugins": list{
		object{"type": "ptp", "ipam": object{"type": "host-local", "dataDir": "/run/cni-addresses", "ranges": ranges, "routes": list{object{"dst": "0.0.0.0/0"}, object{"dst": "::/0"}}}},
		object{"type": "portmap", "capabilities": object{"portMappings": true}},
	}}
}

// startNodes starts containerd and kubelet on each node, and waits until all are ready.
func (c *cluster) startNodes(ctx context.Context, images []image) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	for _, n := range c.Nodes {
		// The kubelet finds its Node, with the ranges that it may not choose.
		object := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: map[string]string{v1.LabelTopologyZone: fmt.Sprintf("zone-%d", n.Number)}}}
		for _, r := range n.podRanges() {
			object.Spec.PodCIDRs = append(object.Spec.PodCIDRs, r.String())
		}
		object.Spec.PodCIDR = object.Spec.PodCIDRs[0]
		if _, err := client.CoreV1().Nodes().Create(ctx, object, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	kubelets := make([]processID, len(c.Nodes))
	var group errgroup.Group
	for i, n := range c.Nodes {
		group.Go(func() (err error) {
			kubelets[i], err = c.serveNode(ctx, n, images)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return await(ctx, "the nodes are ready", func() error {
		for i, n := range c.Nodes {
			if !kubelets[i].alive() {
				return fmt.Errorf("%s-kubelet: %w", n.Name, errEnded)
			}
		}
		nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, n := range nodes.Items {
			if i := indexOfReady(n.Status.Conditions); i < 0 || n.Status.Conditions[i].Status != v1.ConditionTrue {
				return fmt.Errorf("%s is not", n.Name)
			}
		}
		return nil
	})
}

func indexOfReady(conditions []v1.NodeCondition) int {
	for i := range conditions {
		if conditions[i].Type == v1.NodeReady {
			return i
		}
	}
	return -1
}

// serveNode starts a node's programs, with its images, and returns its kubelet.
func (c *cluster) serveNode(ctx context.Context, n node, images []image) (kubelet processID, err error) {
	dir := c.nodeDir(n)
	if err := n.writeFiles(dir); err != nil {
		return kubelet, err
	}
	if _, err := n.place().background(c.logs(), program("containerd", "--config="+filepath.Join(dir, "containerd.toml"))); err != nil {
		return kubelet, err
	}
	if err := await(ctx, n.Name+": containerd answers", func() error { return n.run("ctr", "--address="+containerdSocket, "version") }); err != nil {
		return kubelet, err
	}
	for _, i := range images {
		if ctx.Err() != nil {
			return kubelet, ctx.Err()
		}
		if err := n.load(i); err != nil {
			return kubelet, err
		}
	}
	return n.place().background(c.logs(), c.program("kubelet", "--config="+filepath.Join(dir, "kubelet.yaml"),
		"--kubeconfig="+c.kubeconfig(n.Name), "--hostname-override="+n.Name, "--node-ip="+joined(n.addrs()), "--cert-dir=/var/lib/kubelet/pki"))
}

func (n node) writeFiles(dir string) error {
	network, err := json.Marshal(n.networkConfig())
	if err != nil {
		return err
	}
	return errors.Join(
		os.MkdirAll(filepath.Join(dir, "cni"), 0o755),
		os.WriteFile(filepath.Join(dir, "cni", "pods.conflist"), network, 0o644),
		os.WriteFile(filepath.Join(dir, "containerd.toml"), fmt.Appendf(nil, containerdConfig, dir), 0o644),
		os.WriteFile(filepath.Join(dir, "kubelet.yaml"), fmt.Appendf(nil, kubeletConfig, dir, dnsIPs[0]), 0o644),
		// No name server outside the cluster can be reached.
		os.WriteFile(filepath.Join(dir, "resolv.conf"), []byte("nameserver 192.0.2.53\n"), 0o644),
	)
}

// run runs a program on the node. An error has what it prints.
func (n node) run(name string, args ...string) error {
	out, err := n.place().output(program(name, args...))
	if err != nil {
		return fmt.Errorf("%s: %s: %w: %s", n.Name, name, err, strings.TrimSpace(out))
	}
	return nil
}

// load has containerd load an image, under all its names.
func (n node) load(i image) error {
	ctr := []string{"--address=" + containerdSocket, "--namespace=k8s.io", "images"}
	if err := n.run("ctr", append(ctr, "import", "--all-platforms", i.file)...); err != nil {
		return err
	}
	for _, name := range i.names[1:] {
		if err := n.run("ctr", append(ctr, "tag", "--force", i.names[0], name)...); err != nil {
			return err
		}
	}
	return nil
}
