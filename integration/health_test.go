package integration

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/process"
	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// firstSyncLine is the line of the log that the documents name as the sign of success.
const firstSyncLine = "Programmed all Services; following changes from now on"

// clientOf returns a client in a host, each of whose requests has a connection of its own.
func clientOf(h *lab.Host) *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: h.DialContext}, Timeout: 10 * time.Second}
}

// ask returns the status code and the body of a path of the node's health server, or another port of the node.
func ask(h *lab.Host, port int, path string) (int, string, error) {
	response, err := clientOf(h).Get(fmt.Sprintf("http://127.0.0.1:%d%s", port, path))
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}

// health returns the codes of /healthz and /livez, such as "503 200", and the body of the first.
func (f *troubled) health() (codes, body string, err error) {
	healthz, body, err := ask(f.lab.Node, 10256, "/healthz")
	livez, _, err2 := ask(f.lab.Node, 10256, "/livez")
	return fmt.Sprintf("%d %d", healthz, livez), body, errors.Join(err, err2)
}

// becomes waits until /healthz and /livez have these codes, and the former says these things.
func (f *troubled) becomes(t *testing.T, codes string, says ...string) {
	t.Helper()
	f.becomesWithin(t, await.Patience, codes, says...)
}

func (f *troubled) becomesWithin(t *testing.T, patience time.Duration, codes string, says ...string) {
	t.Helper()
	await.Within(t, patience, "/healthz and /livez are "+codes, func() error {
		got, body, err := f.health()
		if err != nil || got != codes {
			return fmt.Errorf("%s, %v: %s", got, err, body)
		}
		for _, text := range says {
			if !strings.Contains(body, text) {
				return fmt.Errorf("the body lacks %q: %s", text, body)
			}
		}
		return nil
	})
}

// remains checks for a while that they have these codes.
func (f *troubled) remains(t *testing.T, codes string) {
	t.Helper()
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if got, body, err := f.health(); got != codes {
			t.Fatalf("/healthz and /livez are %s, want %s: %v %s", got, codes, err, body)
		}
	}
}

// metric returns the value of a metric with its labels, as /metrics has it; empty if it is not there.
func (f *troubled) metric(t *testing.T, name string) string {
	t.Helper()
	value, err := f.readMetric(name)
	if err != nil {
		t.Error(err)
	}
	return value
}

func (f *troubled) readMetric(name string) (string, error) {
	_, page, err := ask(f.lab.Node, 10249, "/metrics")
	if value := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` (.+)$`).FindStringSubmatch(page); value != nil {
		return value[1], err
	}
	return "", err
}

func (f *troubled) metricIs(t *testing.T, name, want string) {
	t.Helper()
	await.Until(t, "metric "+name, func() error {
		if got, err := f.readMetric(name); got != want || err != nil {
			return fmt.Errorf("it is %q, %v; want %q", got, err, want)
		}
		return nil
	})
}

