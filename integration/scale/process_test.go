package scale

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/nftproxy/nftproxy/internal/testkit/process"
	"k8s.io/klog/v2"
)

// roleVariable is set in the environment of a process that start began.
const roleVariable = "NFTPROXY_SCALE_ROLE"

func TestMain(m *testing.M) {
	text, is := os.LookupEnv(roleVariable)
	if !is {
		os.Exit(m.Run())
	}
	klog.SetLogger(logr.Discard())
	var words [4]string
	err := json.Unmarshal([]byte(text), &words)
	if err == nil {
		proxies, _ := strconv.Atoi(words[1])
		err = role{words[0], proxies, words[2], words[3]}.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// roleProcess runs a role.
type roleProcess struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines *bufio.Scanner
}

// start begins a process, and returns when it is ready. It ends with the benchmark.
func start(b *testing.B, r role) *roleProcess {
	b.Helper()
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	text, err := json.Marshal([]string{r.name, fmt.Sprint(r.proxies), r.kubeconfig, r.socket})
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env, cmd.Stderr = append(os.Environ(), roleVariable+"="+string(text)), os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	p := &roleProcess{cmd, stdin, bufio.NewScanner(stdout)}
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // ended by a signal: always an error
	})
	p.expect(b, "ready")
	return p
}

func (p *roleProcess) read(b *testing.B) string {
	b.Helper()
	if !p.lines.Scan() {
		b.Fatal(errors.Join(errors.New("the process has ended"), p.lines.Err()))
	}
	return p.lines.Text()
}

func (p *roleProcess) expect(b *testing.B, want string) {
	b.Helper()
	if got := p.read(b); got != want {
		b.Fatalf("the process says %q, want %q", got, want)
	}
}

// change calls do, and returns how long it took until half, 99 % and all of the proxies had heard of it.
func (p *roleProcess) change(b *testing.B, do func()) (p50, p99, last time.Duration) {
	b.Helper()
	fmt.Fprintln(p.stdin)
	p.expect(b, "go")
	begin := time.Now().UnixNano()
	do()
	var times [3]int64
	if _, err := fmt.Sscan(p.read(b), &times[0], &times[1], &times[2]); err != nil {
		b.Fatal(err)
	}
	return time.Duration(times[0] - begin), time.Duration(times[1] - begin), time.Duration(times[2] - begin)
}

// processorTime returns the processor time that the process has used.
func (p *roleProcess) processorTime(b *testing.B) time.Duration {
	b.Helper()
	return process.ProcessorTimeOf(b, p.cmd.Process.Pid)
}

// heap returns the number of bytes that this process keeps, stacks included.
func heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc + stats.StackInuse
}
