package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/prometheus/procfs"
)

// contender is a proxy to be measured.
type contender struct {
	name, path string
	args       []string
}

// contenders are the proxies to be measured. This module's own is the last.
func contenders(o options) (all []contender) {
	if o.kubeProxy != "" {
		all = append(all, contender{"kube-proxy", o.kubeProxy, o.kubeProxyFlags})
	}
	all = append(all, o.others...)
	return append(all, contender{name: "nftproxy", path: o.ours})
}

// process is a running contender.
type process struct {
	cmd *exec.Cmd
	// peak is the most memory that it and the programs that it runs had at a time, in bytes.
	peak atomic.Int64
	// ended is closed when the process has ended.
	ended chan struct{}
}

func (c *cluster) start(p contender, verbose bool) (*process, error) {
	args := append([]string{
		"--proxy-mode=nftables", "--kubeconfig=" + c.kubeconfig, "--hostname-override=" + lab.NodeName, "--cluster-cidr=" + clusterCIDR,
		// The sysctls of connection tracking are in part those of the whole machine.
		"--conntrack-max-per-core=0", "--conntrack-min=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0",
	}, p.args...)
	r := &process{cmd: exec.Command(p.path, args...), ended: make(chan struct{})}
	if verbose {
		f, err := os.OpenFile("compare-"+p.name+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return nil, err
		}
		defer f.Close() // the process has its own
		r.cmd.Stderr = f
	}
	if err := c.lab.Node.Do(r.cmd.Start); err != nil {
		return nil, err
	}
	go func() {
		_ = r.cmd.Wait() // kube-proxy does not catch SIGTERM
		close(r.ended)
	}()
	go r.watchMemory()
	return r, nil
}

func (r *process) stop() error {
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("it ended by itself: %w", err)
	}
	<-r.ended
	return nil
}

// kill ends the process when measuring failed.
func (r *process) kill() {
	_ = r.cmd.Process.Kill()
	<-r.ended
}

func (r *process) watchMemory() {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-r.ended:
			return
		case <-tick.C:
		}
		sum := int64(0)
		for _, pid := range append(childrenOf(r.cmd.Process.Pid), r.cmd.Process.Pid) {
			sum += residentBytes(pid)
		}
		r.peak.Store(max(sum, r.peak.Load()))
	}
}

func childrenOf(pid int) (pids []int) {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, path := range lists {
		text, _ := os.ReadFile(path)
		for _, field := range strings.Fields(string(text)) {
			if child, err := strconv.Atoi(field); err == nil {
				pids = append(pids, child)
			}
		}
	}
	return pids
}

func residentBytes(pid int) int64 {
	s, _ := stat(pid) // of a process that is gone all is 0
	return int64(s.ResidentMemory())
}

func stat(pid int) (procfs.ProcStat, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return procfs.ProcStat{}, err
	}
	return p.Stat()
}

// cpu returns the time that the process and the programs that it ran have had of a processor, to 10 ms.
func (r *process) cpu() (time.Duration, error) {
	s, err := stat(r.cmd.Process.Pid)
	s.UTime, s.STime = s.UTime+uint(s.CUTime), s.STime+uint(s.CSTime)
	return time.Duration(s.CPUTime() * float64(time.Second)), err
}

// waitIdle waits until the process has nothing to do.
func (r *process) waitIdle() error {
	const (
		look  = 250 * time.Millisecond
		quiet = 6 // looks
		busy  = 20 * time.Millisecond
	)
	for idle := 0; idle < quiet; idle++ {
		before, err := r.cpu()
		if err != nil {
			return err
		}
		time.Sleep(look)
		after, err := r.cpu()
		if err != nil {
			return err
		}
		if after-before > busy || len(childrenOf(r.cmd.Process.Pid)) > 0 {
			idle = -1
		}
	}
	return nil
}
