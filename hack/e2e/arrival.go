package main

import (
	"context"
	"fmt"
	"net"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// arrival is a new Service, by which a scenario sees whether changes reach the nodes.
type arrival struct {
	nodes []node
	ips   []string
	made  time.Time
}

// makeArrival makes a Service of both families in front of the servers.
func (s *scenarioRun) makeArrival(ctx context.Context, name string) (arrival, error) {
	both := v1.IPFamilyPolicyRequireDualStack
	made, err := s.client.CoreV1().Services(scenarioNamespace).Create(ctx, &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.ServiceSpec{
			Selector: map[string]string{"app": "server"}, IPFamilyPolicy: &both,
			Ports: []v1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return arrival{}, err
	}
	return arrival{s.Nodes, made.Spec.ClusterIPs, time.Now()}, nil
}

// changeArrives makes a Service and waits until all nodes reach it.
func (s *scenarioRun) changeArrives(ctx context.Context, name string) error {
	made, err := s.makeArrival(ctx, name)
	if err != nil {
		return err
	}
	took, err := made.everywhere(ctx)
	if err == nil {
		progress("%s: a new Service is reached from all nodes after %v", s.name, took.Round(time.Millisecond))
	}
	return err
}

// everywhere waits until each node reaches the Service in both families, and returns how long that took.
func (a arrival) everywhere(ctx context.Context) (time.Duration, error) {
	var group errgroup.Group
	for _, n := range a.nodes {
		for _, ip := range a.ips {
			group.Go(func() error {
				return await(ctx, n.Name+" reaches the new Service "+ip, func() error { return n.reaches(ctx, ip) })
			})
		}
	}
	err := group.Wait()
	return time.Since(a.made), err
}

// nowhere fails if a node reaches the Service.
func (a arrival) nowhere(ctx context.Context) error {
	for _, n := range a.nodes {
		for _, ip := range a.ips {
			if n.reaches(ctx, ip) == nil {
				return fmt.Errorf("%s reaches the new Service %s", n.Name, ip)
			}
		}
	}
	return nil
}

func (n node) reaches(ctx context.Context, ip string) error {
	ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	conn, err := n.place().dial(ctx, "tcp", net.JoinHostPort(ip, "80"))
	if err != nil {
		return err
	}
	return conn.Close()
}
