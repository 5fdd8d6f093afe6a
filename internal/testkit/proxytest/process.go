package proxytest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// stopPatience is the time that a proxy has to end after SIGTERM.
var stopPatience = 5 * time.Second

// killPatience is the time that processes may take to go after SIGKILL, on a busy machine.
const killPatience = 20 * time.Second

// process is a command that runs in a host of the lab, in a process group of its own.
type process struct {
	cmd    *exec.Cmd
	host   *lab.Host
	output tail
	ended  chan struct{}
	// err says how the process ended, once ended is closed.
	err error
}

func startProcess(host *lab.Host, args []string) (*process, error) {
	p := &process{cmd: exec.Command(args[0], args[1:]...), host: host, ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	// A child that keeps the output open must not hold up the end.
	p.cmd.WaitDelay = time.Second
	if err := host.Do(p.cmd.Start); err != nil {
		return nil, err
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// hasEnded returns how the process ended, nil while it runs.
func (p *process) hasEnded() error {
	select {
	case <-p.ended:
		return fmt.Errorf("the proxy ended: %s", p.cmd.ProcessState)
	default:
		return nil
	}
}

// stop ends the process, and whatever else runs in the host.
func (p *process) stop() {
	group := -p.cmd.Process.Pid
	_ = syscall.Kill(group, syscall.SIGTERM) // it may have ended
	select {
	case <-p.ended:
	case <-time.After(stopPatience):
	}
	_ = syscall.Kill(group, syscall.SIGKILL)
	killAll(p.host)
	<-p.ended
}

// killAll kills the processes in the host's network namespace. A proxy may have started
// some that left its process group.
func killAll(host *lab.Host) {
	for deadline := time.Now().Add(killPatience); time.Now().Before(deadline); { // they may start others while they are looked for
		pids := processesIn(host)
		if len(pids) == 0 {
			return
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func processesIn(host *lab.Host) (pids []int) {
	want, err := host.NetNS().Stat()
	if err != nil {
		return nil
	}
	links, _ := filepath.Glob("/proc/[0-9]*/ns/net")
	for _, link := range links {
		var pid int
		if _, err := fmt.Sscanf(link, "/proc/%d/", &pid); err != nil || pid == os.Getpid() {
			continue
		}
		if info, err := os.Stat(link); err == nil && os.SameFile(info, want) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	kept bytes.Buffer
}

const tailBytes = 4096

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept.Write(p)
	if t.kept.Len() > 2*tailBytes {
		t.kept.Next(t.kept.Len() - tailBytes)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.kept.String()
}

// split takes a command line apart at blanks. Quotes, single and double, keep blanks
// together; there is no other syntax.
func split(command string) (args []string, err error) {
	var word strings.Builder
	var quote rune
	inWord := false
	for _, r := range command {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, inWord = r, true
		case r == ' ' || r == '\t' || r == '\n':
			if inWord {
				args = append(args, word.String())
			}
			word.Reset()
			inWord = false
		default:
			word.WriteRune(r)
			inWord = true
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("command %q: no closing %c", command, quote)
	}
	if inWord {
		args = append(args, word.String())
	}
	if len(args) == 0 {
		return nil, errors.New("the command is missing")
	}
	return args, nil
}
