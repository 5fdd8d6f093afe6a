package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// stay has one kube-proxy follow the manifests, says how to enter the namespaces, which this process holds open, and waits until
// ctx ends.
func (d *demo) stay(ctx context.Context) (err error) {
	before := d.proxy
	d.proxy = nil
	if err := before.stop(); err != nil {
		return err
	}
	if d.proxy, err = d.runKubeProxy("kube-proxy", append([]string{"--manifests", d.manifests}, proxyArgs...)...); err != nil {
		return err
	}
	if _, err := d.firstAnswer(ctx); err != nil {
		return err
	}
	user := "root"
	if isSecondSelf() {
		user = "this user"
	}
	d.say("\n7. The cluster stays until Ctrl-C, which removes everything\n")
	d.say("    kube-proxy runs on node-1 and follows %s. In another terminal, as %s:\n", d.manifests, user)
	for _, host := range []struct {
		name string
		*lab.Host
	}{{"node-1", d.lab.Node}, {"the client pod", d.lab.Client}, {"the host outside", d.lab.Outside}} {
		d.say("    %s sh    # %s", enter(host.Host), host.name)
	}
	for _, verb := range []string{"services", "check --dial"} {
		d.say("    %s %s %s", enter(d.lab.Node), d.programs.ruledump, verb)
	}
	d.say("    tail -f %s", filepath.Join(filepath.Dir(d.manifests), "kube-proxy.log"))
	<-ctx.Done()
	d.say("\n    It is removed now.")
	return nil
}

// enter is the command that runs another one on a host. What was made in a user namespace is entered by that.
func enter(h *lab.Host) string {
	user, pid := "", os.Getpid()
	if isSecondSelf() {
		user = fmt.Sprintf(" --user=/proc/%d/ns/user --preserve-credentials", pid)
	}
	return fmt.Sprintf("nsenter%s --net=/proc/%d/fd/%d", user, pid, h.NetNS().Fd())
}
