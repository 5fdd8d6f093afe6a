package main

import (
	"context"
	"errors"
	"path/filepath"
	"time"
)

// away is how long a killed process stays away while connections run.
const away = 300 * time.Millisecond

// apart runs the brain, which knows Kubernetes, and the backend, which programs nftables, as processes of their
// own. It kills each once, and changes a pod meanwhile.
func (d *demo) apart(ctx context.Context) error {
	d.say("\n6. Two processes do the work of one, and each is killed while connections run\n")
	socket := "unix://" + filepath.Join(filepath.Dir(d.manifests), "node-local.sock")
	d.say("    kube-proxy node-local-server --manifests DIR --listen unix://SOCKET    (the brain)")
	d.say("    kube-proxy --node-local-source unix://SOCKET …                         (the backend)")
	startBrain := func() (err error) {
		d.brain, err = d.runKubeProxy("brain", "node-local-server", "--manifests", d.manifests, "--listen", socket)
		return err
	}
	startBackend := func() (err error) {
		d.proxy, err = d.runKubeProxy("kube-proxy", append([]string{"--node-local-source", socket}, proxyArgs...)...)
		return err
	}
	one := d.proxy
	d.proxy = nil
	if err := errors.Join(one.stop(), startBrain(), startBackend()); err != nil {
		return err
	}
	if err := d.survive(ctx, "brain", replacement{newcomer, oldPod}, &d.brain, startBrain); err != nil {
		return err
	}
	if err := d.survive(ctx, "backend", replacement{oldPod, newcomer}, &d.proxy, startBackend); err != nil {
		return err
	}
	brain := d.brain
	d.brain = nil
	return brain.stop()
}

// survive kills a process while connections run, has a pod replaced while it is away, and starts it again.
func (d *demo) survive(ctx context.Context, name string, r replacement, process **proxy, start func() error) error {
	d.say("\n    kill -9 of the %s; %s replaces %s while it is away\n", name, r.added.name, r.removed.name)
	return d.replace(ctx, r, func(rename func() error) (time.Time, error) {
		killed := *process
		*process = nil
		if err := errors.Join(killed.kill(), rename(), sleep(ctx, away)); err != nil {
			return time.Time{}, err
		}
		begin := time.Now()
		return begin, start()
	}, func(begin time.Time, all observations) {
		d.say("")
		d.say("    %-38s 0.0 ms", name+" started again")
		d.say("    first connection answered by %s  %9s", r.added.name, milliseconds(all.firstNew.Sub(begin)))
		d.say("    last connection answered by %s   %9s", r.removed.name, milliseconds(all.lastOld.Sub(begin)))
	})
}