// badToken spoils the credentials in the kubeconfig.
func (f *withServer) badToken(t *testing.T) {
	t.Helper()
	good, err := os.ReadFile(f.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(f.kubeconfig, bytes.Replace(good, []byte("token: "), []byte("token: not-"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (f *withServer) resume(t *testing.T) {
	t.Helper()
	if err := f.lab.Node.Do(f.server.Resume); err != nil {
		t.Fatal(err)
	}
}

func TestHealth(t *testing.T) {
	t.Parallel()
	t.Run("until the first Sync", testHealthUntilTheFirstSync)
	t.Run("ServiceCIDRs that fail hold up nothing", testServiceCIDRsThatFailHoldUpNothing)
	t.Run("while the Node is waited for", testHealthWhileTheNodeIsWaitedFor)
	t.Run("while a commit takes long", testHealthWhileACommitTakesLong)
}

func testHealthUntilTheFirstSync(t *testing.T) {
	const lastSync = `kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"}`
	for name, tt := range map[string]struct {
		spoil func(t *testing.T, f *withServer)
		mend  func(t *testing.T, f *withServer) // nil: a restart is needed
	}{
		"a token that the API server does not know": {func(t *testing.T, f *withServer) { f.badToken(t) }, nil},
		"may not list Services": {
			func(_ *testing.T, f *withServer) { f.server.Refuse("services", http.StatusForbidden) },
			func(_ *testing.T, f *withServer) { f.server.Refuse("services", 0) },
		},
		"the list of EndpointSlices is never answered": {
			func(_ *testing.T, f *withServer) { f.server.Hang("endpointslices") },
			func(_ *testing.T, f *withServer) { f.server.Answer("endpointslices") },
		},
		"the API server is away": {
			func(_ *testing.T, f *withServer) { f.server.Stop() },
			func(t *testing.T, f *withServer) { f.resume(t) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newWithServer(t)
			tt.spoil(t, f)
			p := f.start(t, "--kubeconfig="+f.kubeconfig)
			f.becomes(t, "503 200", "no sync has succeeded since the start", `"cannot watch `)
			f.remains(t, "503 200")
			if got := f.metric(t, lastSync); got != "" {
				t.Errorf("%s is %s, and the alert for those that never synced asks for its absence", lastSync, got)
			}
			for _, line := range []string{firstSyncLine, "Node is known"} {
				if strings.Contains(p.Output(), line) {
					t.Errorf("the log says %q", line)
				}
			}
			f.nothingApplied(t)
			if tt.mend == nil {
				return
			}
			tt.mend(t, f)
			await.Within(t, 2*await.Patience, "the rules are in the kernel", func() error { return lab.TableError(f.conn, f.want) })
			f.becomes(t, "200 200")
			p.Says(t, firstSyncLine)
			p.Says(t, "Node is known")
			if got := f.metric(t, lastSync); got == "" {
				t.Errorf("no metric %s", lastSync)
			}
			// What nothing waits for may take longer: client-go waits for up to a minute before it asks again.
			await.Within(t, 3*await.Patience, "no resource fails any more", func() error {
				if _, body, err := f.health(); err != nil || strings.Contains(body, "problems") {
					return fmt.Errorf("/healthz, %v: %s", err, body)
				}
				return nil
			})
		})
	}
}

// The kubelet must not kill a proxy because its commit takes longer than a change may wait: the kernel would undo it.
func testHealthWhileACommitTakesLong(t *testing.T) {
	f := newWithServer(t)
	hangs, released := make(chan struct{}), make(chan struct{})
	hang, release := sync.OnceFunc(func() { close(hangs) }), sync.OnceFunc(func() { close(released) })
	t.Cleanup(release)
	service, slice := serviceAt("hanging", "10.96.0.99", "10.244.1.5")
	lab.Create(t, f.server, service, slice)
	f.startFiltered(t, process.Calls(process.Judged, unix.SYS_SENDMSG), func(c *process.Call) process.Verdict {
		if bytes.Contains(c.Message(), []byte("shop/hanging")) {
			hang()
			<-released
		}
		return process.Pass
	}, "--kubeconfig="+f.kubeconfig, "--iptables-sync-period=1s")
	select {
	case <-hangs:
	case <-time.After(await.Patience):
		t.Fatal("no commit of the Service")
	}
	f.becomes(t, "503 200", "the kernel has not finished a commit for") // which it says once the change has waited for too long
	f.remains(t, "503 200")
	release()
	f.becomes(t, "200 200")
}

// Kubernetes drops packets to addresses of a ServiceCIDR that no Service holds. Nothing waits for that.
func testServiceCIDRsThatFailHoldUpNothing(t *testing.T) {
	cidr := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16"}}}
	const failing = `kubeproxy_watch_failing{resource="servicecidrs"}`
	for name, tt := range map[string]struct {
		spoil func(f *withServer)
		log   string
	}{
		"an internal error": {
			func(f *withServer) { f.server.Refuse("servicecidrs", http.StatusInternalServerError) },
			`"Cannot list; going on without it and retrying" err="failed to list *v1.ServiceCIDR`,
		},
		"no answer": {
			func(f *withServer) { f.server.Hang("servicecidrs") },
			`"Cannot list; going on without it and retrying" err="no answer from the API server for 10s" resource="servicecidrs"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newWithServer(t)
			lab.Create(t, f.server, cidr)
			tt.spoil(f)
			p := f.start(t, "--kubeconfig="+f.kubeconfig)
			await.Until(t, "the rules are in the kernel", func() error { return lab.TableError(f.conn, f.want) })
			f.becomes(t, "200 200", `"problems":["cannot watch servicecidrs"]`)
			f.metricIs(t, failing, "1")
			p.Says(t, tt.log)
			if log := p.Output(); name == "no answer" && strings.Index(log, firstSyncLine) > strings.Index(log, tt.log) {
				t.Error("Services waited for the answer")
			}

			f.server.Refuse("servicecidrs", 0)
			f.server.Answer("servicecidrs")
			await.Until(t, "the rule for the ServiceCIDR", func() error {
				table, err := f.conn.ReadTable(t.Context(), nft.FamilyIP, compiler.TableName)
				if err == nil && !strings.Contains(table.String(), "ip daddr 10.96.0.0/16 drop") {
					err = errors.New("it is not there")
				}
				return err
			})
			f.metricIs(t, failing, "0")
			if err := p.Stop(t); err != nil {
				t.Errorf("the proxy ended with %v", err)
			}
		})
	}
}

// A Service's health check must not attract traffic while node ports answer nowhere.
func testHealthWhileTheNodeIsWaitedFor(t *testing.T) {
	f := newWithServer(t)
	lab.Delete(t, f.server, f.node)
	service, slice := serviceAt("balanced", "10.96.0.20", "10.244.1.5")
	service.Spec.Type, service.Spec.ExternalTrafficPolicy, service.Spec.HealthCheckNodePort = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal, 32080
	slice.Endpoints[0].NodeName = &f.node.Name
	lab.Create(t, f.server, service, slice)
	serviceHealth := func(want int) func() error {
		return func() error {
			if got, body, err := ask(f.lab.Node, 32080, "/"); got != want {
				return fmt.Errorf("%d, want %d: %v %s", got, want, err, body)
			}
			return nil
		}
	}

	p := f.start(t, "--kubeconfig="+f.kubeconfig, "--nodeport-addresses=0.0.0.0/0")
	p.Says(t, firstSyncLine)
	f.becomes(t, "503 200", `"problems":["the Node is waited for"]`)
	await.Until(t, "the health check of the Service", serviceHealth(http.StatusServiceUnavailable))
	f.remains(t, "503 200")
	f.metricIs(t, `kubeproxy_node_missing{what="addresses"}`, "1")
	lab.Create(t, f.server, f.node)
	f.becomes(t, "200 200")
	await.Until(t, "the health check of the Service", serviceHealth(http.StatusOK))
	f.metricIs(t, `kubeproxy_node_missing{what="addresses"}`, "0")
}
