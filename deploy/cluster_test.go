package deploy

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// patience bounds each wait for something that must happen.
const patience = 30 * time.Second

// cluster is a node to run pods on, and an API server, which the node reaches at its loopback address.
type cluster struct {
	node *lab.Host
	api  *apiservertest.Server
}

// clusterIP is the address of the cluster's only Service.
const clusterIP = "10.96.0.10"

func newCluster(t *testing.T) cluster {
	t.Helper()
	l, err := lab.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	c := cluster{node: l.Node}
	if err := l.Node.Do(func() error {
		// Lists and watches instead of streams: so it is seen whether the role allows both.
		c.api = apiservertest.Start(t, apiservertest.Options{WithoutWatchList: true})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, obj := range service() {
		if _, err := c.api.Create(obj); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// service is a Service with an endpoint, and the Node.
func service() []apiservertest.Object {
	port, protocol := int32(8080), corev1.ProtocolTCP
	return []apiservertest.Object{
		&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: lab.NodeName},
			Spec:       corev1.NodeSpec{PodCIDR: "10.244.1.0/24", PodCIDRs: []string{"10.244.1.0/24"}},
			Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.168.0.1"}}},
		},
		&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop"},
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeClusterIP, ClusterIP: clusterIP, ClusterIPs: []string{clusterIP},
				IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
				Ports:      []corev1.ServicePort{{Port: 80, Protocol: protocol}},
			},
		},
		&discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Name: "web-1", Namespace: "shop", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.244.1.5"}}},
			Ports:       []discoveryv1.EndpointPort{{Name: new(string), Port: &port, Protocol: &protocol}},
		},
		&networkingv1.ServiceCIDR{
			ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
			Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16"}},
		},
	}
}

// get asks a port of the node, as the kubelet's probes do, and returns an error for an
// answer other than 200.
func (c cluster) get(port int32, path string) (string, error) {
	client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true, DialContext: c.dial}}
	response, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d%s", port, path))
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("port %d: %s: status %d: %s", port, path, response.StatusCode, body)
	}
	return string(body), err
}

func (c cluster) dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = c.node.Do(func() error {
		conn, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}
