package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/config"
	"github.com/nftproxy/nftproxy/internal/config/v1alpha2"
	"github.com/nftproxy/nftproxy/internal/testkit/corpus"
	"k8s.io/klog/v2"
)

// parsed returns what a command line comes to.
func parsed(t *testing.T, args ...string) (*options, error) {
	t.Helper()
	o := defaultOptions()
	cmd := newCommandFor(o)
	if err := cmd.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	return o, o.complete(cmd.Flags())
}

func mustParse(t *testing.T, args ...string) *options {
	t.Helper()
	o, err := parsed(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// configFile writes a document of a version to a file.
func configFile(t *testing.T, version, body string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	document := "apiVersion: kubeproxy.config.k8s.io/" + version + "\nkind: KubeProxyConfiguration\n" + body
	if err := os.WriteFile(path, []byte(document), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFlags(t *testing.T) {
	t.Run("set fields", testFlagsSetFields)
	t.Run("without effect are warned about", testFlagsWithoutEffectAreWarnedAbout)
	t.Run("errors name them", testErrorsNameTheFlag)
	t.Run("beside a file", testFlagsBesideAFile)
	t.Run("ignored ones beside a file", testIgnoredFlagsBesideAFile)
	t.Run("of kube-proxy are there", testFlagsOfKubeProxyAreThere)
}

func testFlagsSetFields(t *testing.T) {
	for _, tt := range []struct {
		args string
		get  func(c *v1alpha2.KubeProxyConfiguration) any
		want any
	}{
		{"--bind-address=192.0.2.1", func(c *v1alpha2.KubeProxyConfiguration) any { return c.NodeIPOverride }, []string{"192.0.2.1"}},
		{"--bind-address-hard-fail", func(c *v1alpha2.KubeProxyConfiguration) any { return *c.BindAddressHardFail }, true},
		{"", func(c *v1alpha2.KubeProxyConfiguration) any { return *c.BindAddressHardFail }, false},
		{"--cluster-cidr=10.0.0.0/8,fd00::/8", func(c *v1alpha2.KubeProxyConfiguration) any { return c.DetectLocal.ClusterCIDRs }, []string{"10.0.0.0/8", "fd00::/8"}},
		{"--conntrack-max-per-core=0", func(c *v1alpha2.KubeProxyConfiguration) any { return *c.Linux.Conntrack.MaxPerCore }, int32(0)},
		{"--conntrack-tcp-timeout-established=0", func(c *v1alpha2.KubeProxyConfiguration) any { return c.Linux.Conntrack.TCPEstablishedTimeout.Duration }, time.Duration(0)},
		{"--conntrack-udp-timeout-stream=3m", func(c *v1alpha2.KubeProxyConfiguration) any { return c.Linux.Conntrack.UDPStreamTimeout.Duration }, 3 * time.Minute},
		{"--feature-gates=AllAlpha=true,ContextualLogging=false", func(c *v1alpha2.KubeProxyConfiguration) any { return c.FeatureGates }, map[string]bool{"AllAlpha": true, "ContextualLogging": false}},
		{"", func(c *v1alpha2.KubeProxyConfiguration) any { return c.HealthzBindAddress }, "0.0.0.0:10256"},
		{"--healthz-bind-address=::1", func(c *v1alpha2.KubeProxyConfiguration) any { return c.HealthzBindAddress }, "[::1]:10256"},
		{"--healthz-bind-address=", func(c *v1alpha2.KubeProxyConfiguration) any { return c.HealthzBindAddress }, ""},
		{"--healthz-port=0", func(c *v1alpha2.KubeProxyConfiguration) any { return c.HealthzBindAddress }, ""},
		{"--healthz-port=20256", func(c *v1alpha2.KubeProxyConfiguration) any { return c.HealthzBindAddress }, "0.0.0.0:20256"},
		{"--metrics-bind-address=127.0.0.1:1", func(c *v1alpha2.KubeProxyConfiguration) any { return c.MetricsBindAddress }, "127.0.0.1:1"},
		{"--metrics-bind-address=", func(c *v1alpha2.KubeProxyConfiguration) any { return c.MetricsBindAddress }, ""},
		{"--hostname-override=node-1", func(c *v1alpha2.KubeProxyConfiguration) any { return c.HostnameOverride }, "node-1"},
		{"--iptables-masquerade-bit=3", func(c *v1alpha2.KubeProxyConfiguration) any { return *c.NFTables.MasqueradeBit }, int32(3)},
		{"--iptables-masquerade-bit=3 --proxy-mode=nftables", func(c *v1alpha2.KubeProxyConfiguration) any { return *c.NFTables.MasqueradeBit }, int32(14)},
		{"--iptables-sync-period=1m --iptables-min-sync-period=5s", func(c *v1alpha2.KubeProxyConfiguration) any {
			return [2]time.Duration{c.SyncPeriod.Duration, c.MinSyncPeriod.Duration}
		}, [2]time.Duration{time.Minute, 5 * time.Second}},
		{"", func(c *v1alpha2.KubeProxyConfiguration) any { return c.MinSyncPeriod.Duration }, time.Duration(0)},
		{"--kube-api-qps=50 --kube-api-burst=100", func(c *v1alpha2.KubeProxyConfiguration) any {
			return []any{c.ClientConnection.QPS, c.ClientConnection.Burst}
		}, []any{float32(50), int32(100)}},
		{"--kubeconfig=/k", func(c *v1alpha2.KubeProxyConfiguration) any { return c.ClientConnection.Kubeconfig }, "/k"},
		{"", func(c *v1alpha2.KubeProxyConfiguration) any { return c.Linux.LeftoversDrainTimeout.Duration }, time.Hour},
		{"--leftovers-drain-timeout=0s", func(c *v1alpha2.KubeProxyConfiguration) any { return c.Linux.LeftoversDrainTimeout.Duration }, time.Duration(0)},
		{"--ipvs-exclude-cidrs=192.0.2.0/24", func(c *v1alpha2.KubeProxyConfiguration) any { return c.IPVS.ExcludeCIDRs }, []string{"192.0.2.0/24"}},
		{"--masquerade-all", func(c *v1alpha2.KubeProxyConfiguration) any { return c.Linux.MasqueradeAll }, true},
		{"--nodeport-addresses=primary,10.0.0.0/8", func(c *v1alpha2.KubeProxyConfiguration) any { return c.NodePortAddresses }, []string{"primary", "10.0.0.0/8"}},
		{"--nodeport-addresses=", func(c *v1alpha2.KubeProxyConfiguration) any { return c.NodePortAddresses }, []string{"primary"}},
		{"--oom-score-adj=-1000", func(c *v1alpha2.KubeProxyConfiguration) any { return *c.Linux.OOMScoreAdj }, int32(-1000)},
		{"--proxy-mode=", func(c *v1alpha2.KubeProxyConfiguration) any { return c.Mode }, v1alpha2.ModeNFTables},
		{"--v=4 --logging-format=json", func(c *v1alpha2.KubeProxyConfiguration) any { return c.Logging.Format }, "json"},
	} {
		o := mustParse(t, strings.Fields(tt.args)...)
		if diff := cmp.Diff(tt.want, tt.get(o.config)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", tt.args, diff)
		}
	}
}

func testFlagsWithoutEffectAreWarnedAbout(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"", ""},
		{"--ipvs-scheduler=rr", "--ipvs-scheduler: ignored, because it is about the mode ipvs"},
		{"--ipvs-sync-period=1m", "--ipvs-sync-period: ignored, because"},
		{"--iptables-localhost-nodeports=false", `add "localhost" to --nodeport-addresses instead`},
		{"--config-sync-period=1m", "--config-sync-period: ignored, because"},
		{"--proxy-mode=nftables --iptables-masquerade-bit=3", "--iptables-masquerade-bit: ignored, because --proxy-mode is given"},
		{"--boot-id-file=/b", "--boot-id-file: ignored, because no kube-proxy ever read the file"},
		{"--machine-id-file=/m", "--machine-id-file: ignored, because no kube-proxy ever read the file"},
		{"--feature-gates=SidecarContainers=true", "--feature-gates: SidecarContainers has no effect"},
		{"--feature-gates=KubeProxyIPVS=true", "--feature-gates: KubeProxyIPVS has no effect in this proxy: there is no mode ipvs"},
		{"--feature-gates=AllowServiceExternalIPs=false,WatchListClient=false", ""},
		{"--nodeport-addresses=10.0.0.0/8", "--nodeport-addresses: has no IPv6 address"},
	} {
		o := mustParse(t, append(strings.Fields(tt.args), "--cluster-cidr=10.0.0.0/8")...)
		if got := strings.Join(o.warnings, "; "); !strings.Contains(got, tt.want) || tt.want == "" && got != "" || len(o.warnings) > 1 {
			t.Errorf("%q: warnings %q, want %q", tt.args, o.warnings, tt.want)
		}
	}
}

func testErrorsNameTheFlag(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"--cluster-cidr=banana", `--cluster-cidr: Invalid value: "banana": must be a CIDR`},
		{"--detect-local-mode=Guess", `--detect-local-mode: Unsupported value: "Guess"`},
		{"--detect-local-mode=BridgeInterface", "--pod-bridge-interface: Required value"},
		{"--nodeport-addresses=eth0", `--nodeport-addresses: Invalid value: "eth0"`},
		{"--metrics-bind-address=here", `--metrics-bind-address: Invalid value: "here": must be an IP address and a port`},
		{"--bind-address=here", `--bind-address: Invalid value: "here"`},
		{"--iptables-masquerade-bit=32", "--iptables-masquerade-bit: Invalid value: 32"},
		{"--conntrack-min=-1", "--conntrack-min: Invalid value: -1"},
		{"--oom-score-adj=2000", "--oom-score-adj: Invalid value: 2000"},
		{"--iptables-min-sync-period=1m", "--iptables-min-sync-period: Invalid value"},
		{"--feature-gates=Turbo=true", `--feature-gates: Invalid value: "Turbo"`},
		{"--proxy-mode=foo", `--proxy-mode: Unsupported value: "foo": supported values: "nftables"`},
		{"--write-config-version=v1", `--write-config-version: "v1" must be v1alpha1 or v1alpha2`},
		{"--logging-format=xml", `--logging-format: Invalid value: "xml"`},
		{"--leftovers-drain-timeout=-1s", "--leftovers-drain-timeout: -1s must not be negative"},
		{"--ipvs-exclude-cidrs=vips", "--ipvs-exclude-cidrs: Invalid value"},
		{"--manifests=/m --kubeconfig=/k", "--manifests: cannot be combined with --kubeconfig"},
		{"--config=/none", "/none"},
	} {
		if _, err := parsed(t, strings.Fields(tt.args)...); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: error %v, want %q", tt.args, err, tt.want)
		}
	}
}

