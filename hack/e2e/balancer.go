package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// balancerProcess is the load balancer of the cluster: a controller beside the control plane. It gives Services of type
// LoadBalancer addresses, and routes these to the nodes that answer the health probe, connection by connection.
const balancerProcess = "e2e-balancer"

const (
	balancerFinalizer = "service.kubernetes.io/load-balancer-cleanup"
	balancerPeriod    = 500 * time.Millisecond
)

// balancerPools are the ranges of the addresses, by family.
var balancerPools = map[v1.IPFamily]netip.Prefix{v1.IPv4Protocol: netip.MustParsePrefix("203.0.113.0/24"), v1.IPv6Protocol: netip.MustParsePrefix("2001:db8:113::/120")}

// balancer is the controller.
type balancer struct {
	client kubernetes.Interface
	probes http.Client
	// routed has the nodes to which an address leads now.
	routed map[netip.Addr][]netip.Addr
}

// runBalancer takes the path of a kubeconfig.
func runBalancer(args []string) error {
	config, err := clientcmd.BuildConfigFromFlags("", args[0])
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 50, 100
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	b := &balancer{client: client, routed: map[netip.Addr][]netip.Addr{}, probes: http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}}
	for ctx.Err() == nil {
		if err := b.sync(ctx); err != nil {
			fmt.Fprintln(os.Stderr, time.Now().Format(time.TimeOnly), err)
		}
		time.Sleep(balancerPeriod)
	}
	return nil
}

// sync looks at all Services and nodes once.
func (b *balancer) sync(ctx context.Context) error {
	services, err := b.client.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	nodes, err := b.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	wanted := map[netip.Addr][]netip.Addr{}
	taken := addressesOf(services.Items)
	var failures []error
	for i := range services.Items {
		s := &services.Items[i]
		if !balanced(s) {
			failures = append(failures, b.release(ctx, s))
			continue
		}
		if err := b.serve(ctx, s, taken); err != nil {
			failures = append(failures, fmt.Errorf("%s/%s: %w", s.Namespace, s.Name, err))
			continue
		}
		own := addressesOf(services.Items[i : i+1])
		taken = append(taken, own...)
		for _, addr := range own {
			wanted[addr] = nextHops(s, b.healthy(ctx, nodes.Items, s, addr))
		}
	}
	return errors.Join(append(failures, b.route(wanted))...)
}

// balanced says whether the Service is this controller's.
func balanced(s *v1.Service) bool {
	return s.Spec.Type == v1.ServiceTypeLoadBalancer && s.Spec.LoadBalancerClass == nil && s.DeletionTimestamp == nil
}

// addressesOf returns the load balancers' addresses.
func addressesOf(services []v1.Service) (addrs []netip.Addr) {
	for i := range services {
		for _, ingress := range services[i].Status.LoadBalancer.Ingress {
			if addr, err := netip.ParseAddr(ingress.IP); err == nil {
				addrs = append(addrs, addr)
			}
		}
	}
	return addrs
}

// nextHops are the healthy nodes that a Service's connections go to: one node if the Service has session affinity, since
// each node knows its own clients alone and the machine's routes choose a node for each connection.
func nextHops(s *v1.Service, healthy []netip.Addr) []netip.Addr {
	if s.Spec.SessionAffinity == v1.ServiceAffinityClientIP {
		return healthy[:min(1, len(healthy))]
	}
	return healthy
}

// serve gives a Service its finalizer, and an address of each of its families that is not taken.
func (b *balancer) serve(ctx context.Context, s *v1.Service, taken []netip.Addr) error {
	if !slices.Contains(s.Finalizers, balancerFinalizer) {
		s.Finalizers = append(s.Finalizers, balancerFinalizer)
		updated, err := b.client.CoreV1().Services(s.Namespace).Update(ctx, s, metav1.UpdateOptions{})
		if err != nil {
			return err
		}
		*s = *updated
	}
	ingress, err := assign(s, taken)
	if err != nil || equality.Semantic.DeepEqual(ingress, s.Status.LoadBalancer.Ingress) {
		return err
	}
	s.Status.LoadBalancer.Ingress = ingress
	updated, err := b.client.CoreV1().Services(s.Namespace).UpdateStatus(ctx, s, metav1.UpdateOptions{})
	if err == nil {
		*s = *updated
	}
	return err
}

// assign returns an address for each family. Families that have one keep it.
func assign(s *v1.Service, taken []netip.Addr) (ingress []v1.LoadBalancerIngress, err error) {
	for _, family := range s.Spec.IPFamilies {
		pool := balancerPools[family]
		i := slices.IndexFunc(s.Status.LoadBalancer.Ingress, func(i v1.LoadBalancerIngress) bool {
			addr, err := netip.ParseAddr(i.IP)
			return err == nil && pool.Contains(addr)
		})
		if i >= 0 {
			ingress = append(ingress, s.Status.LoadBalancer.Ingress[i])
			continue
		}
		addr := pool.Addr().Next()
		for slices.Contains(taken, addr) {
			addr = addr.Next()
		}
		if !pool.Contains(addr) {
			return nil, fmt.Errorf("no address is left in %s", pool)
		}
		vip := v1.LoadBalancerIPModeVIP
		ingress = append(ingress, v1.LoadBalancerIngress{IP: addr.String(), IPMode: &vip})
	}
	return ingress, nil
}

