package integration

import (
	"bytes"
	"encoding/binary"
	"os/exec"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/internal/testkit/process"
	"golang.org/x/sys/unix"
)

// No kernel has features of nf_tables that can be switched off, so seccomp stands between the proxy and a kernel that has
// them all. Each feature of its own is tested in the package nft.

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
