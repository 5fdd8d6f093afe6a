package integration

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// apiFault is something that goes wrong with the API server's answers about EndpointSlices.
type apiFault struct {
	name string
	// begin has it go wrong, for open watches too. The function that it returns mends it.
	begin func(t *testing.T, f *withServer) (mend func())
	// says is a text in the log, and problem one in the answer about health, while the fault lasts.
	says, problem string
	// long says that it takes a minute or two, for timeouts of client-go.
	long bool
	// credentials, if set, gives the proxy others than a token in a file.
	credentials func(t *testing.T, f *withServer)
}

const (
	watchedResource = "endpointslices"
	cannotWatch     = "cannot watch " + watchedResource
	keeping         = `"Cannot watch; keeping the last known state and retrying" err="`
)

// answered has a handler answer all requests.
func answered(answer http.HandlerFunc) func(*testing.T, *withServer) func() {
	return wraps(func(http.Handler) http.Handler { return answer })
}

func wraps(wrap func(http.Handler) http.Handler) func(*testing.T, *withServer) func() {
	return func(t *testing.T, f *withServer) func() {
		f.server.Wrap(watchedResource, wrap)
		f.endWatches(t)
		return func() { f.server.Wrap(watchedResource, nil) }
	}
}

// status answers as an API server does.
func status(code int, reason string, retryAfter string) func(*testing.T, *withServer) func() {
	return answered(func(w http.ResponseWriter, _ *http.Request) {
		if retryAfter != "" {
			w.Header().Set("Retry-After", retryAfter)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(map[string]any{
			"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "injected", "reason": reason, "code": code,
		})
	})
}

// half answers with the beginning of the first object of the answer that is due. It ends watches so soon that client-go
// lists again: one that ends after a second or later is a normal end to it, and it watches on.
func half(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") != "" {
			ctx, cancel := context.WithTimeout(r.Context(), 100*time.Millisecond)
			defer cancel()
			r = r.WithContext(ctx)
		}
		whole := httptest.NewRecorder()
		next.ServeHTTP(whole, r)
		for name, values := range whole.Header() {
			w.Header()[name] = values
		}
		w.WriteHeader(whole.Code)
		const beginning = 64 // bytes, less than any object has
		_, _ = w.Write(whole.Body.Bytes()[:min(beginning, whole.Body.Len())])
	})
}

