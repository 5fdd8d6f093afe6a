package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nftproxy/nftproxy/internal/testkit/netns"
)

// These are set in processes that stand in for kube-proxy in iptables mode: the program that loads their rules, and a
// directory from which each takes one file at its start.
const (
	standInRestore = "COMPARE_STAND_IN_RESTORE"
	standInTokens  = "COMPARE_STAND_IN_TOKENS"
)

func TestMain(m *testing.M) {
	if restore := os.Getenv(standInRestore); restore != "" {
		fmt.Fprintln(os.Stderr, "the stand-in ends:", standIn(restore))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// A proxy in iptables mode has no table that is its own.
func TestModeIPTables(t *testing.T) {
	netns.Need(t)
	t.Run("of iptables-nft is measured, but for its table", func(t *testing.T) {
		r, err := measureStandIn(t, "iptables-nft-restore", 2)
		if err != nil {
			t.Fatal(err)
		}
		if !r.table.none || !r.flush.over {
			t.Errorf("rows of `nft delete table` and `nft flush ruleset`: %+v, %+v; want none, and no repair before a change", r.table, r.flush)
		}
		for name, row := range map[string]span{"start": r.cold, "one more Service": r.change, "restart": r.restart} {
			if row.took <= 0 || row.over || row.none {
				t.Errorf("row %q: %+v", name, row)
			}
		}
	})
	t.Run("of iptables-legacy is refused", func(t *testing.T) {
		_, err := measureStandIn(t, "iptables-legacy-restore", 1)
		if err == nil || !strings.Contains(err.Error(), "chains of iptables-legacy") {
			t.Errorf("measured, or refused with %v; `nft flush ruleset` does not remove its rules", err)
		}
	})
	t.Run("that does not start again is an error", func(t *testing.T) {
		_, err := measureStandIn(t, "iptables-nft-restore", 1)
		if err == nil || !strings.Contains(err.Error(), "the proxy has ended") {
			t.Errorf("got %v", err)
		}
	})
}

// A proxy that programs nothing within the limit has no other figures, and the next one is measured.
func TestLimit(t *testing.T) {
	netns.Need(t)
	c, err := newCluster(size{services: 2, endpoints: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	idle := filepath.Join(t.TempDir(), "idle")
	if err := writeProgram(idle, "#!/bin/sh\nexec sleep 1000\n"); err != nil {
		t.Fatal(err)
	}
	o := options{changes: 1, limit: 300 * time.Millisecond}
	r, err := c.measure(t.Context(), contender{name: "idle", path: idle}, o)
	if err != nil {
		t.Fatal(err)
	}
	if want := (span{took: o.limit, over: true}); r.cold != want {
		t.Errorf("start: %+v, want %+v", r.cold, want)
	}
	for name, row := range map[string]span{"one more Service": r.change, "restart": r.restart, "flush": r.flush} {
		if !row.none {
			t.Errorf("row %q: %+v, want none", name, row)
		}
	}
}

// writeProgram writes a script. A process that starts meanwhile would have the file open for writing, and then nobody
// could execute it.
func writeProgram(path, text string) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, []byte(text), 0o755)
}

// measureStandIn measures a stand-in that can be started so many times.
func measureStandIn(t *testing.T, restore string, starts int) (result, error) {
	t.Helper()
	if _, err := exec.LookPath(restore); err != nil {
		t.Fatal(err)
	}
	c, err := newCluster(size{services: 3, endpoints: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(standInRestore, restore)
	tokens := t.TempDir()
	for i := range starts {
		if err := os.WriteFile(filepath.Join(tokens, strconv.Itoa(i)), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv(standInTokens, tokens)
	o := options{changes: 1, patience: 2 * time.Second, limit: time.Minute}
	return c.measure(t.Context(), contender{name: "kube-proxy", path: program, args: []string{"--proxy-mode=iptables"}}, o)
}

// standIn does as little of kube-proxy's iptables mode as compare looks at: rules of all Services, loaded anew with each
// change, and a metric.
func standIn(restore string) error {
	tokens, err := os.ReadDir(os.Getenv(standInTokens))
	if err != nil {
		return err
	}
	if len(tokens) == 0 {
		return errors.New("it has been started too often")
	}
	if err := os.Remove(filepath.Join(os.Getenv(standInTokens), tokens[0].Name())); err != nil {
		return err
	}
	var kubeconfig string
	for _, arg := range os.Args {
		if path, ok := strings.CutPrefix(arg, "--kubeconfig="); ok {
			kubeconfig = path
		}
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	go func() {
		_ = http.ListenAndServe("127.0.0.1:10249", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "kubeproxy_sync_proxy_rules_duration_seconds_sum 0\n")
		}))
	}()
	factory := informers.NewSharedInformerFactory(client, 0)
	services, slices := factory.Core().V1().Services(), factory.Discovery().V1().EndpointSlices()
	changed := make(chan struct{}, 1)
	for _, informer := range []cache.SharedIndexInformer{services.Informer(), slices.Informer()} {
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(any) {
			select {
			case changed <- struct{}{}:
			default:
			}
		}}); err != nil {
			return err
		}
	}
	factory.Start(nil)
	for range changed {
		if err := load(restore, services.Lister(), slices.Lister()); err != nil {
			return err
		}
	}
	return nil
}

// load replaces the table nat by rules for the first endpoint of each slice.
func load(restore string, services corelisters.ServiceLister, slices discoverylisters.EndpointSliceLister) error {
	all, err := slices.List(labels.Everything())
	if err != nil {
		return err
	}
	var rules strings.Builder
	rules.WriteString("*nat\n:KUBE-SERVICES -\n-A PREROUTING -j KUBE-SERVICES\n")
	for _, s := range all {
		service, err := services.Services(s.Namespace).Get(s.Labels[discoveryv1.LabelServiceName])
		if err != nil {
			continue // its event comes later
		}
		fmt.Fprintf(&rules, "-A KUBE-SERVICES -d %s -p tcp --dport %d -j DNAT --to-destination %s:%d\n",
			service.Spec.ClusterIP, service.Spec.Ports[0].Port, s.Endpoints[0].Addresses[0], *s.Ports[0].Port)
	}
	rules.WriteString("COMMIT\n")
	cmd := exec.Command(restore, "--wait")
	cmd.Stdin = strings.NewReader(rules.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", restore, err, out)
	}
	return nil
}