func testFlagsBesideAFile(t *testing.T) {
	path := configFile(t, "v1alpha1", "mode: nftables\nhostnameOverride: from-file\nclusterCIDR: 10.0.0.0/8\nlogging: {verbosity: 3, vmodule: [{filePattern: loop, verbosity: 9}]}\n")
	o := mustParse(t, "--config", path, "--cluster-cidr=11.0.0.0/8", "--masquerade-all", "--proxy-mode=iptables",
		"--hostname-override= Node-2 ", "--leftovers-drain-timeout=5m", "-v=5", "--vmodule=other=2", "--master=https://cp:6443")
	if got := o.config.DetectLocal.ClusterCIDRs; !cmp.Equal(got, []string{"10.0.0.0/8"}) || o.config.Linux.MasqueradeAll || o.config.Mode != v1alpha2.ModeNFTables {
		t.Errorf("the file's settings are not what counts: %+v", o.config)
	}
	if got := o.config.Linux.LeftoversDrainTimeout.Duration; got != 5*time.Minute {
		t.Errorf("--leftovers-drain-timeout is not what counts: %v", got)
	}
	want := []string{"--cluster-cidr, --masquerade-all, --proxy-mode: ignored, because --config is given; set what they mean in the file"}
	if diff := cmp.Diff(want, o.warnings); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
	if name, err := o.nodeName(); err != nil || name != "node-2" {
		t.Errorf("the node is %q, %v; --hostname-override counts beside a file", name, err)
	}
	if got := o.config.Logging; got.Verbosity != 5 || len(got.VModule) != 2 || got.VModule[0].FilePattern != "other" {
		t.Errorf("logging is %+v; logging flags count beside a file", got)
	}
}