// release takes the address and the finalizer from a Service that has one and needs it no more.
func (b *balancer) release(ctx context.Context, s *v1.Service) error {
	if !slices.Contains(s.Finalizers, balancerFinalizer) || s.Spec.LoadBalancerClass != nil {
		return nil
	}
	if len(s.Status.LoadBalancer.Ingress) > 0 {
		s.Status.LoadBalancer = v1.LoadBalancerStatus{}
		updated, err := b.client.CoreV1().Services(s.Namespace).UpdateStatus(ctx, s, metav1.UpdateOptions{})
		if err != nil {
			return err
		}
		*s = *updated
	}
	s.Finalizers = slices.DeleteFunc(s.Finalizers, func(f string) bool { return f == balancerFinalizer })
	_, err := b.client.CoreV1().Services(s.Namespace).Update(ctx, s, metav1.UpdateOptions{})
	return err
}

// healthy returns the addresses of the nodes that answer the Service's health probe, of the family of like.
func (b *balancer) healthy(ctx context.Context, nodes []v1.Node, s *v1.Service, like netip.Addr) (healthy []netip.Addr) {
	port := healthPort
	if s.Spec.HealthCheckNodePort != 0 {
		port = strconv.Itoa(int(s.Spec.HealthCheckNodePort))
	}
	var mu sync.Mutex
	var probes sync.WaitGroup
	for i := range nodes {
		if _, excluded := nodes[i].Labels[v1.LabelNodeExcludeBalancers]; excluded {
			continue
		}
		for _, a := range nodes[i].Status.Addresses {
			addr, err := netip.ParseAddr(a.Address)
			if err != nil || a.Type != v1.NodeInternalIP || addr.Is4() != like.Is4() {
				continue
			}
			probes.Go(func() {
				if b.probe(ctx, net.JoinHostPort(nodeProbeAddress(&nodes[i], addr), port)) {
					mu.Lock()
					defer mu.Unlock()
					healthy = append(healthy, addr)
				}
			})
		}
	}
	probes.Wait()
	slices.SortFunc(healthy, netip.Addr.Compare)
	return healthy
}

// nodeProbeAddress is the node's first address, whatever the family that the probe is for: health servers of node ports
// listen on the addresses of the node's first family alone.
func nodeProbeAddress(n *v1.Node, otherwise netip.Addr) string {
	for _, a := range n.Status.Addresses {
		if a.Type == v1.NodeInternalIP {
			return a.Address
		}
	}
	return otherwise.String()
}

func (b *balancer) probe(ctx context.Context, address string) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/healthz", nil)
	if err != nil {
		return false
	}
	response, err := b.probes.Do(request)
	if err != nil {
		return false
	}
	response.Body.Close()
	return response.StatusCode == http.StatusOK
}

// route makes the machine's routes those that are wanted.
func (b *balancer) route(wanted map[netip.Addr][]netip.Addr) error {
	var failures []error
	for addr, nodes := range wanted {
		if !slices.Equal(nodes, b.routed[addr]) {
			failures = append(failures, b.routeTo(addr, nodes))
		}
	}
	for addr := range b.routed {
		if _, still := wanted[addr]; !still {
			failures = append(failures, b.routeTo(addr, nil))
		}
	}
	return errors.Join(failures...)
}

func (b *balancer) routeTo(addr netip.Addr, nodes []netip.Addr) error {
	route := &netlink.Route{Dst: ipNet(netip.PrefixFrom(addr, addr.BitLen()))}
	if len(b.routed[addr]) > 0 && (len(nodes) == 0 || addr.Is6()) { // IPv6 appends to a route what replaces one of IPv4
		if err := netlink.RouteDel(route); err != nil {
			return fmt.Errorf("removing the route of %s: %w", addr, err)
		}
		delete(b.routed, addr)
	}
	if len(nodes) == 0 {
		return nil
	}
	link, err := netlink.LinkByName(nodeBridge)
	if err != nil {
		return err
	}
	route.Src = clientAddrFor(addr).AsSlice()
	for _, node := range nodes {
		route.MultiPath = append(route.MultiPath, &netlink.NexthopInfo{LinkIndex: link.Attrs().Index, Gw: node.AsSlice()})
	}
	if err := netlink.RouteReplace(route); err != nil {
		return fmt.Errorf("routing %s to %v: %w", addr, nodes, err)
	}
	b.routed[addr] = nodes
	return nil
}
