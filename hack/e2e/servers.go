package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// scenarioNamespace has the servers and clients of a scenario (manifests/scenario.yaml).
const scenarioNamespace = "scenario"

// entrances are addresses of the load balancer, by family: one for each node, which the machine routes to this node
// alone, whether the node is healthy or not.
var entrances = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("2001:db8:51::/120")}

var families = []string{"IPv4", "IPv6"}

// servers are pods behind a Service of both families, and the ways to them: one server and one client on each node.
type servers struct {
	// clients are the client pods, by node.
	clients []place
	// pods are the paths from a client pod on each node to the ClusterIPs.
	pods []path
	// nodePorts are the paths from outside the cluster to each node's node port, and entrances to the load balancer's
	// address that leads to each node.
	nodePorts, entrances []path
}

// all are the paths of all kinds.
func (s servers) all() (all []path) {
	return append(append(append(all, s.pods...), s.nodePorts...), s.entrances...)
}

// serve starts servers and clients, which the scenario's end removes, and waits until all paths work.
func (s *scenarioRun) serve(ctx context.Context) (servers, error) {
	s.later(s.removeServers)
	if err := s.apply("scenario.yaml"); err != nil {
		return servers{}, err
	}
	for _, name := range []string{"server", "client"} {
		if _, err := s.kubectl("", "rollout", "status", "daemonset/"+name, "--namespace="+scenarioNamespace, "--timeout="+patience.String()); err != nil {
			return servers{}, err
		}
	}
	service, err := s.balance(ctx)
	if err != nil {
		return servers{}, err
	}
	made, err := s.paths(ctx, service)
	if err != nil {
		return made, err
	}
	return made, awaitPaths(ctx, made.all())
}

// awaitPaths waits until all paths have worked.
func awaitPaths(ctx context.Context, paths []path) error {
	for _, p := range paths {
		if err := await(ctx, p.name+" works", func() error {
			k := kept{}
			defer k.close()
			return k.get(p, true)
		}); err != nil {
			return err
		}
	}
	return nil
}

// serveAnother waits until every node serves a Service that is new. So the proxies do more than leave the rules of
// others alone.
func (s *scenarioRun) serveAnother(ctx context.Context, made servers) error {
	paths, err := s.another(ctx, made)
	if err != nil {
		return err
	}
	return awaitPaths(ctx, paths)
}

