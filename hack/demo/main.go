// Command demo shows the proxy at work in a small cluster of network namespaces, which it
// makes and removes itself: run it with `make demo`.
//
// It needs no cluster and leaves nothing behind. Without privileges it runs itself again as
// root of a user namespace of its own.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	record := flag.String("record", "", "draw the run as an animated SVG into this `file`, too")
	keep := flag.Bool("keep", false, "leave the cluster and its proxy until Ctrl-C, and say how to enter them")
	flag.Parse()
	if err := start(ctx, *record, *keep); err != nil {
		if ctx.Err() != nil {
			err = errors.New("interrupted, everything is removed")
		}
		// A second self has said what went wrong already.
		if !errors.Is(err, errSecondSelf) {
			fmt.Fprintln(os.Stderr, "demo:", err)
		}
		os.Exit(1)
	}
}

// start runs the demo here if this process may, else in a user namespace.
func start(ctx context.Context, record string, keep bool) error {
	programs, err := findPrograms()
	if err != nil {
		return err
	}
	if isSecondSelf() {
		// The socket of step 6 needs a directory that nobody else can write to.
		if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("mount /run in the user namespace: %w", err)
		}
	}
	l, err := lab.New()
	if errors.Is(err, netns.ErrPrivilege) {
		if isSecondSelf() {
			return errors.New("user namespaces grant no privileges on this system: run as root")
		}
		return runSecondSelf(ctx)
	}
	if err != nil {
		return err
	}
	defer l.Close()
	if record == "" {
		return run(ctx, l, programs, os.Stdout, keep)
	}
	r := &recording{}
	if err := run(ctx, l, programs, io.MultiWriter(os.Stdout, r), keep); err != nil {
		return err
	}
	return r.writeFile(record)
}

// programs are the paths of the programs that the demo shows.
type programs struct {
	kubeProxy, ruledump string
}

// findPrograms looks beside the demo itself, where `make demo` puts them.
func findPrograms() (programs, error) {
	self, err := os.Executable()
	if err != nil {
		return programs{}, err
	}
	dir := filepath.Dir(self)
	p := programs{kubeProxy: filepath.Join(dir, "kube-proxy"), ruledump: filepath.Join(dir, "ruledump")}
	for _, path := range []string{p.kubeProxy, p.ruledump} {
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			return p, fmt.Errorf("%s not found: run `make demo`", short(path))
		} else if err != nil {
			return p, err
		}
	}
	return p, nil
}

// short is path as seen from the working directory, if that is below it.
func short(path string) string {
	dir, err := os.Getwd()
	if err != nil {
		return path
	}
	if relative, err := filepath.Rel(dir, path); err == nil && filepath.IsLocal(relative) {
		return relative
	}
	return path
}

// secondSelf is set in the environment of a process that runSecondSelf started.
const secondSelf = "NFTPROXY_DEMO_SECOND_SELF"

// errSecondSelf says that the second self failed, and has said why.
var errSecondSelf = errors.New("the demo failed in its user namespace")

func isSecondSelf() bool { return os.Getenv(secondSelf) != "" }

// runSecondSelf runs this program again as root of a new user namespace, which may do
// anything to the network namespaces that it makes and nothing to those of the machine.
func runSecondSelf(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), secondSelf+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	}
	// Killing it would cost it the chance to clean up.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("user namespaces are disabled: run as root (%w)", err)
	}
	if err := cmd.Wait(); err != nil && !cmd.ProcessState.Success() {
		return fmt.Errorf("%w: %w", errSecondSelf, err)
	}
	return nil
}

// away is the time from the kill of a process to its restart, while connections run.
const away = 300 * time.Millisecond

// apart runs the server, which knows Kubernetes, and the backend, which programs nftables, as processes of their
// own. It kills each once, and changes a pod meanwhile.
func (d *demo) apart(ctx context.Context) error {
	d.say("\n6. Two processes do the work of one, and each is killed while connections run\n")
	dir := filepath.Join("/run", filepath.Base(filepath.Dir(d.manifests)))
	defer os.RemoveAll(dir)
	socket := "unix://" + filepath.Join(dir, "node-local.sock")
	d.say("    kube-proxy node-local-server --manifests DIR --listen unix://SOCKET    (the server)")
	d.say("    kube-proxy --node-local-source unix://SOCKET …                         (the backend)")
	startServer := func() (err error) {
		d.server, err = d.runKubeProxy("server", "node-local-server", "--manifests", d.manifests, "--listen", socket)
		return err
	}
	startBackend := func() (err error) {
		d.proxy, err = d.runKubeProxy("kube-proxy", append([]string{"--node-local-source", socket}, proxyArgs...)...)
		return err
	}
	one := d.proxy
	d.proxy = nil
	if err := errors.Join(one.stop(), startServer(), startBackend()); err != nil {
		return err
	}
	if err := d.survive(ctx, "server", replacement{newcomer, oldPod}, &d.server, startServer); err != nil {
		return err
	}
	if err := d.survive(ctx, "backend", replacement{oldPod, newcomer}, &d.proxy, startBackend); err != nil {
		return err
	}
	server := d.server
	d.server = nil
	return server.stop()
}

// survive kills a process while connections run, has a pod replaced while it is away, and starts it again.
func (d *demo) survive(ctx context.Context, name string, r replacement, process **proxy, start func() error) error {
	d.say("\n    kill -9 of the %s; %s replaces %s while it is away\n", name, r.added.name, r.removed.name)
	return d.replace(ctx, r, func(rename func() error) (time.Time, error) {
		killed := *process
		*process = nil
		if err := errors.Join(killed.kill(), rename(), sleep(ctx, away)); err != nil {
			return time.Time{}, err
		}
		begin := time.Now()
		return begin, start()
	}, func(begin time.Time, all observations) {
		d.say("")
		d.say("    %-38s 0.0 ms", name+" started again")
		d.say("    first connection answered by %s  %9s", r.added.name, milliseconds(all.firstNew.Sub(begin)))
		d.say("    last connection answered by %s   %9s", r.removed.name, milliseconds(all.lastOld.Sub(begin)))
	})
}
