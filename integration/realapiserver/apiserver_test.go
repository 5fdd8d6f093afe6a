package realapiserver

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/nft"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAPIServer(t *testing.T) {
	t.Run("allocates what is served", testAllocates)
	t.Run("is killed and starts again", testIsKilled)
	t.Run("has no history any more", testHasNoHistory)
	t.Run("loses its storage and gets it back", testLosesItsStorage)
	t.Run("answers slowly and in parts", testAnswersInParts)
}

func testAllocates(t *testing.T) {
	forEachKindOfLists(t, func(t *testing.T, c *cluster) {
		s := c.create(t, "web", corev1.ServiceTypeLoadBalancer, "own", "remote")
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.10"}, {IP: "2001:db8:192::10"}}
		if _, err := c.client.CoreV1().Services(namespace).UpdateStatus(t.Context(), s, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		c.startProxy(t, c.server.Kubeconfig)
		c.serves(t, s)
		for _, host := range []string{lab.NodeAddrs.IPv4.String(), lab.NodeAddrs.IPv6.String()} {
			c.servesAt(t, c.lab.Outside, net.JoinHostPort(host, fmt.Sprint(s.Spec.Ports[0].NodePort)))
		}
		for _, ip := range []string{"192.0.2.10", "2001:db8:192::10"} {
			c.servesAt(t, c.lab.Outside, net.JoinHostPort(ip, "80"))
		}
	})
}

func testIsKilled(t *testing.T) {
	forEachKindOfLists(t, func(t *testing.T, c *cluster) {
		before, going := c.create(t, "before", corev1.ServiceTypeClusterIP, "own"), c.create(t, "going", corev1.ServiceTypeClusterIP, "own")
		c.startProxy(t, c.server.Kubeconfig)
		c.serves(t, before)
		c.serves(t, going)
		c.server.Kill()
		c.stillServes(t, before)
		c.server.Start()
		c.delete(t, going)
		after := c.create(t, "after", corev1.ServiceTypeClusterIP, "remote")
		c.serves(t, after)
		c.isGone(t, going)
		c.stillServes(t, before)
	})
}

// The proxy is stopped while objects change and the history is compacted, so that its watches have expired when it goes
// on.
func testHasNoHistory(t *testing.T) {
	forEachKindOfLists(t, func(t *testing.T, c *cluster) {
		before, going := c.create(t, "before", corev1.ServiceTypeClusterIP, "own"), c.create(t, "going", corev1.ServiceTypeClusterIP, "own")
		c.startProxy(t, c.server.Kubeconfig)
		c.serves(t, before)
		c.serves(t, going)
		list, err := c.client.CoreV1().Services(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		signal(t, c.proxy, syscall.SIGSTOP)
		c.delete(t, going)
		meanwhile := c.create(t, "meanwhile", corev1.ServiceTypeClusterIP, "remote")
		c.server.Compact()
		c.server.Stop()
		c.server.Start()
		if err := c.watchError(t, list.ResourceVersion); !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
			t.Fatalf("a watch from the version before: %v, want that it has expired; this test shows nothing", err)
		}
		signal(t, c.proxy, syscall.SIGCONT)
		c.serves(t, meanwhile)
		c.isGone(t, going)
		c.stillServes(t, before)
	})
}

// watchError returns how the server refuses a watch from a version.
func (c *cluster) watchError(t *testing.T, version string) error {
	t.Helper()
	watch, err := c.client.CoreV1().Services(namespace).Watch(t.Context(), metav1.ListOptions{ResourceVersion: version})
	if err != nil {
		return err
	}
	defer watch.Stop()
	select {
	case event := <-watch.ResultChan():
		return apierrors.FromObject(event.Object)
	case <-time.After(await.Patience):
		return errors.New("it waits")
	}
}

// A server that has lost its storage counts versions from the beginning. It takes watches from versions that it has not
// reached, and says nothing until it has. So the proxy goes on with what it knows, one that starts does not believe the
// list with nothing but Service kubernetes, and both follow when the storage is back.
func testLosesItsStorage(t *testing.T) {
	forEachKindOfLists(t, func(t *testing.T, c *cluster) {
		first, second := c.create(t, "first", corev1.ServiceTypeClusterIP, "own"), c.create(t, "second", corev1.ServiceTypeClusterIP, "remote")
		c.startProxy(t, c.server.Kubeconfig)
		c.serves(t, first)
		c.serves(t, second)

		c.server.Stop()
		c.proxy.Says(t, "Cannot watch")
		c.server.StopStorage()
		backup := c.server.WipeStorage()
		c.server.StartStorage()
		c.server.Start()
		await.Until(t, "the server has made Service kubernetes", func() error {
			_, err := c.client.CoreV1().Services(namespace).Get(t.Context(), "kubernetes", metav1.GetOptions{})
			return err
		})
		if _, err := c.client.CoreV1().Services(namespace).Get(t.Context(), first.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Fatalf("Service %s: %v, want none; this test shows nothing", first.Name, err)
		}
		c.watchesAgain(t)
		c.stillServes(t, first)
		c.stillServes(t, second)
		if err := c.proxy.Stop(t); err != nil {
			t.Error(err)
		}
		c.startProxy(t, c.server.Kubeconfig)
		for _, resource := range []string{"services", "endpointslices"} {
			c.proxy.Says(t, `"the source has none, but the rules in force have some" resource="`+resource+`"`)
		}
		c.stillServes(t, first)
		c.stillServes(t, second)

		c.server.Stop()
		c.server.StopStorage()
		c.server.RestoreStorage(backup)
		c.server.StartStorage()
		c.server.Start()
		third := c.create(t, "third", corev1.ServiceTypeClusterIP, "own")
		c.delete(t, second)
		c.serves(t, third)
		c.isGone(t, second)
		c.stillServes(t, first)
	})
}

// watchesAgain waits until the proxy watches Services and slices after an outage.
func (c *cluster) watchesAgain(t *testing.T) {
	t.Helper()
	await.Until(t, "the proxy watches again", func() error {
		for _, resource := range []string{"services", "endpointslices"} {
			if !strings.Contains(c.proxy.Output(), `"Watching again" resource="`+resource) {
				return fmt.Errorf("not %s", resource)
			}
		}
		return nil
	})
}

func signal(t *testing.T, p *lab.Process, s syscall.Signal) {
	t.Helper()
	if err := p.Cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

const manyServices = 300

// The first connections break in the middle of an answer. Nothing is programmed of a part of a list.
func testAnswersInParts(t *testing.T) {
	forEachKindOfLists(t, func(t *testing.T, c *cluster) {
		var all []*corev1.Service
		for i := range manyServices {
			all = append(all, c.create(t, fmt.Sprintf("service-%d", i), corev1.ServiceTypeClusterIP, "own"))
		}
		r := newRelay(t, c)
		kubeconfig, err := os.ReadFile(c.server.Kubeconfig)
		if err != nil {
			t.Fatal(err)
		}
		conn := lab.Conn(t, c.lab.Node)
		c.startProxy(t, kubeconfigFor(t, strings.Replace(string(kubeconfig), r.server, r.address, 1)))
		await.Until(t, "answers were cut", func() error {
			has, err := conn.HasTable(t.Context(), nft.FamilyIP, compiler.TableName)
			if err != nil {
				return err
			}
			n := r.cut.Load()
			if has && n < cuts {
				t.Fatal("the proxy has programmed what it knows of answers that broke")
			}
			if n < cuts {
				return fmt.Errorf("%d of %d", n, cuts)
			}
			return nil
		})
		c.serves(t, all[0])
		for _, s := range all {
			c.stillServes(t, s)
		}
	})
}