var apiFaults = []apiFault{
	{"401", status(http.StatusUnauthorized, "Unauthorized", ""), keeping + "failed to list *v1.EndpointSlice: injected", cannotWatch, false, nil},
	{"403", status(http.StatusForbidden, "Forbidden", ""), keeping + "failed to list *v1.EndpointSlice: injected", cannotWatch, false, nil},
	{"410", status(http.StatusGone, "Expired", ""), keeping + "injected", cannotWatch, false, nil},
	{"429 with Retry-After", status(http.StatusTooManyRequests, "TooManyRequests", "1"), keeping, cannotWatch, false, nil},
	{"500", status(http.StatusInternalServerError, "InternalError", ""), keeping + "failed to list *v1.EndpointSlice: injected", cannotWatch, false, nil},
	{"garbage", answered(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf")
		_, _ = w.Write(bytes.Repeat([]byte{0xff, 0x00, 'k', '8', 's'}, 1000))
	}), keeping + "failed to list *v1.EndpointSlice: ", cannotWatch, false, nil},
	{"half objects", wraps(half), keeping + "failed to list *v1.EndpointSlice: unexpected EOF", cannotWatch, false, nil},
	{"nothing at all", func(t *testing.T, f *withServer) func() {
		f.server.Hang(watchedResource)
		f.endWatches(t)
		return func() { f.server.Answer(watchedResource) }
	}, keeping + "no answer from the API server for 10s", cannotWatch, false, nil},
	{"packets that vanish", func(t *testing.T, f *withServer) func() {
		_, port, err := net.SplitHostPort(strings.TrimPrefix(f.server.URL(), "https://"))
		if err != nil {
			t.Fatal(err)
		}
		lab.Nft(t, f.lab.Node, "add table inet fault\nadd chain inet fault out { type filter hook output priority 0; }\n"+
			"add rule inet fault out tcp dport "+port+" drop\nadd rule inet fault out tcp sport "+port+" drop\n", "-f", "-")
		return func() { lab.Nft(t, f.lab.Node, "", "delete", "table", "inet", "fault") }
	}, keeping, cannotWatch, true, nil},
	{"a certificate that expires", func(t *testing.T, f *withServer) func() {
		renew := func(until time.Time) {
			if err := f.server.RenewCertificate(until); err != nil {
				t.Fatal(err)
			}
		}
		renew(time.Now().Add(-time.Minute))
		f.server.DropConnections()
		return func() { renew(time.Now().Add(time.Hour)) }
	}, "certificate has expired or is not yet valid", cannotWatch, false, nil},
	{"a token that expires", func(t *testing.T, f *withServer) func() {
		token := f.server.RenewToken()
		f.endWatches(t)
		return func() {
			if err := os.WriteFile(f.kubeconfig+".token", []byte(token), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}, keeping + "failed to list *v1.EndpointSlice: ", cannotWatch, true, nil},
	{"a client's certificate that expires", func(t *testing.T, f *withServer) func() {
		time.Sleep(shortLife)
		f.endWatches(t)
		return func() { f.clientCertificate(t, time.Hour) }
	}, keeping + "failed to list *v1.EndpointSlice: ", cannotWatch, true, func(t *testing.T, f *withServer) {
		f.clientCertificate(t, shortLife)
		text, err := os.ReadFile(f.kubeconfig)
		if err != nil {
			t.Fatal(err)
		}
		files := fmt.Sprintf("client-certificate: %s.crt\n    client-key: %[1]s.key", f.kubeconfig)
		if err := os.WriteFile(f.kubeconfig, bytes.Replace(text, []byte("token: "+f.server.Token()), []byte(files), 1), 0o600); err != nil {
			t.Fatal(err)
		}
	}},
}

// shortLife is the validity of a certificate that is to expire.
const shortLife = 20 * time.Second

// clientCertificate writes a certificate, and its key, that is valid for a while.
func (f *withServer) clientCertificate(t *testing.T, life time.Duration) {
	t.Helper()
	cert, key, err := f.server.ClientCertificate(time.Now().Add(life))
	if err := errors.Join(err, os.WriteFile(f.kubeconfig+".crt", cert, 0o600), os.WriteFile(f.kubeconfig+".key", key, 0o600)); err != nil {
		t.Fatal(err)
	}
}

// endWatches ends the watches. What the server still sends to them does not count as the fault's.
func (f *withServer) endWatches(t *testing.T) {
	t.Helper()
	f.server.EndWatches()
	await.True(t, "the watches have ended", func() bool { return f.server.Watches(watchedResource) == 0 })
}

// tokenInAFile has the kubeconfig name a file with the token, as the kubelet gives it to a pod.
func (f *withServer) tokenInAFile(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile(f.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	token := f.server.Token()
	text = bytes.Replace(text, []byte("token: "+token), []byte("tokenFile: "+f.kubeconfig+".token"), 1)
	if err := errors.Join(os.WriteFile(f.kubeconfig, text, 0o600), os.WriteFile(f.kubeconfig+".token", []byte(token), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// However the API server fails, traffic goes on, health says what is wrong and stays good, and a change made meanwhile
// is there within a back-off of the fault's end. Nothing is left open.
func TestAPIServerFault(t *testing.T) {
	for _, fault := range apiFaults {
		t.Run(fault.name, func(t *testing.T) {
			if fault.long && !*everyCall {
				t.Skip("takes a minute or two, for timeouts of client-go; run it with -every-call")
			}
			fault.survive(t)
		})
	}
}

func (fault apiFault) survive(t *testing.T) {
	f := newWithServer(t)
	if fault.credentials != nil {
		fault.credentials(t, f)
	} else {
		f.tokenInAFile(t)
	}
	f.createFaultService(t)
	p := f.start(t, "--kubeconfig="+f.kubeconfig)
	end := f.dialThroughout(t, p)

	mend := fault.begin(t, f)
	f.moveFaultService(t, "10.244.1.6")
	// Connections whose packets vanish are given up after 45 s without an answer, new ones after 30 s.
	f.becomesWithin(t, 2*time.Minute, "200 200", fault.problem)
	p.Says(t, fault.says)
	f.reaches(t, "first")

	mend()
	// client-go reads files with credentials once a minute (certificates: see cmd/kube-proxy), and its longest back-off is
	// about as long.
	f.reachesWithin(t, 2*time.Minute, "second")
	f.recovers(t)
	end()
}

// outage is the time for which the API server is gone: longer than clients and load balancers wait for anything.
const outage = time.Minute

// servePod starts a pod that tells each client its name, and again for each line that the client sends.
func servePod(t *testing.T, l *lab.Lab, name, addr string) {
	t.Helper()
	pod, err := l.AddPod(name, netip.MustParseAddr(addr))
	if err != nil {
		t.Fatal(err)
	}
	lab.ServeTCP(t, pod, ":8080", func(conn net.Conn) {
		lines := bufio.NewScanner(conn)
		for fmt.Fprintln(conn, name); lines.Scan(); fmt.Fprintln(conn, name) {
		}
	})
}

// newOutageLab makes a lab with the pods first and second, and an API server. The Service has the first pod.
func newOutageLab(t *testing.T) (l *lab.Lab, server *apiservertest.Server, kubeconfig string) {
	t.Helper()
	l = lab.ForTest(t)
	server, kubeconfig = lab.APIServer(t, l.Node)
	servePod(t, l, "first", "10.244.1.5")
	servePod(t, l, "second", "10.244.1.6")
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: lab.NodeName}, Status: corev1.NodeStatus{
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: lab.NodeAddrs.IPv4.String()}},
	}}
	service, slice := outageObjects("10.244.1.5")
	lab.Create(t, server, node, service, slice)
	return l, server, kubeconfig
}

// dialService returns a connection to the Service and who serves it.
func dialService(h *lab.Host) (net.Conn, string, error) { return dialAt(h, "10.96.0.10:80") }

// dialAt returns a connection to what servePod started, by some address of the Service.
func dialAt(h *lab.Host, address string) (net.Conn, string, error) {
	var conn net.Conn
	if err := h.Do(func() (err error) {
		conn, err = net.DialTimeout("tcp", address, await.Patience)
		return err
	}); err != nil {
		return nil, "", err
	}
	name, err := readLine(conn)
	if err != nil {
		conn.Close()
		return nil, "", err
	}
	return conn, name, nil
}

func readLine(conn net.Conn) (string, error) {
	if err := conn.SetReadDeadline(time.Now().Add(await.Patience)); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	return strings.TrimSpace(line), err
}

// outageObjects is the Service that dialService dials.
func outageObjects(endpoints ...string) (*corev1.Service, *discoveryv1.EndpointSlice) {
	return serviceAt("web", "10.96.0.10", endpoints...)
}

// serviceAt is a Service of what servePod started, with its ClusterIP.
func serviceAt(name, address string, endpoints ...string) (*corev1.Service, *discoveryv1.EndpointSlice) {
	meta := metav1.ObjectMeta{Namespace: "shop", Name: name}
	service := &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeClusterIP, ClusterIP: address, ClusterIPs: []string{address},
		Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
	}}
	meta.Labels = map[string]string{discoveryv1.LabelServiceName: name}
	port, portName, protocol := int32(8080), "", corev1.ProtocolTCP
	slice := &discoveryv1.EndpointSlice{ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &portName, Port: &port, Protocol: &protocol}}}
	for _, addr := range endpoints {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{addr}})
	}
	return service, slice
}

