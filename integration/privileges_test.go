package integration

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/internal/testkit/process"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// leaveConntrack keeps the proxy from sysctls, which need more than CAP_NET_ADMIN in a container.
var leaveConntrack = []string{"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0s", "--conntrack-tcp-timeout-close-wait=0s"}

// startAsNobody starts the proxy for a user that has these capabilities alone.
func (f *troubled) startAsNobody(t *testing.T, capabilities ...uintptr) *lab.Process {
	t.Helper()
	const nobody = 65534
	program, objects := lab.Binary(t, "kube-proxy"), f.g.ManifestsDir(t)
	// Directories for tests are their owner's only.
	for _, path := range []string{filepath.Dir(program), filepath.Dir(objects), objects} {
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(program, append(append(f.args(), "--manifests="+objects), leaveConntrack...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}, AmbientCaps: capabilities}
	return lab.StartCommand(t, f.lab.Node, cmd)
}

func TestPrivileges(t *testing.T) {
	t.Run("the proxy says which it needs", testProxySaysWhichPrivilegesItNeeds)
	t.Run("CAP_NET_ADMIN is enough", testCapNetAdminIsEnough)
	t.Run("read-only sysctls must be right", testReadOnlySysctlsMustBeRight)
	t.Run("sysctls that do not exist yet are set once they do", testMissingSysctlsAreSetOnceTheyExist)
}

func testProxySaysWhichPrivilegesItNeeds(t *testing.T) {
	newTroubled(t).startAsNobody(t).Fails(t, "operation not permitted; nftables needs CAP_NET_ADMIN in the user namespace that owns the network namespace")
}

func testCapNetAdminIsEnough(t *testing.T) {
	f := newTroubled(t)
	p := f.startAsNobody(t, unix.CAP_NET_ADMIN)
	f.applied(t)
	if err := p.Stop(t); err != nil {
		t.Errorf("the proxy ended with %v", err)
	}
	if errors := p.Errors(); len(errors) > 0 {
		t.Errorf("error lines %q, want none", errors)
	}
}

// inMounts returns a command that runs a program with mounts of its own, which a shell script makes.
func inMounts(script, program string, args ...string) *exec.Cmd {
	cmd := exec.Command("sh", append([]string{"-ec", script + "\n" + `exec "$@"`, "sh", program}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	return cmd
}

// As in a container: a proxy that has the privileges has to set the sysctls first.
func testReadOnlySysctlsMustBeRight(t *testing.T) {
	f := newTroubled(t)
	args := append(f.args(), "--manifests="+f.g.ManifestsDir(t), "--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=1h", "--conntrack-tcp-timeout-close-wait=0s")
	readOnly := func() *lab.Process {
		return lab.StartCommand(t, f.lab.Node, inMounts("mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys", lab.Binary(t, "kube-proxy"), args...))
	}
	readOnly().Fails(t, "sysctl net.netfilter.nf_conntrack_tcp_timeout_established is 432000 and cannot be set to 3600: read-only file system; "+
		"set it on the host, give this process a writable /proc/sys (privileged, host network), or set conntrack.tcpEstablishedTimeout to 0s to leave it alone")
	f.nothingApplied(t)

	if err := f.start(t, append(args, "--init-only")...).Wait(); err != nil {
		t.Fatal(err)
	}
	p := readOnly()
	f.applied(t)
	p.Says(t, "Sysctls are read-only here, but right as they are")
}

// As on a host whose kernel has not loaded nf_conntrack.
func testMissingSysctlsAreSetOnceTheyExist(t *testing.T) {
	f := newTroubled(t)
	dir := t.TempDir()
	p := lab.StartCommand(t, f.lab.Node, inMounts("mount --bind "+dir+" /proc/sys/net/netfilter", lab.Binary(t, "kube-proxy"),
		append(f.args(), "--manifests="+f.g.ManifestsDir(t), "--conntrack-min=300000", "--conntrack-tcp-timeout-close-wait=0s")...))
	f.applied(t)
	p.Says(t, "Sysctls of connection tracking do not exist yet")
	values := map[string]string{"nf_conntrack_max": "300000", "nf_conntrack_tcp_timeout_established": "86400"}
	for name := range values {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("1\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range values {
		await.Until(t, name+" is set", func() error {
			if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
				return fmt.Errorf("it is %q, error %v, want %s", got, err, want)
			}
			return nil
		})
	}
}

// Without IPv6 the proxy serves IPv4, unless the node is one of IPv6 in the first place.
func TestMachineWithoutIPv6(t *testing.T) {
	for _, tt := range []struct {
		name, fails string
		addresses   []string
	}{
		{name: "a dual-stack Node", addresses: []string{"192.168.0.1", "fd00:1::1"}},
		{
			name: "a Node of IPv6 first", addresses: []string{"fd00:1::1", "192.168.0.1"},
			fails: "node node-1: its address fd00:1::1 is needed, but IPv6 is disabled on this machine (sysctl net.ipv6.conf.all.disable_ipv6, kernel parameter ipv6.disable)",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newWithServer(t)
			if err := f.lab.Node.Do(func() error {
				return os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("1"), 0)
			}); err != nil {
				t.Fatal(err)
			}
			f.node.Status.Addresses = nil
			for _, address := range tt.addresses {
				f.node.Status.Addresses = append(f.node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address})
			}
			lab.Update(t, f.server, f.node)
			p := f.start(t, "--kubeconfig="+f.kubeconfig)
			if tt.fails != "" {
				p.Fails(t, tt.fails)
				f.nothingApplied(t)
				return
			}
			f.applied(t)
			if errors := p.Errors(); len(errors) > 0 {
				t.Errorf("error lines %q, want none", errors)
			}
		})
	}
}