// another makes a new Service, and returns the paths from a pod on each node to it.
func (s *scenarioRun) another(ctx context.Context, made servers) (paths []path, err error) {
	both := v1.IPFamilyPolicyRequireDualStack
	service, err := s.client.CoreV1().Services(scenarioNamespace).Create(ctx, &v1.Service{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "another-"},
		Spec: v1.ServiceSpec{
			Selector: map[string]string{"app": "server"}, IPFamilyPolicy: &both, IPFamilies: []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol},
			Ports: []v1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	for i, client := range made.clients {
		for family, name := range families {
			paths = append(paths, path{fmt.Sprintf("a pod on %s to the new Service, %s", s.Nodes[i].Name, name), client.dial, net.JoinHostPort(service.Spec.ClusterIPs[family], "80")})
		}
	}
	return paths, nil
}

// noneWorks is an error if one of the paths works.
func noneWorks(paths []path) error {
	var group errgroup.Group
	for _, p := range paths {
		group.Go(func() error {
			k := kept{}
			defer k.close()
			if k.get(p, true) == nil {
				return fmt.Errorf("%s works", p.name)
			}
			return nil
		})
	}
	return group.Wait()
}

// balance gives the Service an address for each node and family.
func (s *scenarioRun) balance(ctx context.Context) (*v1.Service, error) {
	service, err := s.client.CoreV1().Services(scenarioNamespace).Get(ctx, "server", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	vip := v1.LoadBalancerIPModeVIP
	service.Status.LoadBalancer.Ingress = nil
	for _, n := range s.Nodes {
		for family := range families {
			service.Status.LoadBalancer.Ingress = append(service.Status.LoadBalancer.Ingress, v1.LoadBalancerIngress{IP: n.entrance(family).String(), IPMode: &vip})
		}
	}
	s.later(func(context.Context) error { return s.routeEntrances(netlink.RouteDel) })
	if err := s.routeEntrances(netlink.RouteReplace); err != nil {
		return nil, err
	}
	return s.client.CoreV1().Services(scenarioNamespace).UpdateStatus(ctx, service, metav1.UpdateOptions{})
}

// entrance is the load balancer's address that leads to the node.
func (n node) entrance(family int) netip.Addr {
	addr := entrances[family].Addr()
	for range n.Number {
		addr = addr.Next()
	}
	return addr
}

func (s *scenarioRun) routeEntrances(change func(*netlink.Route) error) error {
	return s.machine().do(func() error {
		var failures []error
		for _, n := range s.Nodes {
			for family := range families {
				addr := n.entrance(family)
				route := &netlink.Route{Dst: ipNet(netip.PrefixFrom(addr, addr.BitLen())), Gw: n.addrs()[family].Addr().AsSlice()}
				if err := change(route); err != nil {
					failures = append(failures, fmt.Errorf("route of %s: %w", addr, err))
				}
			}
		}
		return errors.Join(failures...)
	})
}

func (s *scenarioRun) paths(ctx context.Context, service *v1.Service) (made servers, err error) {
	port := service.Spec.Ports[0]
	for _, n := range s.Nodes {
		pod, err := s.podPlace(ctx, n, "app=client")
		if err != nil {
			return made, err
		}
		made.clients = append(made.clients, pod)
		for family, name := range families {
			to := func(addr string, port int32) string { return net.JoinHostPort(addr, strconv.Itoa(int(port))) }
			made.pods = append(made.pods, path{fmt.Sprintf("a pod on %s to the ClusterIP, %s", n.Name, name), pod.dial, to(service.Spec.ClusterIPs[family], port.Port)})
			made.nodePorts = append(made.nodePorts, path{fmt.Sprintf("from outside to the node port of %s, %s", n.Name, name), s.machine().dial, to(n.addrs()[family].Addr().String(), port.NodePort)})
			made.entrances = append(made.entrances, path{fmt.Sprintf("from outside to the load balancer through %s, %s", n.Name, name), s.machine().dial, to(n.entrance(family).String(), port.Port)})
		}
	}
	return made, nil
}

// podPlace is the network of the pod on a node that the selector selects.
func (s *scenarioRun) podPlace(ctx context.Context, n node, selector string) (place, error) {
	pods, err := s.client.CoreV1().Pods(scenarioNamespace).List(ctx, metav1.ListOptions{LabelSelector: selector, FieldSelector: "spec.nodeName=" + n.Name})
	if err != nil {
		return place{}, err
	}
	if len(pods.Items) != 1 {
		return place{}, fmt.Errorf("%s has %d pods with %s", n.Name, len(pods.Items), selector)
	}
	id, err := podProcess(n, string(pods.Items[0].UID))
	return place{name: pods.Items[0].Name, init: id}, err
}

// podProcess finds a process of a pod by the pod's cgroup. All its containers share the pod's network.
func podProcess(n node, uid string) (processID, error) {
	all, err := hierarchies()
	if err != nil {
		return processID{}, err
	}
	var found processID
	err = filepath.WalkDir(all[0].dir(n.Name), func(dir string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() || filepath.Base(filepath.Dir(dir)) != "pod"+uid {
			return ignoreMissing(err)
		}
		members, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			return ignoreMissing(err)
		}
		for _, member := range strings.Fields(string(members)) {
			pid, err := strconv.Atoi(member)
			if err != nil {
				return err
			}
			if found, err = identify(pid); err == nil {
				return fs.SkipAll
			}
		}
		return nil
	})
	if err == nil && found.PID == 0 {
		err = fmt.Errorf("%s has no process of pod %s", n.Name, uid)
	}
	return found, err
}

// removeServers removes the namespace, and waits until it is gone.
func (s *scenarioRun) removeServers(ctx context.Context) error {
	namespaces := s.client.CoreV1().Namespaces()
	if err := namespaces.Delete(ctx, scenarioNamespace, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return await(ctx, "namespace "+scenarioNamespace+" is gone", func() error {
		_, err := namespaces.Get(ctx, scenarioNamespace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return cmp.Or(err, errors.New("it is still there"))
	})
}
