package sysctl

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	kubeproxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
)

const netfilter = "proc/sys/net/netfilter/"

// node is a machine with two cores as it starts up.
func node() map[string]string {
	return map[string]string{
		"sys/devices/system/cpu/online":                    "0,2\n",
		hashSizeFile:                                       "65536\n",
		netfilter + "nf_conntrack_max":                     "262144\n",
		netfilter + "nf_conntrack_tcp_timeout_established": "432000\n",
		netfilter + "nf_conntrack_tcp_timeout_close_wait":  "60\n",
		netfilter + "nf_conntrack_udp_timeout":             "30\n",
		netfilter + "nf_conntrack_udp_timeout_stream":      "120\n",
		netfilter + "nf_conntrack_tcp_be_liberal":          "0\n",
		"proc/sys/net/ipv4/conf/all/route_localnet":        "0\n",
		"proc/sys/net/bridge/bridge-nf-call-iptables":      "0\n",
		"proc/sys/net/ipv4/ip_forward":                     "0\n",
		"proc/sys/net/ipv4/vs/conntrack":                   "0\n",
	}
}

// plant writes the files below a directory of their own.
func plant(t *testing.T, files map[string]string) Tree {
	t.Helper()
	tree := Tree{Root: t.TempDir()}
	for name, content := range files {
		path := tree.path(name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return tree
}

func harvest(t *testing.T, tree Tree, files map[string]string) map[string]string {
	t.Helper()
	found := map[string]string{}
	for name := range files {
		text, err := os.ReadFile(tree.path(name))
		if err != nil {
			t.Fatal(err)
		}
		found[name] = string(text)
	}
	return found
}

// logged returns a context whose logger writes to lines.
func logged(ctx context.Context, lines *[]string) context.Context {
	return klog.NewContext(ctx, funcr.New(func(_, args string) { *lines = append(*lines, args) }, funcr.Options{}))
}

type conntrack = kubeproxyv1alpha1.KubeProxyConntrackConfiguration

func perCore(perCore, atLeast int32) conntrack {
	return conntrack{MaxPerCore: &perCore, Min: &atLeast}
}

func seconds(n int) metav1.Duration { return metav1.Duration{Duration: time.Duration(n) * time.Second} }

func TestSetConntrack(t *testing.T) {
	established, closeWait, none := seconds(86400), seconds(3600), seconds(0)
	for _, test := range []struct {
		name   string
		config conntrack
		before map[string]string // instead of what node has
		want   map[string]string // what differs afterwards
	}{
		{name: "an empty configuration leaves everything alone"},
		{
			name:   "zeros leave everything alone",
			config: conntrack{MaxPerCore: new(int32), Min: new(int32), TCPEstablishedTimeout: &none, TCPCloseWaitTimeout: &none},
		},
		{
			name:   "the node's cores count, and the hash table follows",
			config: perCore(200_000, 131_072),
			want:   map[string]string{netfilter + "nf_conntrack_max": "400000", hashSizeFile: "100000"},
		},
		{
			name:   "min counts when the cores come to less",
			config: perCore(1, 300_000),
			want:   map[string]string{netfilter + "nf_conntrack_max": "300000", hashSizeFile: "75000"},
		},
		{name: "min does not count without maxPerCore", config: perCore(0, 300_000)},
		{
			name:   "many cores come to a million at most",
			config: perCore(32_768, 0),
			before: map[string]string{"sys/devices/system/cpu/online": "0-255\n"},
			want:   map[string]string{netfilter + "nf_conntrack_max": "1048576", hashSizeFile: "262144"},
		},
		{
			name:   "min may be more than a million",
			config: perCore(600_000, 2_000_000),
			want:   map[string]string{netfilter + "nf_conntrack_max": "2000000", hashSizeFile: "500000"},
		},
		{name: "a larger table is not made smaller", config: perCore(32_768, 131_072)},
		{
			name:   "the hash table grows although the table is large enough",
			config: perCore(32_768, 131_072),
			before: map[string]string{hashSizeFile: "16384\n"},
			want:   map[string]string{hashSizeFile: "32768"},
		},
		{
			name: "timeouts go up and down",
			config: conntrack{
				TCPEstablishedTimeout: &established, TCPCloseWaitTimeout: &closeWait,
				UDPTimeout: seconds(10), UDPStreamTimeout: seconds(300),
			},
			want: map[string]string{
				netfilter + "nf_conntrack_tcp_timeout_established": "86400", netfilter + "nf_conntrack_tcp_timeout_close_wait": "3600",
				netfilter + "nf_conntrack_udp_timeout": "10", netfilter + "nf_conntrack_udp_timeout_stream": "300",
			},
		},
		{
			name:   "a timeout of less than a second is one, not none",
			config: conntrack{UDPTimeout: metav1.Duration{Duration: time.Millisecond}},
			want:   map[string]string{netfilter + "nf_conntrack_udp_timeout": "1"},
		},
		{
			name:   "TCP tracking becomes liberal",
			config: conntrack{TCPBeLiberal: true},
			want:   map[string]string{netfilter + "nf_conntrack_tcp_be_liberal": "1"},
		},
		{
			name:   "TCP tracking that is liberal stays so",
			before: map[string]string{netfilter + "nf_conntrack_tcp_be_liberal": "1\n"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			files := node()
			maps.Copy(files, test.before)
			tree := plant(t, files)
			if missing, err := tree.SetConntrack(t.Context(), &test.config); err != nil || len(missing) > 0 {
				t.Fatal(missing, err)
			}
			want := maps.Clone(files)
			maps.Copy(want, test.want)
			if diff := cmp.Diff(want, harvest(t, tree, files)); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("sets missing sysctls once they exist", testMissingSysctlsAreSetOnceTheyExist)
	t.Run("logs a hash table that cannot grow", testHashTableThatCannotGrowIsLogged)
	t.Run("a real kernel takes what is set", testRealKernelTakesWhatIsSet)
	t.Run("a limit that belongs to the host", testLimitThatBelongsToTheHost)
	t.Run("a read-only procfs", testReadOnlyProcSys)
}

func TestConntrackChanges(t *testing.T) {
	files := node()
	delete(files, netfilter+"nf_conntrack_udp_timeout")
	tree := plant(t, files)
	config := perCore(200_000, 0)
	config.UDPTimeout, config.UDPStreamTimeout = seconds(10), seconds(300)
	want := []string{"net.netfilter.nf_conntrack_max from 262144 to 400000", "net.netfilter.nf_conntrack_udp_timeout_stream from 120 to 300"}
	if diff := cmp.Diff(want, tree.ConntrackChanges(&config)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(files, harvest(t, tree, files)); diff != "" {
		t.Errorf("it changed files:\n%s", diff)
	}
	few := perCore(32_768, 131_072)
	if changes := tree.ConntrackChanges(&few); changes != nil {
		t.Errorf("changes %q of a table that is large enough", changes)
	}
}

func testMissingSysctlsAreSetOnceTheyExist(t *testing.T) {
	config := perCore(200_000, 0)
	config.TCPBeLiberal = true
	config.UDPTimeout = seconds(10)
	files := node()
	delete(files, netfilter+"nf_conntrack_max")
	delete(files, netfilter+"nf_conntrack_tcp_be_liberal")
	tree := plant(t, files)
	missing, err := tree.SetConntrack(t.Context(), &config)
	if want := []string{"net.netfilter.nf_conntrack_max", "net.netfilter.nf_conntrack_tcp_be_liberal"}; err != nil || !cmp.Equal(missing, want) {
		t.Errorf("missing are %q, error %v, want %q", missing, err, want)
	}
	files[netfilter+"nf_conntrack_udp_timeout"] = "10"
	if diff := cmp.Diff(files, harvest(t, tree, files)); diff != "" {
		t.Errorf("what could be set (-want +got):\n%s", diff)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		tree.AwaitConntrack(t.Context(), &config)
	}()
	for _, file := range []string{"nf_conntrack_max", "nf_conntrack_tcp_be_liberal"} {
		select {
		case <-done:
			t.Fatalf("it does not wait for %s", file)
		default:
		}
		// Whole at once, as the kernel's files are.
		whole := filepath.Join(t.TempDir(), file)
		if err := os.WriteFile(whole, []byte("0\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(whole, tree.path(netfilter+file)); err != nil {
			t.Fatal(err)
		}
	}
	await.Receive(t, "the end of AwaitConntrack", done)
	files[netfilter+"nf_conntrack_max"], files[netfilter+"nf_conntrack_tcp_be_liberal"], files[hashSizeFile] = "400000", "1", "100000"
	if diff := cmp.Diff(files, harvest(t, tree, files)); diff != "" {
		t.Errorf("once they exist (-want +got):\n%s", diff)
	}
}

func testHashTableThatCannotGrowIsLogged(t *testing.T) {
	files := node()
	delete(files, hashSizeFile)
	tree := plant(t, files)
	config := perCore(200_000, 0)
	var lines []string
	if _, err := tree.SetConntrack(logged(t.Context(), &lines), &config); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(lines, "\n"); !strings.Contains(got, `"Cannot enlarge the hash table`) || !strings.Contains(got, `"wanted"=100000`) {
		t.Errorf("the log does not tell: %s", got)
	}
}

func TestCores(t *testing.T) {
	for text, want := range map[string]int{"0\n": 1, "0-7\n": 8, "0,2-3,8\n": 4} {
		tree := plant(t, map[string]string{"sys/devices/system/cpu/online": text})
		if got := tree.cores(); got != want {
			t.Errorf("%q: got %d cores, want %d", text, got, want)
		}
	}
	if got := (Tree{Root: t.TempDir()}).cores(); got < 1 {
		t.Errorf("got %d cores where the kernel does not say", got)
	}
}

func TestHasIPv6(t *testing.T) {
	const disable = "proc/sys/net/ipv6/conf/all/disable_ipv6"
	for _, test := range []struct {
		name  string
		files map[string]string
		want  bool
	}{
		{"enabled", map[string]string{"proc/net/if_inet6": "", disable: "0\n"}, true},
		{"disabled for all interfaces", map[string]string{"proc/net/if_inet6": "", disable: "1\n"}, false},
		{"not in the kernel", map[string]string{}, false},
	} {
		if got := plant(t, test.files).HasIPv6(); got != test.want {
			t.Errorf("%s: got %v, want %v", test.name, got, test.want)
		}
	}
}

func TestStrictReversePaths(t *testing.T) {
	for _, tt := range []struct {
		name, all, eth0, vxlan string
		want                   []string
	}{
		{"are those of the interface", "0", "1", "0", []string{"eth0"}},
		{"are those of all", "1", "0", "0", []string{"eth0", "vxlan"}},
		{"are loose where the larger value is", "1", "2", "1", []string{"vxlan"}},
		{"are loose for all", "2", "1", "0", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			files := map[string]string{}
			for name, value := range map[string]string{"all": tt.all, "default": "1", "lo": "1", "eth0": tt.eth0, "vxlan": tt.vxlan} {
				files["proc/sys/net/ipv4/conf/"+name+"/rp_filter"] = value + "\n"
			}
			tree := plant(t, files)
			if got := tree.StrictReversePaths(); !slices.Equal(got, tt.want) {
				t.Errorf("strict on %v, want %v", got, tt.want)
			}
		})
	}
}
