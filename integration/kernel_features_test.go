package integration

import (
	"os/exec"
	"runtime"
	"testing"

	"github.com/nftproxy/nftproxy/integration/lab/labtest"
	"golang.org/x/sys/unix"
)

// No kernel has features of nf_tables that can be switched off, so seccomp stands between the proxy and a kernel that has
// them all. Each feature of its own is tested in the package nft.

func testKernelWithoutNftablesEndsTheProxy(t *testing.T) {
	f := newTroubled(t)
	f.startFiltered(t, netfilterSockets(unix.SECCOMP_RET_ERRNO|uint32(unix.EPROTONOSUPPORT)), withoutFib, "--manifests="+f.g.manifestsDir(t)).
		Fails(t, "nft: open netlink socket: socket: protocol not supported; the kernel needs nf_tables (CONFIG_NETFILTER_NETLINK, CONFIG_NF_TABLES)")
}

func testKernelWithoutAFeatureEndsTheProxy(t *testing.T) {
	f := newTroubled(t)
	f.startFiltered(t, messages(unix.SECCOMP_RET_USER_NOTIF), withoutFib, "--manifests="+f.g.manifestsDir(t)).
		Fails(t, "the kernel lacks nf_tables features: ip: fib daddr type needs CONFIG_NFT_FIB_IPV4: no such file or directory; "+
			"ip6: fib daddr type needs CONFIG_NFT_FIB_IPV6: no such file or directory")
	f.nothingProgrammed(t)
}

// startFiltered starts the proxy behind a filter of system calls.
func (f *troubled) startFiltered(t *testing.T, filter []unix.SockFilter, judge judgement, args ...string) *labtest.Process {
	t.Helper()
	p := labtest.NewProcess(t, exec.Command(labtest.Binary(t, "kube-proxy"), append(f.args(), args...)...))
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread is not to be used again
		err := unix.Setns(int(f.lab.Node.NetNS().Fd()), unix.CLONE_NEWNET)
		if err == nil {
			err = install(filter, judge)
		}
		if err == nil {
			err = p.Cmd.Start()
		}
		started <- err
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	return p
}