// No kernel has features of nf_tables that can be switched off, so seccomp stands between the proxy and a kernel that
// has them all. Each feature of its own is tested in the package nft.

func testKernelWithoutNftablesEndsTheProxy(t *testing.T) {
	f := newTroubled(t)
	f.startFiltered(t, process.NetfilterSockets(process.Refused(unix.EPROTONOSUPPORT)), withoutFib, "--manifests="+f.g.ManifestsDir(t)).
		Fails(t, "nft: open netlink socket: socket: protocol not supported; the kernel needs nf_tables (CONFIG_NETFILTER_NETLINK, CONFIG_NF_TABLES)")
}

func testKernelWithoutAFeatureEndsTheProxy(t *testing.T) {
	f := newTroubled(t)
	f.startFiltered(t, process.Calls(process.Judged, unix.SYS_SENDMSG), withoutFib, "--manifests="+f.g.ManifestsDir(t)).
		Fails(t, "the kernel lacks nf_tables features: ip: fib daddr type needs CONFIG_NFT_FIB_IPV4: no such file or directory; "+
			"ip6: fib daddr type needs CONFIG_NFT_FIB_IPV6: no such file or directory")
	f.nothingApplied(t)
}

// withoutFib refuses what is about fib, as a kernel does that does not know it.
func withoutFib(c *process.Call) process.Verdict {
	if bytes.Contains(c.Message(), []byte("fib\x00")) {
		return process.Fail(unix.ENOENT)
	}
	return process.Pass
}

// On a kernel without IPv6 (CONFIG_IPV6) nf_tables refuses all that concerns tables of the family ip6, and there is no
// if_inet6. make test-kernels runs this on one that was started with ipv6.disable=1 too.
func TestKernelWithoutIPv6(t *testing.T) {
	f := newTroubled(t)
	f.want = f.want[:1]
	args := append(f.args(), "--manifests="+f.g.ManifestsDir(t))
	cmd := exec.Command(lab.Binary(t, "kube-proxy"), args...)
	if lab.HasIPv6 {
		cmd = inMounts("mount -t tmpfs none /proc/$$/net", cmd.Path, args...)
	}
	commits := process.Calls(process.Judged, unix.SYS_SENDMSG)
	p := f.startBehind(t, commits, withoutIPv6, cmd)
	f.applied(t)
	sendFlows(t, f.lab, f.g)
	lab.Nft(t, f.lab.Node, "flush ruleset\n", "-f", "-")
	f.applied(t)
	p.Says(t, "The kernel has no IPv6; serving IPv4 alone")
	if tables := lab.Nft(t, f.lab.Node, "", "list", "tables"); tables != "table ip kube-proxy\n" {
		t.Errorf("there are\n%s", tables)
	}
	f.hasNoDifference(t)
	if err := p.Stop(t); err != nil {
		t.Errorf("the proxy ended with %v", err)
	}
	if errors := p.Errors(); len(errors) > 0 {
		t.Errorf("error lines %q, want none", errors)
	}

	cleanup := f.startBehind(t, commits, withoutIPv6, exec.Command(lab.Binary(t, "kube-proxy"), "--cleanup"))
	if err := cleanup.Wait(); err != nil {
		t.Error(err)
	}
	f.nothingApplied(t)
}

// hasNoDifference has ruledump find that a kernel without IPv6 has all that is wanted.
func (f *troubled) hasNoDifference(t *testing.T) {
	t.Helper()
	args := []string{"diff", "--manifests", f.g.ManifestsDir(t), "--config", f.g.ConfigFile(t), "--node", lab.NodeName}
	cmd := exec.Command(lab.Binary(t, "ruledump"), args...)
	if lab.HasIPv6 {
		cmd = inMounts("mount -t tmpfs none /proc/$$/net", cmd.Path, args...)
	}
	p := f.startBehind(t, process.Calls(process.Judged, unix.SYS_SENDMSG), withoutIPv6, cmd)
	if err := p.Wait(); err != nil || p.Output() != "no difference\n" {
		t.Errorf("%v, %s", err, p.Output())
	}
}

// withoutIPv6 refuses tables of the family ip6, as a kernel does that was built without IPv6.
func withoutIPv6(c *process.Call) process.Verdict {
	const header, newTable = unix.NLMSG_HDRLEN, unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWTABLE
	for message := c.Message(); len(message) > header; {
		length := int(binary.NativeEndian.Uint32(message))
		if length <= header || length > len(message) {
			break
		}
		if binary.NativeEndian.Uint16(message[4:]) == newTable && message[header] == unix.NFPROTO_IPV6 {
			return process.Fail(unix.EOPNOTSUPP)
		}
		message = message[min((length+3)&^3, len(message)):]
	}
	return process.Pass
}

// startFiltered starts the proxy behind a filter of system calls.
func (f *troubled) startFiltered(t *testing.T, filter process.Filter, judge process.Judge, args ...string) *lab.Process {
	t.Helper()
	return f.startBehind(t, filter, judge, exec.Command(lab.Binary(t, "kube-proxy"), append(f.args(), args...)...))
}

// startBehind starts a command in the node's namespace behind a filter of system calls.
func (f *troubled) startBehind(t *testing.T, filter process.Filter, judge process.Judge, cmd *exec.Cmd) *lab.Process {
	t.Helper()
	p := lab.NewProcess(t, cmd)
	if err := process.OnThread(func() error {
		err := unix.Setns(int(f.lab.Node.NetNS().Fd()), unix.CLONE_NEWNET)
		if err == nil {
			err = process.Install(filter, judge)
		}
		if err == nil {
			err = p.Cmd.Start()
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return p
}
