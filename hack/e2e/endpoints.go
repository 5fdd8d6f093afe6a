package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// inServiceLabel is what the Service selects servers by (manifests/scenario.yaml). A server without it goes on, so its
// connections end only if a proxy ends them.
const inServiceLabel = "in-service"

func (s *scenarioRun) serverPods(ctx context.Context) ([]v1.Pod, error) {
	pods, err := s.client.CoreV1().Pods(scenarioNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app=server"})
	if err != nil {
		return nil, err
	}
	return pods.Items, nil
}

func (s *scenarioRun) putInService(ctx context.Context, pod v1.Pod, in bool) error {
	patch := fmt.Sprintf(`{"metadata": {"labels": {%q: "%t"}}}`, inServiceLabel, in)
	_, err := s.client.CoreV1().Pods(scenarioNamespace).Patch(ctx, pod.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// endpointsInTurns takes each endpoint out of the Service, waits until no node reaches it any more, and puts it back.
func (s *scenarioRun) endpointsInTurns(ctx context.Context) error {
	pods, err := s.serverPods(ctx)
	if err != nil {
		return err
	}
	for _, pod := range pods {
		for _, in := range []bool{false, true} {
			if err := errors.Join(s.putInService(ctx, pod, in), s.awaitChoice(ctx, pod.Name, in)); err != nil {
				return err
			}
		}
	}
	return nil
}

// noEndpoints takes all endpoints out of the Service, and puts them back.
func (s *scenarioRun) noEndpoints(ctx context.Context) error {
	pods, err := s.serverPods(ctx)
	if err != nil {
		return err
	}
	for _, in := range []bool{false, true} {
		for _, pod := range pods {
			err = errors.Join(err, s.putInService(ctx, pod, in))
		}
		err = errors.Join(err, pause(ctx, around))
	}
	for _, pod := range pods {
		err = errors.Join(err, s.awaitChoice(ctx, pod.Name, true))
	}
	return err
}

// choices are how many new connections a node makes to see whether a server is chosen: one of three is not chosen in 1 of
// 400,000 cases.
const choices = 32

// awaitChoice waits until the server is among those that each node reaches, or is not.
func (s *scenarioRun) awaitChoice(ctx context.Context, server string, want bool) error {
	service, err := s.client.CoreV1().Services(scenarioNamespace).Get(ctx, "server", metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, n := range s.Nodes {
		for _, ip := range service.Spec.ClusterIPs {
			to := path{n.Name, n.place().dial, net.JoinHostPort(ip, "80")}
			if err := await(ctx, fmt.Sprintf("%s reaches %s at %s: %t", n.Name, server, ip, want), func() error {
				chosen, err := to.chooses(ctx, server)
				if err == nil && chosen != want {
					err = fmt.Errorf("it is %t", chosen)
				}
				return err
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

// chooses says whether one of some new connections reaches the server.
func (p path) chooses(ctx context.Context, server string) (bool, error) {
	for range choices {
		name, err := p.fetch(ctx, "/hostname")
		if err != nil || strings.TrimSpace(name) == server {
			return err == nil, err
		}
	}
	return false, nil
}
