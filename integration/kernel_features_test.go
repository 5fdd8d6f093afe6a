package integration

import (
	"bytes"
	"os/exec"
	"testing"

	"github.com/nftproxy/nftproxy/integration/lab/labtest"
	"github.com/nftproxy/nftproxy/integration/syscalls"
	"golang.org/x/sys/unix"
)

// No kernel has features of nf_tables that can be switched off, so seccomp stands between the proxy and a kernel that has
// them all. Each feature of its own is tested in the package nft.

func testKernelWithoutNftablesEndsTheProxy(t *testing.T) {
	f := newTroubled(t)
	f.startFiltered(t, syscalls.NetfilterSockets(syscalls.Refused(unix.EPROTONOSUPPORT)), withoutFib, "--manifests="+f.g.manifestsDir(t)).
		Fails(t, "nft: open netlink socket: socket: protocol not supported; the kernel needs nf_tables (CONFIG_NETFILTER_NETLINK, CONFIG_NF_TABLES)")
}

func testKernelWithoutAFeatureEndsTheProxy(t *testing.T) {
	f := newTroubled(t)
	f.startFiltered(t, syscalls.Calls(syscalls.Judged, unix.SYS_SENDMSG), withoutFib, "--manifests="+f.g.manifestsDir(t)).
		Fails(t, "the kernel lacks nf_tables features: ip: fib daddr type needs CONFIG_NFT_FIB_IPV4: no such file or directory; "+
			"ip6: fib daddr type needs CONFIG_NFT_FIB_IPV6: no such file or directory")
	f.nothingProgrammed(t)
}

// withoutFib refuses what is about fib, as a kernel does that does not know it.
func withoutFib(c *syscalls.Call) syscalls.Verdict {
	if bytes.Contains(c.Message(), []byte("fib\x00")) {
		return syscalls.Fail(unix.ENOENT)
	}
	return syscalls.Pass
}

// startFiltered starts the proxy behind a filter of system calls.
func (f *troubled) startFiltered(t *testing.T, filter syscalls.Filter, judge syscalls.Judge, args ...string) *labtest.Process {
	t.Helper()
	p := labtest.NewProcess(t, exec.Command(labtest.Binary(t, "kube-proxy"), append(f.args(), args...)...))
	if err := syscalls.OnThread(func() error {
		err := unix.Setns(int(f.lab.Node.NetNS().Fd()), unix.CLONE_NEWNET)
		if err == nil {
			err = syscalls.Install(filter, judge)
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