func TestConfigFile(t *testing.T) {
	t.Run("its logging stays without flags", testLoggingOfAFileStaysWithoutFlags)
	t.Run("kubeadm's ConfigMap is enough", testKubeadmsConfigMapIsEnough)
	t.Run("node-local flags come before its section", testNodeLocalFlagsBesideAFile)
	t.Run("other modes are refused by their names", testOtherModesAreRefusedByTheirNames)
}

func testNodeLocalFlagsBesideAFile(t *testing.T) {
	const section = "nodeLocal: {source: 'unix:///run/a', caFile: /ca, authorizeNodeNames: false, limits: {ports: 7, bytes: 8}}\n"
	fromFile := v1alpha2.NodeLocalConfiguration{Source: "unix:///run/a", CAFile: "/ca", AuthorizeNodeNames: new(false), Limits: v1alpha2.NodeLocalLimits{Ports: 7, Bytes: 8}}
	for _, tt := range []struct {
		name, file string
		args       []string
		want       v1alpha2.NodeLocalConfiguration
	}{
		{"the file alone", section, nil, fromFile},
		{"flags come first", section, []string{"--node-local-source=unix:///run/b", "--node-local-max-ports=9", "--authorize-node-names"}, v1alpha2.NodeLocalConfiguration{
			Source: "unix:///run/b", CAFile: "/ca", AuthorizeNodeNames: new(true), Limits: v1alpha2.NodeLocalLimits{Ports: 9, Bytes: 8},
		}},
		{"flags alone", "", []string{"--serve-node-local=unix:///run/b"}, v1alpha2.NodeLocalConfiguration{Serve: "unix:///run/b"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := mustParse(t, append(tt.args, "--config="+configFile(t, "v1alpha2", tt.file))...)
			if diff := cmp.Diff(tt.want, o.nodeLocal.NodeLocalConfiguration); diff != "" {
				t.Errorf("what is used (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(&tt.want, o.config.NodeLocal); diff != "" {
				t.Errorf("what is written (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("a flag that does not go with the file is an error", func(t *testing.T) {
		_, err := parsed(t, "--config="+configFile(t, "v1alpha2", section), "--serve-node-local=unix:///run/b")
		if err == nil || !strings.Contains(err.Error(), "--node-local-source") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("a v1alpha1 file has no such section, and flags beside it count", func(t *testing.T) {
		o := mustParse(t, "--config="+configFile(t, "v1alpha1", "clusterCIDR: 10.0.0.0/8\n"), "--node-local-source=unix:///run/b")
		if o.nodeLocal.Source != "unix:///run/b" {
			t.Errorf("%+v", o.nodeLocal)
		}
	})
}

func testLoggingOfAFileStaysWithoutFlags(t *testing.T) {
	path := configFile(t, "v1alpha2", "featureGates: {LoggingAlphaOptions: true}\nlogging: {verbosity: 3, format: json, options: {json: {splitStream: true, infoBufferSize: 64Ki}}}\n")
	got := mustParse(t, "--config", path).config.Logging
	if got.Verbosity != 3 || got.Format != "json" || !got.Options.JSON.SplitStream || got.Options.JSON.InfoBufferSize.String() != "64Ki" {
		t.Errorf("logging is %+v", got)
	}
}

// The kubelet starts kubeadm's DaemonSet with these arguments.
func testKubeadmsConfigMapIsEnough(t *testing.T) {
	for _, name := range []string{"kubeadm-v1.37-as-generated", "kubeadm-without-a-mode"} {
		c := corpus.Get(t, name)
		o := mustParse(t, "--config="+c.WriteInput(t), "--hostname-override=node-1")
		got, err := o.compiler()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if len(got.DetectLocal.CIDRs) != 1 || got.DetectLocal.CIDRs[0].String() != "10.244.0.0/16" || !got.NodePortAddresses.Primary {
			t.Errorf("%s: %+v", name, got)
		}
		if o.config.ClientConnection.Kubeconfig != "/var/lib/kube-proxy/kubeconfig.conf" || o.config.HostnameOverride != "node-1" {
			t.Errorf("%s: %+v", name, o.config)
		}
	}
}

func testOtherModesAreRefusedByTheirNames(t *testing.T) {
	o := mustParse(t, "--proxy-mode=iptables")
	if _, err := o.compiler(); err == nil || !strings.HasPrefix(err.Error(), `--proxy-mode: this kube-proxy does not have the mode "iptables"; set it to "nftables"`) {
		t.Errorf("with a flag: %v", err)
	}
	path := configFile(t, "v1alpha2", "mode: ipvs\n")
	o = mustParse(t, "--config", path)
	if _, err := o.compiler(); err == nil || !strings.HasPrefix(err.Error(), "configuration "+path+`: mode: this kube-proxy does not have the mode "ipvs"; set it to "nftables"`) {
		t.Errorf("in a file: %v", err)
	}
}

func TestWriteConfigTo(t *testing.T) {
	write := func(t *testing.T, args ...string) (written string, log string) {
		t.Helper()
		var lines strings.Builder
		logger := funcr.New(func(_, args string) { lines.WriteString(args + "\n") }, funcr.Options{})
		path := filepath.Join(t.TempDir(), "out.yaml")
		o := mustParse(t, append(args, "--write-config-to", path)...)
		if err := o.do(klog.NewContext(t.Context(), logger)); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(data), lines.String()
	}
	t.Run("v1alpha1 is a way back", func(t *testing.T) {
		newer := configFile(t, "v1alpha2", "nodeIPOverride: [192.0.2.1, \"fd00::1\"]\ndetectLocal: {clusterCIDRs: [10.244.0.0/16]}\nlinux: {conntrack: {min: 7}}\n")
		text, log := write(t, "--config", newer, "--write-config-version=v1alpha1")
		for _, want := range []string{"apiVersion: kubeproxy.config.k8s.io/v1alpha1\n", "bindAddress: 192.0.2.1\n", "clusterCIDR: 10.244.0.0/16\n", "mode: nftables\n", "  min: 7\n"} {
			if !strings.Contains(text, want) {
				t.Errorf("%q is not in:\n%s", want, text)
			}
		}
		for _, want := range []string{"not in v1alpha1: nodeIPOverride[1]: ", "not in v1alpha1: configHardFail: "} {
			if !strings.Contains(log, want) {
				t.Errorf("the log does not say %q:\n%s", want, log)
			}
		}
	})
	t.Run("a mode that is refused is written, and said", func(t *testing.T) {
		for _, mode := range []string{"iptables", "ipvs", "kernelspace"} {
			for _, args := range [][]string{{"--proxy-mode=" + mode}, {"--config", configFile(t, "v1alpha1", "mode: "+mode+"\n")}} {
				text, log := write(t, args...)
				if !strings.Contains(text, "mode: "+mode+"\n") || !strings.Contains(log, "this kube-proxy does not have the mode") {
					t.Errorf("%v: the log says\n%s\nwritten is\n%s", args, log, text)
				}
			}
		}
		if _, log := write(t, "--proxy-mode=nftables", "--cluster-cidr=10.0.0.0/8"); strings.Contains(log, "warning") {
			t.Errorf("warnings about nothing:\n%s", log)
		}
	})
	t.Run("writes the latest version", testWriteConfigToWritesTheLatestVersion)
}

func testIgnoredFlagsBesideAFile(t *testing.T) {
	o := mustParse(t, "--config", configFile(t, "v1alpha1", "clusterCIDR: 10.0.0.0/8\n"), "--boot-id-file=/b")
	if diff := cmp.Diff([]string{"--boot-id-file: ignored, because " + flagInfo{name: "boot-id-file"}.ignored()}, o.warnings); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}

func testWriteConfigToWritesTheLatestVersion(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
	}{
		{"from a file", []string{"--config", configFile(t, "v1alpha1", "mode: ipvs\nipvs: {scheduler: rr}\nconntrack: {min: 7}\n")}},
		{"from flags", []string{"--proxy-mode=ipvs", "--ipvs-scheduler=rr", "--conntrack-min=7"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "out.yaml")
			o := mustParse(t, append(tt.args, "--write-config-to", path)...)
			if err := o.do(t.Context()); err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(string(data), "apiVersion: kubeproxy.config.k8s.io/v1alpha2\n") {
				t.Errorf("wrote:\n%s", data)
			}
			f, err := config.Load(path)
			if err != nil {
				t.Fatal(err)
			}
			if c := f.Config; c.Mode != v1alpha2.ModeIPVS || c.IPVS.Scheduler != "rr" || *c.Linux.Conntrack.Min != 7 || *c.Linux.Conntrack.MaxPerCore != 32768 {
				t.Errorf("wrote:\n%s", data)
			}
		})
	}
}
