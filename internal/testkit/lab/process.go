package lab

import (
	"errors"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
)

// Abandoned matches what each command of ruledump says on standard error about rules that no proxy keeps, as in most labs.
var Abandoned = regexp.MustCompile(`(?m)^ruledump: no proxy keeps these rules: .*\n`)

// Process is a command that runs in a host of the lab, for no longer than the test.
type Process struct {
	// Cmd is the command. Its standard output and error are collected.
	Cmd    *exec.Cmd
	output await.Buffer
	// ended is the result of Cmd.Wait, which must not be called twice: the second call may wait for ever.
	ended func() error
	over  atomic.Bool
}

// Start starts a command of this module in the host.
func Start(t testing.TB, h *Host, name string, args ...string) *Process {
	t.Helper()
	return StartCommand(t, h, exec.Command(Binary(t, name), args...))
}

// StartCommand starts any command in the host.
func StartCommand(t testing.TB, h *Host, cmd *exec.Cmd) *Process {
	t.Helper()
	p := NewProcess(t, cmd)
	if err := h.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	return p
}

// NewProcess collects the output of a command that the test starts itself. When the test ends the process is killed;
// if the test failed its output is logged.
func NewProcess(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p := &Process{Cmd: cmd}
	p.ended = sync.OnceValue(func() error {
		defer p.over.Store(true)
		return cmd.Wait()
	})
	cmd.Stdout, cmd.Stderr = &p.output, &p.output
	// What it started may keep the output open.
	cmd.WaitDelay = await.Patience
	t.Cleanup(func() {
		if cmd.Process != nil && !p.over.Load() {
			_ = p.signal(syscall.SIGKILL) // it may end right now
			_ = p.ended()
		}
		if t.Failed() {
			t.Logf("output of %v:\n%s", cmd.Args, p.Output())
		}
	})
	return p
}

// Output returns what the process has written so far, to standard output and standard error.
func (p *Process) Output() string { return p.output.String() }

// Wait waits for the process to end and returns how it ended. One that does not end says where it stands.
func (p *Process) Wait() error { return p.wait(2 * await.Patience) }

// Stop ends the process with SIGTERM and returns how it ended. One that does not end says where it stands.
func (p *Process) Stop(t testing.TB) error {
	t.Helper()
	if err := p.signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	return p.wait(await.Patience)
}

// wait has a process that does not end within the patience print its goroutines, and kills it if that does not end it.
func (p *Process) wait(patience time.Duration) error {
	quit := time.AfterFunc(patience, func() { _ = p.signal(syscall.SIGQUIT) })
	defer quit.Stop()
	kill := time.AfterFunc(patience+10*time.Second, func() { _ = p.signal(syscall.SIGKILL) })
	defer kill.Stop()
	return p.ended()
}

// signal signals the process, and with it all of its process group if it was given one of its own (Setpgid).
func (p *Process) signal(s syscall.Signal) error {
	if attr := p.Cmd.SysProcAttr; attr != nil && attr.Setpgid {
		return syscall.Kill(-p.Cmd.Process.Pid, s)
	}
	return p.Cmd.Process.Signal(s)
}

// Fails waits for the process to end. It must end with exit code 1 and one error line that contains want.
func (p *Process) Fails(t testing.TB, want string) {
	t.Helper()
	if err := p.wait(await.Patience); err == nil || p.Cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("exit: %v, want code 1", err)
	}
	if logged := p.Errors(); len(logged) != 1 || !strings.Contains(logged[0], want) {
		t.Errorf("error lines %q, want one with %q", logged, want)
	}
}

// Says waits until the output contains the text.
func (p *Process) Says(t testing.TB, text string) {
	t.Helper()
	await.Until(t, "the log says "+text, func() error {
		if !strings.Contains(p.Output(), text) {
			return errors.New("it does not")
		}
		return nil
	})
}

// Errors returns the error lines of klog's output, with quotes unescaped.
func (p *Process) Errors() (lines []string) {
	for line := range strings.Lines(p.Output()) {
		if strings.HasPrefix(line, "E") {
			lines = append(lines, strings.ReplaceAll(strings.TrimSuffix(line, "\n"), `\"`, `"`))
		}
	}
	return lines
}

// AwaitHealthy waits until the health server of the proxy on a node says that it has synced, which all versions of
// kube-proxy have.
func AwaitHealthy(t testing.TB, node *Host) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DialContext: node.DialContext, DisableKeepAlives: true}, Timeout: 5 * time.Second}
	await.Until(t, node.Name+" is healthy", func() error {
		response, err := client.Get("http://127.0.0.1:10256/healthz")
		if err != nil {
			return err
		}
		response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return errors.New(response.Status)
		}
		return nil
	})
}
