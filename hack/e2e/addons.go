package main

import (
	"context"
	"embed"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"time"
)

//go:embed manifests
var manifests embed.FS

// kubectl runs kubectl in the machine, and returns what it prints.
func (c *cluster) kubectl(stdin string, args ...string) (string, error) {
	cmd := c.program("kubectl", append([]string{"--kubeconfig=" + c.kubeconfig("admin")}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := c.machine().output(cmd)
	if err != nil {
		return out, fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(out))
	}
	return out, nil
}

// output runs a program in the place, and returns what it prints.
func (p place) output(cmd *exec.Cmd) (string, error) {
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := p.start(cmd); err != nil {
		return "", err
	}
	err := cmd.Wait()
	return out.String(), err
}

func (c *cluster) apply(name string) error {
	text, err := manifests.ReadFile("manifests/" + name)
	if err != nil {
		return err
	}
	_, err = c.kubectl(string(text), "apply", "-f", "-")
	return err
}

// startAddons starts the load balancer and CoreDNS, and checks that a pod reaches a Service by its name.
func (c *cluster) startAddons(ctx context.Context) error {
	balancer := ownProgram(balancerProcess, c.kubeconfig("admin"))
	if _, err := c.machine().background(c.logs(), balancer); err != nil {
		return err
	}
	progress("CoreDNS")
	if err := c.apply("coredns.yaml"); err != nil {
		return err
	}
	if _, err := c.kubectl("", "--namespace=kube-system", "rollout", "status", "deployment/coredns", "--timeout="+patience.String()); err != nil {
		return err
	}
	progress("a Service is reached")
	return c.check(ctx)
}

// check has a pod, and the machine, which is outside of the cluster, reach all pods of a Service in both families.
func (c *cluster) check(ctx context.Context) error {
	if err := c.apply("check.yaml"); err != nil {
		return err
	}
	for _, wait := range [][]string{{"rollout", "status", "deployment/server"}, {"wait", "--for=condition=Ready", "pod/client"}} {
		if _, err := c.kubectl("", append(wait, "--namespace=check", "--timeout="+patience.String())...); err != nil {
			return err
		}
	}
	for _, family := range []string{"-4", "-6"} {
		if err := await(ctx, "a pod reaches all endpoints of a Service, curl "+family, func() error {
			return c.reachesAll("exec", "--namespace=check", "client", "--", "sh", "-c",
				"for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do curl "+family+" -sS -m 2 http://server.check.svc.cluster.local/hostname; echo; done")
		}); err != nil {
			return err
		}
	}
	if err := c.checkBalancer(ctx); err != nil {
		return err
	}
	_, err := c.kubectl("", "delete", "namespace", "check", "--wait=false")
	return err
}

// reachesAll runs kubectl, which must print the names of three servers.
func (c *cluster) reachesAll(args ...string) error {
	out, err := c.kubectl("", args...)
	if err != nil {
		return err
	}
	names := map[string]bool{}
	for name := range strings.FieldsSeq(out) {
		names[name] = strings.HasPrefix(name, "server-")
	}
	if len(names) != nodeCount {
		return fmt.Errorf("got %q", strings.Fields(out))
	}
	return nil
}

// checkBalancer reaches the Service from outside, at its load balancer's addresses.
func (c *cluster) checkBalancer(ctx context.Context) error {
	return await(ctx, "the load balancer's addresses are reached from outside", func() error {
		out, err := c.kubectl("", "get", "service", "server", "--namespace=check", "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}")
		if err != nil {
			return err
		}
		ips := strings.Fields(out)
		if len(ips) != len(machineAddrs) {
			return fmt.Errorf("the Service has the addresses %q", ips)
		}
		for _, ip := range ips {
			dialing, cancel := context.WithTimeout(ctx, 2*time.Second)
			conn, err := c.machine().dial(dialing, "tcp", net.JoinHostPort(ip, "80"))
			cancel()
			if err != nil {
				return err
			}
			conn.Close()
		}
		return nil
	})
}