// keepDialing makes one connection to the Service after the other until stopped, and fails the test when one fails.
func keepDialing(t *testing.T, h *lab.Host) (stop func()) {
	return keepDialingAt(t, h, "10.96.0.10:80")
}

// keepConnecting keeps one connection to the Service open, and makes others as keepDialing does.
func keepConnecting(t *testing.T, h *lab.Host) (lasting net.Conn, stop func()) {
	t.Helper()
	lasting, _, err := dialService(h)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lasting.Close() })
	return lasting, keepDialing(t, h)
}

func keepDialingAt(t *testing.T, h *lab.Host, address string) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	dialed := 0
	group.Go(func() {
		for ctx.Err() == nil {
			conn, _, err := dialAt(h, address)
			if err != nil {
				t.Errorf("connection %d to %s: %v", dialed, address, err)
				return
			}
			conn.Close()
			dialed++
			time.Sleep(5 * time.Millisecond)
		}
	})
	stop = sync.OnceFunc(func() {
		cancel()
		group.Wait()
		t.Logf("%d connections were made one after the other", dialed)
	})
	t.Cleanup(stop)
	return stop
}

func TestOutage(t *testing.T) {
	t.Run("traffic flows while the API server is gone", testTrafficFlowsWhileTheAPIServerIsGone)
}

