package integration

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/source/apiserver"
)

// What is wrong on a node beside the rules shows in the metrics, the log and events of the proxy.
func TestNodeMetrics(t *testing.T) {
	t.Parallel()
	l := lab.ForTest(t)
	server, kubeconfig := lab.APIServer(t, l.Node)
	lab.Upload(t, server, exampleManifests)
	loser := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "zloser"}, Spec: corev1.ServiceSpec{
		Type: "ClusterIP", ClusterIP: "10.96.0.77", ClusterIPs: []string{"10.96.0.77"}, ExternalIPs: []string{"192.0.2.10"},
		Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: "TCP"}},
	}}
	lab.Create(t, server, loser)
	for _, addr := range talksEndpoints {
		pod, err := l.AddPod(addr, netip.MustParseAddr(addr))
		if err != nil {
			t.Fatal(err)
		}
		lab.ServeTCP(t, pod, addr+":8080", lab.Echo)
	}
	lab.Nft(t, l.HostOf(netip.MustParseAddr("10.244.1.6")), "table ip t { chain c { type filter hook input priority 0; policy drop; }; }", "-f", "-")
	p := lab.Start(t, l.Node, "kube-proxy", "--kubeconfig="+kubeconfig, "--hostname-override=node-1", "--cluster-cidr=10.99.0.0/16")
	shows := func(line string) error {
		page, err := getFrom(l.Node, "http://127.0.0.1:10249/metrics")
		if err == nil && !strings.Contains(page, "\n"+line+"\n") {
			err = fmt.Errorf("no %q", line)
		}
		return err
	}
	await.Until(t, "contested_addresses is 1", func() error { return shows("kubeproxy_contested_addresses 1") })
	await.Until(t, "detect_local_unfit is 1", func() error { return shows("kubeproxy_detect_local_unfit 1") })
	p.Says(t, `problem="no route or address of this node is in 10.99.0.0/16"`)
	config := server.RESTConfig()
	config.Dial = l.Node.DialContext
	events, err := apiserver.Client(config, nil, eventsv1.SchemeGroupVersion, &eventsv1.Event{}, &eventsv1.EventList{})
	if err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the Service that lost has an event", func() error {
		var list eventsv1.EventList
		if err := events.Get().Namespace("shop").Resource("events").Do(t.Context()).Into(&list); err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.Reason == "AddressContested" && e.Regarding.Name == "zloser" && strings.Contains(e.Note, "192.0.2.10:80/TCP, which shop/web:http claims") {
				return nil
			}
		}
		return fmt.Errorf("no event")
	})
	answered, unanswered := 0, 0
	for begin := time.Now(); (answered < 3 || unanswered < 4) && time.Since(begin) < await.Patience; {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		c, err := l.Outside.DialContext(ctx, "tcp", "192.0.2.10:80")
		if cancel(); err != nil {
			unanswered++
			continue
		}
		defer c.Close()
		answered++
	}
	entries := 0
	await.Until(t, "conntrack_entries counts them", func() error {
		page, err := getFrom(l.Node, "http://127.0.0.1:10249/metrics")
		if _, after, found := strings.Cut(page, "\nkubeproxy_conntrack_entries "); found {
			_, err = fmt.Sscan(after, &entries)
		}
		if err == nil && entries < answered+unanswered {
			err = fmt.Errorf("%d entries, and %d connections", entries, answered+unanswered)
		}
		return err
	})
	if err := shows("kubeproxy_conntrack_drop_total 0"); err != nil {
		t.Error(err)
	}
	// A look comes once a minute, and a loaded machine's later.
	await.Within(t, 3*await.Patience, "unanswered_endpoints is 1", func() error { return shows("kubeproxy_unanswered_endpoints 1") })
	p.Says(t, `endpoints=["10.244.1.6:8080 of shop/web:http"]`)
}
