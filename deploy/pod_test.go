package deploy

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/nftproxy/nftproxy/internal/leftovers"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// pod runs the containers of a pod on a cluster's node, from the image that `make image` made.
type pod struct {
	spec    corev1.PodSpec
	cluster cluster
	root    string
}

// newPod prepares the root directory that the containers share: the image's files, the mounted
// ConfigMap, and the service account.
func newPod(t *testing.T, c cluster, spec corev1.PodSpec, configMap *corev1.ConfigMap) pod {
	t.Helper()
	p := pod{spec, c, newRoot(t)}
	for file, content := range configMap.Data {
		p.write(t, filepath.Join(p.mountPath(t), file), content)
	}
	p.write(t, leftovers.LockFile, "")
	account := c.api.RESTConfig()
	const mount = "/var/run/secrets/kubernetes.io/serviceaccount"
	p.write(t, mount+"/token", account.BearerToken)
	p.write(t, mount+"/ca.crt", string(account.CAData))
	return p
}

// mountPath returns the directory at which every container mounts the pod's first volume. A proxy has the lock too.
func (p pod) mountPath(t *testing.T) string {
	t.Helper()
	isOther := func(m corev1.VolumeMount) bool { return !cmp.Equal(m, lockMount) }
	for _, c := range append(p.spec.InitContainers, p.spec.Containers...) {
		if c.VolumeMounts[0].Name != p.spec.Volumes[0].Name || slices.ContainsFunc(c.VolumeMounts[1:], isOther) {
			t.Fatalf("container %s mounts %v, want the volume %s", c.Name, c.VolumeMounts, p.spec.Volumes[0].Name)
		}
	}
	return p.spec.Containers[0].VolumeMounts[0].MountPath
}

// lockVolume is the host's file, mounted at lockMount.
var (
	lockVolume = corev1.Volume{Name: "xtables-lock", VolumeSource: corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: leftovers.LockFile, Type: new(corev1.HostPathFileOrCreate)},
	}}
	lockMount = corev1.VolumeMount{Name: lockVolume.Name, MountPath: leftovers.LockFile, ReadOnly: true}
)

func (p pod) write(t *testing.T, path, content string) {
	t.Helper()
	path = filepath.Join(p.root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// container returns a container of the pod as the runtime starts it, with no more privileges than its
// security context allows.
func (p pod) container(c corev1.Container) container {
	out := container{
		Root:                   p.root,
		Env:                    []string{"PATH=/usr/local/bin"},
		Privileged:             *c.SecurityContext.Privileged,
		ReadOnlyRootFilesystem: *c.SecurityContext.ReadOnlyRootFilesystem,
	}
	for _, word := range c.Command {
		out.Command = append(out.Command, strings.ReplaceAll(word, "$(NODE_NAME)", lab.NodeName))
	}
	if added := c.SecurityContext.Capabilities; added != nil {
		for _, name := range added.Add {
			out.Capabilities = append(out.Capabilities, capabilities[name])
		}
	}
	return out
}

// capabilities are those that a manifest may add.
var capabilities = map[corev1.Capability]uintptr{"NET_ADMIN": unix.CAP_NET_ADMIN}

// start starts a container in the node's network.
func (p pod) start(t *testing.T, c container) *lab.Process {
	t.Helper()
	return lab.StartCommand(t, p.cluster.node, c.command(t))
}

// run runs another command of the image with the privileges of a container, as `kubectl exec` does.
func (p pod) run(t *testing.T, c corev1.Container, command ...string) (string, error) {
	t.Helper()
	with := p.container(c)
	with.Command = command
	var output bytes.Buffer
	cmd := with.command(t)
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := p.cluster.node.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	tooLong := time.AfterFunc(5*await.Patience, func() { _ = cmd.Process.Kill() })
	defer tooLong.Stop()
	err := cmd.Wait()
	if err != nil {
		err = fmt.Errorf("%v: %w: %s", command, err, &output)
	}
	return output.String(), err
}