func testTrafficFlowsWhileTheAPIServerIsGone(t *testing.T) {
	t.Parallel()
	l, server, kubeconfig := newOutageLab(t)
	p := lab.Start(t, l.Node, "kube-proxy", "--kubeconfig", kubeconfig, "--hostname-override", lab.NodeName)
	var lasting net.Conn
	await.Until(t, "the Service answers", func() (err error) {
		lasting, _, err = dialService(l.Client)
		return err
	})
	defer lasting.Close()

	stop := keepDialing(t, l.Client)
	server.Stop()
	_, slice := outageObjects("10.244.1.6")
	lab.Update(t, server, slice)
	server.Compact()
	time.Sleep(outage)
	stop()
	if _, name, err := dialService(l.Client); err != nil || name != "first" {
		t.Errorf("without an API server a client reached %q, %v; want first", name, err)
	}
	stop = keepDialing(t, l.Client)
	if err := l.Node.Do(server.Resume); err != nil {
		t.Fatal(err)
	}
	// By now client-go waits for 30 to 60 seconds before it tries again.
	await.Within(t, 3*await.Patience, "a change made during the outage arrives", func() error {
		conn, name, err := dialService(l.Client)
		if err != nil {
			return err
		}
		conn.Close()
		if name != "second" {
			return fmt.Errorf("%s answered", name)
		}
		return nil
	})
	stop()
	if _, err := fmt.Fprintln(lasting); err != nil {
		t.Error(err)
	}
	if name, err := readLine(lasting); err != nil || name != "first" {
		t.Errorf("a connection from before the outage reads %q, %v; want first", name, err)
	}
	if err := p.Stop(t); err != nil {
		t.Errorf("the process ended with %v; want it to have lived through the outage", err)
	}
}

// resources are those that the proxy watches.
var resources = []string{"services", "endpointslices", "nodes", "servicecidrs"}

// linesWith returns how many lines of the log hold all the texts.
func linesWith(p *lab.Process, texts ...string) (n int) {
	for line := range strings.Lines(p.Output()) {
		all := true
		for _, text := range texts {
			all = all && strings.Contains(line, text)
		}
		if all {
			n++
		}
	}
	return n
}

// expectLines checks how often each resource is named together with a text.
func expectLines(t *testing.T, p *lab.Process, text string, want int) {
	t.Helper()
	for _, resource := range resources {
		if got := linesWith(p, text, fmt.Sprintf("resource=%q", resource)); got != want {
			t.Errorf("%d lines %q about %s, want %d", got, text, resource, want)
		}
	}
}

// goodLog checks that a log has no errors or warnings, and says in the end that all is well.
func goodLog(t *testing.T, p *lab.Process) {
	t.Helper()
	for line := range strings.Lines(p.Output()) {
		if strings.HasPrefix(line, "E") || strings.HasPrefix(line, "W") {
			t.Errorf("the log of a good start has the line %s", line)
		}
	}
	if linesWith(p, "Node is known") != 1 || linesWith(p, firstSyncLine) != 1 {
		t.Error("the log does not say once that the Node is known, and once that Services are programmed")
	}
}

// What an operator reads: a start, an outage that is long enough for many tries, and the recovery.
func TestLogOfAnOutage(t *testing.T) {
	const outage = 36 * time.Second
	t.Run("of a proxy that runs", func(t *testing.T) {
		f := newWithServer(t)
		p := f.start(t, "--kubeconfig="+f.kubeconfig)
		p.Says(t, firstSyncLine)
		f.becomes(t, "200 200")
		goodLog(t, p)

		f.server.Stop()
		time.Sleep(outage)
		expectLines(t, p, "Cannot watch; keeping the last known state and retrying", 1)
		if logged := p.Errors(); len(logged) != len(resources) {
			t.Errorf("%d error lines, want one for each of %d resources", len(logged), len(resources))
		}
		f.becomes(t, "200 200", `"problems":["cannot watch endpointslices","cannot watch nodes","cannot watch servicecidrs","cannot watch services"]`)
		f.metricIs(t, `kubeproxy_watch_failing{resource="services"}`, "1")

		f.resume(t)
		await.Within(t, 3*await.Patience, "everything is watched again", func() error {
			if got := linesWith(p, "Watching again", "outage=", "failures="); got != len(resources) {
				return fmt.Errorf("%d of %d resources", got, len(resources))
			}
			return nil
		})
		expectLines(t, p, "Watching again", 1)
		f.metricIs(t, `kubeproxy_watch_failing{resource="services"}`, "0")
		if got := linesWith(p, firstSyncLine); got != 1 {
			t.Errorf("the log says %d times that Services are programmed for the first time", got)
		}
	})
	t.Run("that begins before the proxy", func(t *testing.T) {
		f := newWithServer(t)
		f.server.Stop()
		p := f.start(t, "--kubeconfig="+f.kubeconfig)
		time.Sleep(outage)
		if logged := p.Errors(); len(logged) != len(resources)+1 || linesWith(p, "Cannot post an event") != 1 {
			t.Errorf("error lines %q, want one for each resource and one for an event", logged)
		}
		for _, line := range []string{firstSyncLine, "Node is known", "Watching again"} {
			if linesWith(p, line) > 0 {
				t.Errorf("the log says %q", line)
			}
		}
		f.resume(t)
		await.Within(t, 3*await.Patience, "Services are programmed", func() error {
			if linesWith(p, firstSyncLine) == 0 {
				return fmt.Errorf("not yet")
			}
			return nil
		})
		f.applied(t)
	})
}
