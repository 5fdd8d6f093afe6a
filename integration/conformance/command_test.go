package conformance

import (
	"testing"

	"github.com/nftproxy/nftproxy/integration/lab/labtest"
)

// startWithCommand builds a cluster and runs the kube-proxy command on node1.
func startWithCommand(t *testing.T, args ...string) (*cluster, *command) {
	t.Helper()
	c := build(t)
	c.server, c.kubeconfig = labtest.APIServer(t, c.lab.Node)
	c.connect(c.lab.Node.DialContext)
	return c, c.runCommand(args...)
}

// command is a run of the kube-proxy command.
type command struct {
	c       *cluster
	process *labtest.Process
}

func (c *cluster) runCommand(args ...string) *command {
	c.t.Helper()
	args = append([]string{
		"--kubeconfig", c.kubeconfig, "--hostname-override", node1, "--cluster-cidr", clusterCIDR, "-v", "2",
		"--conntrack-max-per-core", "0", // That is the machine's, not the namespace's.
	}, args...)
	return &command{c: c, process: labtest.Start(c.t, c.lab.Node, "kube-proxy", args...)}
}

// stop ends the command as a kubelet does, and waits for it.
func (p *command) stop() {
	p.c.t.Helper()
	if err := p.process.Stop(p.c.t); err != nil {
		p.c.t.Errorf("kube-proxy after SIGTERM: %v", err)
	}
}

func TestMain(m *testing.M) { labtest.Main(m) }
